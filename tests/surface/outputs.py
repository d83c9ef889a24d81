"""What ``--json`` prints: trees of keys and types, from commands that are run on the files in ``old/``.

A tree has ``{key: tree}`` for an object, ``[tree]`` for an array, and a word for anything else. A key that not every
object of an array has ends in ``?``.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import Any

from tests.surface.commands import main
from tests.surface.saying import said

OLD = Path(__file__).parent / "old"
FREE = frozenset({"imports", "memory_gpus"})
"""Keys of objects whose own keys are somebody's names."""
TOLD = frozenset({"kind", "regime", "dominant", "verdict", "conclusion", "severity", "rule", "unit", "format", "phase"})
"""Keys whose value is a word for programs, which belongs to the tree."""
NAMED = frozenset({"parts", "phases", "stages"})
"""Arrays whose objects have such a word as their name."""
LOAD = ("--rate", "100", "--requests", "1500")
SMALL = ("--max-workers", "2", "--max-batch-size", "2", "--requests", "1500", "--p99", "200ms")

OFFLINE: Mapping[str, Sequence[str]] = {
    "new": ("new", "starter"),
    "package": ("package", "--task", "tensor", "--model", "linear.pt", "--name", "again", "-o", "."),
    "package, own handler": (
        "package",
        "--handler",
        "own_doubling.py",
        "--name",
        "own",
        "--format",
        "folder",
        "-o",
        ".",
    ),
    "handler-path": ("handler-path", "tensor"),
    "handler-path metrics": ("handler-path", "metrics"),
    "inspect": ("inspect", "rows.mar"),
    "inspect, engines": ("inspect", "words.mar"),
    "inspect, tar.gz": ("inspect", "doubling.tar.gz"),
    "verify": ("verify", "rows.mar"),
    "verify, damaged": ("verify", "damaged.mar"),
    "diff": ("diff", "rows.mar", "doubling.mar"),
    "diff, same": ("diff", "rows.mar", "rows.mar"),
    "lint": ("lint", "config.properties"),
    "lint, clean": ("lint", "rows.mar"),
    "lint --rules": ("lint", "--rules"),
    "lint --fix": ("lint", "config.properties", "--fix"),
    "effective": ("effective", "config.properties", "rows.mar", "--cores", "4"),
    "run": ("run", "doubling.mar", "--data", "numbers.jsonl", "--output", "answers.jsonl"),
    "run, failing": ("run", "doubling.mar", "--data", "words.jsonl", "--output", "failures.jsonl"),
    "simulate": ("simulate", "--service", "check.json", "--batch-size", "4", *LOAD, "--limit", "50"),
    "simulate, clients": ("simulate", "--service", "5+2*n", "--concurrency", "4", "--requests", "500"),
    "simulate, trace": ("simulate", "--service", "bench-a.json", "--trace", "bench-open.json"),
    "plan": ("plan", "--service", "check.json", "--rate", "300", "--price", "2", *SMALL),
    "plan, replicas": ("plan", "--service", "5+2*n", "--rate", "300", "--replicas", *SMALL[2:]),
    "compare": ("compare", "bench-a.json", "bench-b.json"),
    "compare, single runs": ("compare", "bench-open.json", "bench-open.json"),
    "diagnose, load test": ("diagnose", "bench-a.json"),
    "diagnose, logs": ("diagnose", "logs"),
    "kserve": ("kserve", "waiting.mar", "--check", "check.json", "-o", "pods"),
    "kserve, scaled": (
        *("kserve", "waiting.mar", "--check", "check.json", "-o", "scaled", "--storage-uri", "s3://models/waiting"),
        *("--replicas", "1:4", "--prometheus", "http://prometheus:9090", "--namespace", "models", "--gpus", "1"),
    ),
    "check": ("check", "rows.mar", "--data", "rows.jsonl", "--one-worker", "--limit", "120"),
    "check, does not load": ("check", "broken.mar"),
}
"""Commands that need no server, each with ``--json``; in this order, one after the other, in one folder."""

