"""For archives that bring tsbatch along (``tsbatch package --bundle``): whether they were made for this Python."""

from __future__ import annotations

import importlib.util
import platform
import sys
from collections.abc import Sequence

from tsbatch.errors import LoadError

NAME = "tsbatch/_bundled_for.py"
"""The file, in an archive with a bundle."""


def text(names: Sequence[str]) -> bytes:
    """What that file holds: this Python and platform, and the bundle's names at the archive's root."""
    return f"MADE_FOR = {python_and_platform()!r}\nNAMES = {tuple(names)!r}\n".encode("ascii")


def python_and_platform() -> str:
    """This Python and platform: ``cpython-3.11 linux x86_64``."""
    version = f"{sys.implementation.name}-{sys.version_info[0]}.{sys.version_info[1]}"
    return f"{version} {sys.platform} {platform.machine()}"


def check() -> None:
    """Called when tsbatch is imported from a bundle; its compiled parts would fail later and say less.

    Raises:
        LoadError: the bundle was made for another Python or platform.
    """
    made_for = importlib.import_module("tsbatch._bundled_for").MADE_FOR
    here = python_and_platform()
    if made_for != here:
        raise LoadError(
            f"the archive brings tsbatch along for {made_for}, and this worker is {here}; pack it there with --bundle, "
            "or without it and install tsbatch here"
        )
