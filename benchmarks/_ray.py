"""Deploy an archive to a Ray cluster on this machine as a user would: with ``tsbatch ray deploy --local``."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tsbatch.system.ports import free_ports
from tsbatch.system.processes import end_marked
from tsbatch.system.signals import end_on_signals

NAME: Final = "model"
PATH: Final = f"/predictions/{NAME}"
MODULE: Final = (sys.executable, "-m", "tsbatch", "ray")


@dataclass(frozen=True, slots=True)
class Deployed:
    """A deployed application.

    Attributes:
        address: host and port, for example ``127.0.0.1:8000``.
        description: the JSON object that the command printed.
        environment: environment variables for further commands.
    """

    address: str
    description: dict[str, Any]
    environment: dict[str, str]

    def deploy(self, archive: Path, *words: str) -> None:
        """Deploy it again with other settings."""
        _deploy(archive, self.address.partition(":")[2], words, self.environment)


@contextmanager
def on_ray(archive: Path, *words: str) -> Iterator[Deployed]:
    """Deploy the archive to its own Ray cluster, with further options of ``ray deploy``; stop both after the block."""
    with end_on_signals(), tempfile.TemporaryDirectory(prefix="tsbatch-ray-") as folder:
        environment = {**os.environ, "TSBATCH_STATE_DIR": folder, "HF_HUB_OFFLINE": "1"}
        environment.pop("RAY_ADDRESS", None)
        port = str(free_ports(1)[0])
        try:
            yield Deployed(f"127.0.0.1:{port}", _deploy(archive, port, words, environment), environment)
        finally:
            state = _state(Path(folder))
            subprocess.run([*MODULE, "undeploy", NAME], env=environment, check=False, capture_output=True)
            _end_leftovers(state)


def _state(folder: Path) -> dict[str, Any]:
    """Read what ``--local`` recorded about the Ray cluster that it started."""
    with suppress(FileNotFoundError):
        found: dict[str, Any] = json.loads((folder / "ray" / "local.json").read_text(encoding="utf-8"))
        return found
    return {}


def _end_leftovers(state: dict[str, Any]) -> None:
    """Stop what undeploy could not: a cluster whose deployment failed or whose command was killed."""
    if work_dir := state.get("work_dir"):
        end_marked(work_dir)
        shutil.rmtree(work_dir, ignore_errors=True)


def _deploy(archive: Path, port: str, words: Sequence[str], environment: dict[str, str]) -> dict[str, Any]:
    command = [*MODULE, "deploy", str(archive), "--name", NAME, "--local", "--port", port, "--json", *words]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
    description: dict[str, Any] = json.loads(done.stdout)
    return description
