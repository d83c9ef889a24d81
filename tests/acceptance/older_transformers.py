"""The environment of the tests that also run with transformers 4.57."""

from __future__ import annotations

import hashlib
import os
import site
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
VENV = ROOT / ".venv-457"
VERSIONS = ROOT / "constraints-transformers-4.57.txt"


def environment() -> Path:
    """The Python of an environment that differs from this one in transformers and what goes with it alone.

    It is made when it is not there or was made for something else: a folder of its own for the few packages of
    :data:`VERSIONS`, everything else comes from this environment.

    Raises:
        subprocess.CalledProcessError: pip failed; its own output says why.
    """
    python = VENV / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    stamp, key = VENV / "stamp", _key()
    if not (python.exists() and stamp.is_file() and stamp.read_text(encoding="utf-8") == key):
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(VENV)], check=True)
        asked = [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
        own = Path(subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip())
        # A plain line with the folder would not run the .pth files in it, and this project is installed by one.
        below = "".join(f"import site; site.addsitedir({folder!r})\n" for folder in site.getsitepackages())
        (own / "zz_everything_else.pth").write_text(below, encoding="utf-8")
        pip = [str(python), "-m", "pip", "install", "--disable-pip-version-check", "--no-deps", "-q"]
        subprocess.run([*pip, "-r", str(VERSIONS)], check=True)
        stamp.write_text(key, encoding="utf-8")
    return python


def _key() -> str:
    said = f"{sys.version} {sys.prefix} {VERSIONS.read_text(encoding='utf-8')}"
    return hashlib.sha256(said.encode()).hexdigest()