FILES = {
    "run: a line of the answers": "answers.jsonl",
    "run: a line of the failures": "failures.jsonl",
}
"""Files of JSON lines that these commands write."""

FOLDERS = {"new": "starter", "package --format folder": "own", "kserve": "pods", "kserve, scaled": "scaled"}
"""Folders that they write."""

MEASURED = frozenset({"check", "check, does not load"})
"""Those that tell what this machine has; on another one a figure may be missing, and a list may be empty."""

EXIT_CODES: Mapping[str, Sequence[str]] = {
    "version": ("--version",),
    "help": ("--help",),
    "no such command": ("pakage",),
    "no such option": ("verify", "rows.mar", "--fast"),
    "a wrong value": ("simulate", "--service", "5ms", "--rate", "fast"),
    "an option that would be ignored": ("simulate", "--service", "5ms", "--rate", "1", "--think", "5"),
    "no such file": ("verify", "missing.mar"),
    "no archive": ("inspect", "numbers.jsonl"),
    "what is written is there": ("new", "."),
    "a damaged archive": ("verify", "damaged.mar"),
    "differences": ("diff", "rows.mar", "doubling.mar"),
    "findings": ("lint", "broken.mar"),
    "no JSON in the data": ("run", "doubling.mar", "--data", "cut.jsonl"),
    "an answer is an error": ("run", "doubling.mar", "--data", "words.jsonl"),
    "it cannot load": ("run", "broken.mar", "--data", "numbers.jsonl"),
    "check: it cannot load": ("check", "broken.mar"),
    "single runs cannot tell": ("compare", "bench-open.json", "bench-open.json"),
    "no settings keep the limit": ("plan", "--service", "100ms", "--rate", "5", *SMALL[2:-2], "--p99", "5ms"),
    "no such server": ("models", "--name", "nobody"),
    "nothing to stop": ("stop", "--name", "nobody"),
    "nothing answers": ("models", "--server", "http://127.0.0.1:9"),
    "nothing to put back": ("tune", "--restore", "--name", "nobody"),
    "nothing to tune": ("tune",),
}
"""Ways to end; see tests/unit/test_cli.py for how errors become codes."""


@contextlib.contextmanager
def folder_of_old_files(folder: Path) -> Iterator[Path]:
    """The files of the older version, in a folder that is the present one meanwhile, with what else is needed."""
    shutil.copytree(OLD, folder, dirs_exist_ok=True)
    with zipfile.ZipFile(folder / "rows.mar") as archive:
        archive.extract("linear.pt", folder)
    with zipfile.ZipFile(folder / "doubling.mar") as archive:
        (folder / "own_doubling.py").write_bytes(archive.read("doubling.py"))
    rewrite(folder / "rows.mar", folder / "damaged.mar", "linear.pt", b"not what was packed")
    rewrite(
        folder / "rows.mar", folder / "broken.mar", "model-config.yaml", b"tsbatch: {no_such_key: 1}\nbatchSize: 4\n"
    )
    (folder / "words.jsonl").write_text('"a word"\n3\n')
    (folder / "cut.jsonl").write_text("[1, 2\n")
    (folder / "config.properties").write_text(
        "inference_address=http://0.0.0.0:8080\nmodel_store=.\nload_models=all\nbatch_sise=8\njob_queue_size=50\n"
    )
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield folder
    finally:
        os.chdir(before)


