"""What the commands of a running server, or a Ray, print with ``--json``; commands start and stop it too."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.surface import outputs
from tests.surface.commands import main
from tests.surface.saying import said

NAME = ("--name", "surface")
BENCH = ("bench", "rows", "--data", "rows.jsonl", "--warm-up", "0", *NAME)
TUNE = ("tune", "waiting.mar", "--data", "numbers.jsonl", "--concurrency", "8", "--duration", "1", "--warm-up", "0")

START: Mapping[str, Sequence[str]] = {
    "serve --detach": ("serve", "rows.mar", "waiting.mar", "--detach", "--log-dir", "logs-now", *NAME),
}
COMMANDS: Mapping[str, Sequence[str]] = {
    "models": ("models", *NAME),
    "models, one": ("models", "rows", *NAME),
    "bench": (*BENCH, "--requests", "20", "--concurrency", "2", "--output", "now.json"),
    "bench, rate": (*BENCH, "--rate", "50", "--duration", "1", "--limit", "100", "--repeat", "2"),
    "diagnose": ("diagnose", "--model", "rows", *NAME),
    "top": ("top", "--once", "--seconds", "0.5", *NAME),
    "register": ("register", "doubling.mar", *NAME),
    "unregister": ("unregister", "doubling", *NAME),
    "scale": ("scale", "waiting", "--workers", "2", *NAME),
    "reconfigure": ("reconfigure", "rows", "--max-batch-delay", "5", *NAME),
    "tune --restore": ("tune", "--restore", *NAME),
    "models, after that": ("models", "waiting", *NAME),
}
TUNING: Mapping[str, Sequence[str]] = {
    "tune --offline": (*TUNE, "--output", "offline", "--offline"),
    "tune": (*TUNE, "--budget", "16", "--output", "tuning"),
}
"""Both go on with the journal of an older version, which has all their runs."""
STOP: Mapping[str, Sequence[str]] = {"stop": ("stop", *NAME)}


def told_by_server(folder: Path) -> dict[str, Any]:
    """What each command prints."""
    found: dict[str, Any] = {}
    with outputs.folder_of_old_files(folder):
        try:
            found |= each(START)
            interrupted_tuning(Path(os.environ["TSBATCH_STATE_DIR"]))
            found |= each(COMMANDS)
        finally:
            found |= each(STOP)
        for name in ("offline", "tuning"):
            Path(name).mkdir()
            Path(name, "journal.jsonl").write_bytes((outputs.OLD / "journal.jsonl").read_bytes())
        found |= each(TUNING)
        found["files of tune"] = outputs.files_in(Path("tuning"))
    return found


def each(commands: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """What these print."""
    found = {}
    for name, words in commands.items():
        done = said(main(), [*words, "--json"])
        assert done.code == 0, f"tsbatch {' '.join(words)}: exit code {done.code}: {done.err}"
        found[name] = json.loads(done.out)
    return found


def interrupted_tuning(state: Path) -> None:
    """What a tuner of an older version left when it was killed, as if it had been this server's."""
    left = json.loads((outputs.OLD / "server.tuning").read_text(encoding="utf-8"))
    left["server"] = json.loads((state / "surface.json").read_text(encoding="utf-8"))["process"]
    (state / "surface.tuning").write_text(json.dumps(left), encoding="utf-8")


RAY: Mapping[str, Sequence[str]] = {
    "ray deploy": ("ray", "deploy", "rows.mar", "--local"),
    "ray status": ("ray", "status"),
    "ray undeploy": ("ray", "undeploy", "rows"),
}


def told_by_ray(folder: Path) -> dict[str, Any]:
    """What the commands print that reach Ray, each in a process of its own, as Ray wants it."""
    with outputs.folder_of_old_files(folder), socket.socket() as chosen:
        chosen.bind(("127.0.0.1", 0))
        port = str(chosen.getsockname()[1])
        chosen.close()
        try:
            return {
                name: as_process([*words, *(["--port", port] if "deploy" in words else [])])
                for name, words in RAY.items()
            }
        except BaseException:
            as_process(RAY["ray undeploy"], check=False)
            raise


def as_process(words: Sequence[str], *, check: bool = True) -> Any:
    """What a command prints."""
    command = [sys.executable, "-m", "tsbatch", *words, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    assert not check or done.returncode == 0, f"tsbatch {' '.join(words)}: exit code {done.returncode}: {done.stderr}"
    return json.loads(done.stdout) if check else None


def trees(told: Mapping[str, Any]) -> dict[str, Any]:
    """The keys and types of all that."""
    return {name: value if name.startswith("files of") else outputs.tree(value) for name, value in told.items()}


def outputs_of_server(folder: Path) -> dict[str, Any]:
    """The section ``json_server``."""
    return trees(told_by_server(folder))


def outputs_of_ray(folder: Path) -> dict[str, Any]:
    """The section ``json_ray``."""
    return trees(told_by_ray(folder))
