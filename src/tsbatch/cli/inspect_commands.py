"""The commands ``verify``, ``inspect`` and ``diff``."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml
from typer import Argument

from tsbatch.archive.reader import ScannedArchive, scan
from tsbatch.archive.verification import Difference, Finding, about, config_of, diff, manifest_of, verify
from tsbatch.archive.writer import OnBytes, sha256
from tsbatch.cli import options
from tsbatch.cli.exit_codes import FINDINGS, FINE
from tsbatch.packaging.engine_trials import COLUMNS, Trial
from tsbatch.system import console

SCHEMA = 1
MEGABYTE = 10**6
SILENT = 200 * MEGABYTE
"""Bytes that are read too fast for progress to matter."""

PackedPath = Annotated[Path, Argument(help="Archive (.mar or .tar.gz) or model folder.")]


def verify_command(path: PackedPath, as_json: options.Json = False) -> int:
    """Compare an archive's files with the hashes taken when it was packaged; exit code 1 if any differ."""
    found = _read(path)
    findings = verify(found)
    if as_json:
        listed = [asdict(finding) for finding in findings]
        about = {"archive": path, "ok": not findings, "files": len(found.files), "findings": listed}
        console.emit_json({"schema": SCHEMA, **about})
    else:
        for finding in findings:
            typer.echo(f"{path}: {finding}")
        for note in _notes(found):
            console.say(f"note: {note}")
        if not findings:
            typer.echo(f"{path}: {len(found.files)} files, all unchanged since packaging")
    return FINDINGS if findings else FINE


def inspect_command(path: PackedPath, as_json: options.Json = False) -> int:
    """Show an archive's name, version, settings, files and measured engines, and whether its files are unchanged."""
    found = _read(path)
    facts = inspect(found)
    if as_json:
        console.emit_json(facts)
    else:
        _show(facts, found)
    return FINE


def diff_command(
    a: Annotated[Path, Argument(help="First archive or model folder.")],
    b: Annotated[Path, Argument(help="Second archive or model folder.")],
    as_json: options.Json = False,
) -> int:
    """Show the files and settings that differ between two archives; exit code 1 if there are any."""
    differences = diff(_read(a), _read(b))
    if as_json:
        listed = [asdict(difference) for difference in differences]
        console.emit_json({"schema": SCHEMA, "a": a, "b": b, "same": not differences, "differences": listed})
    elif differences:
        console.table(("what", "name", str(a), str(b)), [_row(difference) for difference in differences])
    else:
        typer.echo("the same files and settings")
    return FINDINGS if differences else FINE


def inspect(found: ScannedArchive) -> dict[str, Any]:
    """Return the object that ``tsbatch inspect --json`` prints."""
    manifest = manifest_of(found)
    model, own = manifest.get("model") or {}, about(found)
    findings = verify(found)
    return {
        "schema": SCHEMA,
        "archive": found.path,
        "format": found.kind,
        "bytes": sum(file.bytes for file in found.files.values()),
        "sha256": None if found.kind == "folder" else sha256(found.path),
        "name": model.get("modelName"),
        "version": model.get("modelVersion"),
        "handler": model.get("handler"),
        "requirements": model.get("requirementsFile"),
        "tsbatch": own.get("tsbatch"),
        "about": {key: value for key, value in own.items() if key not in ("schema", "tsbatch")},
        "config": config_of(found),
        "files": {name: asdict(file) for name, file in sorted(found.files.items())},
        "engines": _engines(found),
        "verified": not findings,
        "findings": [asdict(finding) for finding in findings],
    }


def _engines(found: ScannedArchive) -> dict[str, Any] | None:
    try:
        return dict(json.loads(found.texts["engines.json"]))
    except (KeyError, ValueError, TypeError):
        return None


def _show(facts: dict[str, Any], found: ScannedArchive) -> None:
    typer.echo(f"{facts['archive']}  {facts['format']}, {facts['bytes'] / MEGABYTE:.1f} MB of files")
    lines = {
        "model": f"{facts['name']} {facts['version']}",
        "handler": facts["handler"],
        "packed by": f"tsbatch {facts['tsbatch']}" if facts["tsbatch"] else "another tool",
        "requirements": facts["requirements"],
        "sha256": facts["sha256"],
        **{str(key): value for key, value in facts["about"].items()},
    }
    for what, value in lines.items():
        if value is not None:
            typer.echo(f"  {what:<13} {value}")
    if facts["config"]:
        typer.echo("model-config.yaml")
        typer.echo("  " + yaml.safe_dump(facts["config"], sort_keys=False).rstrip().replace("\n", "\n  "))
    console.table(("file", "bytes"), [(name, file["bytes"]) for name, file in facts["files"].items()])
    if facts["engines"]:
        console.table(COLUMNS, _trials(facts["engines"]))
    for text in [*(str(Finding(**finding)) for finding in facts["findings"]), *_notes(found)]:
        typer.echo(f"  {text}")
    typer.echo(
        "verify: unchanged since packaging" if facts["verified"] else "verify: CHANGED since packaging, see above"
    )


def _trials(engines: dict[str, Any]) -> list[tuple[str | None, ...]]:
    try:
        return [Trial(**trial).cells() for trial in engines["trials"]]
    except (KeyError, TypeError):  # written by another version of tsbatch
        return []


def _notes(found: ScannedArchive) -> list[str]:
    if not found.compiled:
        return []
    return [f"{len(found.compiled)} compiled Python files are ignored; workers write them beside the code"]


def _row(difference: Difference) -> tuple[str, str, object, object]:
    return difference.what, difference.name, _cell(difference.a), _cell(difference.b)


def _cell(value: Any) -> object:
    if isinstance(value, dict):
        return f"{value['bytes']} bytes {value['sha256'][:12]}"
    return value


def _read(path: Path) -> ScannedArchive:
    with reading(path) as on_bytes:
        return scan(path, on_bytes)


@contextlib.contextmanager
def reading(path: Path) -> Iterator[OnBytes]:
    """Show progress only if reading takes long, so that otherwise an error is a single line."""
    with contextlib.ExitStack() as stack:
        done = 0
        steps: list[console.Step] = []

        def on_bytes(count: int) -> None:
            nonlocal done
            done += count
            if done > SILENT and not steps:
                steps.append(stack.enter_context(console.progress(f"reading {path.name} (MB)")))
                steps[0].advance(done / MEGABYTE)
            elif steps:
                steps[0].advance(count / MEGABYTE)

        yield on_bytes