def rewrite(source: Path, target: Path, name: str, content: bytes) -> None:
    """A copy of an archive with one file replaced."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for info in old.infolist():
            new.writestr(info, content if info.filename == name else old.read(info))


def offline(folder: Path) -> dict[str, Any]:
    """Exit code and tree of each command in :data:`OFFLINE`, and what they write."""
    found = {}
    with folder_of_old_files(folder):
        for name, words in OFFLINE.items():
            found[name] = code_and_tree([*words, "--json"])
        for name, path in FILES.items():
            lines = [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines()]
            found[name] = {"json": merged([tree(line) for line in lines])}
        for name, path in FOLDERS.items():
            found[f"files of {name}"] = {"files": files_in(Path(path))}
        found["lint --format sarif"] = code_and_tree(["lint", "broken.mar", "--format", "sarif"])
    return found


def code_and_tree(words: Sequence[str]) -> dict[str, Any]:
    """The exit code of a command, and the tree of what it prints."""
    done = said(main(), words)
    try:
        return {"exit_code": done.code, "json": tree(json.loads(done.out))}
    except json.JSONDecodeError:
        return {"exit_code": done.code, "no JSON": f"tsbatch {' '.join(words)}: {done.err or done.out}"}


def files_in(folder: Path) -> list[str]:
    """The files below a folder; those of the package itself, which may move, count as one."""
    found = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    return sorted({"worker/tsbatch/…" if name.startswith("worker/tsbatch/") else name for name in found})


def exit_codes(folder: Path) -> dict[str, int]:
    """The exit code of each way to end."""
    run = main()
    with folder_of_old_files(folder):
        return {name: said(run, words).code for name, words in EXIT_CODES.items()}


# ---- trees ------------------------------------------------------------------------------------------------------


def tree(value: Any, *keys: str) -> Any:
    """Keys and types of a JSON value, which lies under these keys."""
    if isinstance(value, dict):
        if not FREE.isdisjoint(keys[-1:]):
            return {"*": merged([tree(part) for part in value.values()])}
        return {name: tree(part, *keys, name) for name, part in sorted(value.items())}
    if isinstance(value, list):
        return [merged([tree(part, *keys) for part in value])] if value else []
    if value is None or isinstance(value, bool):
        return "null" if value is None else "boolean"
    kind = "string" if isinstance(value, str) else "number"
    return f"{kind}: {value}" if is_told(value, keys) else kind


def is_told(value: float | str, keys: Sequence[str]) -> bool:
    """Whether the value itself is for programs."""
    parent, key = ("", "", *keys)[-2:]
    return key == "schema" or (isinstance(value, str) and (key in TOLD or (key == "name" and parent in NAMED)))


def merged(trees: Sequence[Any]) -> Any:
    """One tree that says what all of these do."""
    return reduce(merge, trees) if trees else "nothing"


def merge(one: Any, other: Any) -> Any:
    """One tree for two."""
    if one == other:
        return one
    if isinstance(one, dict) and isinstance(other, dict):
        return merge_objects(one, other)
    if isinstance(one, list) and isinstance(other, list):
        return [merged([*one, *other])]
    alternatives = {json.dumps(part): part for side in (one, other) for part in alternatives_of(side)}
    return {"one of": [alternatives[text] for text in sorted(alternatives)]}


def alternatives_of(side: Any) -> list[Any]:
    """What it may be."""
    return list(side["one of"]) if isinstance(side, dict) and list(side) == ["one of"] else [side]


def merge_objects(one: Mapping[str, Any], other: Mapping[str, Any]) -> Any:
    """One object for two; what only one has is optional."""
    if list(one) == ["one of"] or list(other) == ["one of"]:
        parts = {json.dumps(part): part for side in (one, other) for part in alternatives_of(side)}
        return {"one of": [parts[text] for text in sorted(parts)]}
    found = {}
    for name in sorted({key.rstrip("?") for key in (*one, *other)}):
        there = [side[key] for side in (one, other) for key in (name, f"{name}?") if key in side]
        always = name in one and name in other
        found[name if always else f"{name}?"] = merged(there)
    return found


def alike(old: Any, new: Any) -> Any:
    """``new`` with what depends on the machine as it is in ``old``: figures that are missing, and empty lists."""
    if "null" in (old, new) or [] in (old, new):
        kinds = (dict, list) if [] in (old, new) else (str, dict, list)
        return old if isinstance(old, kinds) and isinstance(new, kinds) else new
    if isinstance(old, dict) and isinstance(new, dict):
        return {key: alike(old[key], part) if key in old else part for key, part in new.items()}
    if isinstance(old, list) and isinstance(new, list):
        return [alike(*pair) for pair in zip(old, new, strict=False)]
    return new
