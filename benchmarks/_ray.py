"""An archive on a Ray of this machine, deployed as a person would: with ``tsbatch ray deploy --local``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tsbatch.ops.ports import free_ports

NAME: Final = "model"
PATH: Final = f"/predictions/{NAME}"
MODULE: Final = (sys.executable, "-m", "tsbatch", "ray")


@dataclass(frozen=True, slots=True)
class Deployed:
    """What answers.

    Attributes:
        address: as ``127.0.0.1:8000``.
        told: what the command said of it.
        environment: of further commands.
    """

    address: str
    told: dict[str, Any]
    environment: dict[str, str]

    def deploy(self, archive: Path, *words: str) -> None:
        """Deploy it again, in other settings."""
        _deploy(archive, self.address.partition(":")[2], words, self.environment)


@contextmanager
def on_ray(archive: Path, *words: str) -> Iterator[Deployed]:
    """The archive on a Ray that is started for it, with further options of ``ray deploy``; both end with the block."""
    with tempfile.TemporaryDirectory(prefix="tsbatch-ray-") as folder:
        environment = {**os.environ, "TSBATCH_STATE_DIR": folder, "HF_HUB_OFFLINE": "1"}
        port = str(free_ports(1)[0])
        try:
            yield Deployed(f"127.0.0.1:{port}", _deploy(archive, port, words, environment), environment)
        finally:
            subprocess.run([*MODULE, "undeploy", NAME], env=environment, check=False, capture_output=True)


def _deploy(archive: Path, port: str, words: Sequence[str], environment: dict[str, str]) -> dict[str, Any]:
    command = [*MODULE, "deploy", str(archive), "--name", NAME, "--local", "--port", port, "--json", *words]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
    told: dict[str, Any] = json.loads(done.stdout)
    return told
