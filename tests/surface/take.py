#!/usr/bin/env python3
"""A snapshot of what others build on: names, commands, options, exit codes, JSON keys, settings, metrics and files.

    python tests/surface/take.py             writes snapshot.json anew
    python tests/surface/take.py --server    and what those print that reach a server or a Ray, in two minutes

tests/unit/test_surface.py and its fellows compare the code with it. Take it again only when the public surface is
changed on purpose, and read the difference line by line before it is committed: each line is something that somebody's
script, dashboard or archive may rest on. Wording is not in it.

``old/`` holds files that an older version wrote (old/README.md). They are never made anew: a new version has to read
them as they are.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))

from tests.surface import commands, names, outputs, parts  # noqa: E402 - found by the line above

SNAPSHOT = HERE / "snapshot.json"
SCHEMA = 1

QUICK: dict[str, Callable[[], Any]] = {
    "names": names.public_names,
    "entry_points": names.all_entry_points,
    "commands": commands.all_commands,
    "settings": parts.settings,
    "tasks": parts.tasks,
    "errors": parts.errors,
    "worker": parts.worker,
    "literals": parts.literals,
    "metrics_file": parts.metrics_file,
    "dashboards": parts.dashboards,
    "lint_rules": parts.lint_rules,
}
"""Sections that take a moment each."""

IN_A_FOLDER: dict[str, Callable[[Path], Any]] = {"exit_codes": outputs.exit_codes, "json": outputs.offline}
"""Sections that run commands in a folder of their own."""


def plain(value: Any) -> Any:
    """As it is in the file."""
    return json.loads(json.dumps(value))


def read() -> dict[str, Any]:
    """The snapshot."""
    found: dict[str, Any] = json.loads(SNAPSHOT.read_text(encoding="utf-8"))
    assert found["schema"] == SCHEMA
    return found


def differences(old: Any, new: Any, where: str = "") -> list[str]:
    """What is not as it was, a line each."""
    if isinstance(old, dict) and isinstance(new, dict):
        gone = [f"gone: {where}{key} (was {short(old[key])})" for key in sorted(old.keys() - new.keys())]
        come = [f"new: {where}{key} (is {short(new[key])})" for key in sorted(new.keys() - old.keys())]
        both = sorted(old.keys() & new.keys())
        return [*gone, *come, *(line for key in both for line in differences(old[key], new[key], f"{where}{key} → "))]
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        pairs = enumerate(zip(old, new, strict=True))
        return [line for place, pair in pairs for line in differences(*pair, f"{where}[{place}] → ")]
    if isinstance(old, list) and isinstance(new, list):
        gone = [f"gone: {where}{short(part)}" for part in old if part not in new]
        return [*gone, *(f"new: {where}{short(part)}" for part in new if part not in old)] or [f"order: {where}"]
    return [] if old == new else [f"changed: {where}{short(old)} → {short(new)}"]


def short(value: Any) -> str:
    """A value in a line."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 120 else f"{text[:117]}..."


def main() -> None:
    """Write the snapshot."""
    parser = argparse.ArgumentParser(description="Take the snapshot of the public surface anew.")
    parser.add_argument("--server", action="store_true", help="start a server and a Ray for the commands that need one")
    asked = parser.parse_args()
    os.environ |= {"HF_HUB_OFFLINE": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    found: dict[str, Any] = {"schema": SCHEMA}
    with tempfile.TemporaryDirectory(prefix="tsbatch-surface-") as scratch:
        os.environ["TSBATCH_STATE_DIR"] = str(Path(scratch, "state"))
        found |= {name: section() for name, section in QUICK.items()}
        found["imports"] = names.imports_in_the_documentation()
        for name, section in IN_A_FOLDER.items():
            found[name] = section(Path(scratch, name))
        if asked.server:
            from tests.surface import on_server

            found["json_server"] = on_server.outputs_of_server(Path(scratch, "server"))
            found["json_ray"] = on_server.outputs_of_ray(Path(scratch, "ray"))
        elif SNAPSHOT.exists():
            found |= {name: part for name, part in read().items() if name in ("json_server", "json_ray")}
    SNAPSHOT.write_text(json.dumps(found, indent=1, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"written: {SNAPSHOT.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
