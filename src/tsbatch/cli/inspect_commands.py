"""The verbs ``verify``, ``inspect`` and ``diff``."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from tsbatch.archive.reader import ScannedArchive, scan
from tsbatch.archive.verification import Difference, Finding, about, config_of, diff, manifest_of, verify
from tsbatch.archive.writer import OnBytes, sha256
from tsbatch.packaging.engine_trials import COLUMNS, Trial
from tsbatch.system import console

PANEL = "Archive"
SCHEMA = 1
FINE, FINDINGS = 0, 1
MEGABYTE = 10**6
SILENT = 200 * MEGABYTE
"""Bytes up to which reading is over before anybody wonders."""

Json = Annotated[bool, typer.Option("--json", help="One JSON object.")]
ArchivePath = Annotated[Path, typer.Argument(help="A .mar, a .tar.gz or a model folder.")]


def register(app: typer.Typer) -> None:
    """Adds the verbs to the command line."""
    for command in (inspect_command, verify_command, diff_command):
        app.command(command.__name__.partition("_")[0], rich_help_panel=PANEL)(command)


def verify_command(path: ArchivePath, as_json: Json = False) -> int:
    """Compare every file of an archive with the hashes taken when it was packed; exit code 1 when one differs."""
    found = _read(path)
    findings = verify(found)
    if as_json:
        told = [asdict(finding) for finding in findings]
        console.emit_json(
            {"schema": SCHEMA, "archive": path, "ok": not findings, "files": len(found.files), "findings": told}
        )
    else:
        for finding in findings:
            typer.echo(f"{path}: {finding}")
        for note in _notes(found):
            console.say(f"note: {note}")
        if not findings:
            typer.echo(f"{path}: {len(found.files)} files, all as they were packed")
    return FINDINGS if findings else FINE


def inspect_command(path: ArchivePath, as_json: Json = False) -> int:
    """Show what an archive is: name, version, settings, files, engines measured, and what verify says."""
    found = _read(path)
    facts = inspect(found)
    if as_json:
        console.emit_json(facts)
    else:
        _show(facts, found)
    return FINE


def diff_command(
    a: Annotated[Path, typer.Argument(help="One archive or model folder.")],
    b: Annotated[Path, typer.Argument(help="The other.")],
    as_json: Json = False,
) -> int:
    """Show which files and settings two archives have differently; exit code 1 when there are any."""
    differences = diff(_read(a), _read(b))
    if as_json:
        told = [asdict(difference) for difference in differences]
        console.emit_json({"schema": SCHEMA, "a": a, "b": b, "same": not differences, "differences": told})
    elif differences:
        console.table(("what", "name", str(a), str(b)), [_row(difference) for difference in differences])
    else:
        typer.echo("the same files and settings")
    return FINDINGS if differences else FINE


def inspect(found: ScannedArchive) -> dict[str, Any]:
    """What ``tsbatch inspect --json`` prints."""
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
    typer.echo("verify: all as it was packed" if facts["verified"] else "verify: NOT as it was packed, see above")


def _trials(engines: dict[str, Any]) -> list[tuple[str | None, ...]]:
    try:
        return [Trial(**trial).cells() for trial in engines["trials"]]
    except (KeyError, TypeError):  # of another version of tsbatch
        return []


def _notes(found: ScannedArchive) -> list[str]:
    if not found.compiled:
        return []
    return [f"{len(found.compiled)} files of compiled Python are not looked at; workers write them beside the code"]


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
    """Progress that shows only where reading takes its time, so that an error stays a single line elsewhere."""
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
