"""Check that an archive that contains tsbatch (``tsbatch package --bundle``) was made for this Python."""

from __future__ import annotations

import importlib.util
import platform
import sys
from collections.abc import Sequence

from tsbatch.errors import LoadError

NAME = "tsbatch/_bundled_for.py"
"""The marker file in an archive with a bundle."""


def text(names: Sequence[str]) -> bytes:
    """Return the content of that file: this Python and platform, and the names of the bundle at the archive's root."""
    return f"MADE_FOR = {python_and_platform()!r}\nNAMES = {tuple(names)!r}\n".encode("ascii")


def python_and_platform() -> str:
    """Return this Python and platform, e.g. ``cpython-3.11 linux x86_64``."""
    version = f"{sys.implementation.name}-{sys.version_info[0]}.{sys.version_info[1]}"
    return f"{version} {sys.platform} {platform.machine()}"


def check() -> None:
    """Check the bundle when tsbatch is imported from it; its compiled parts would fail later with a worse message.

    Raises:
        LoadError: the bundle was made for another Python or platform.
    """
    made_for = importlib.import_module("tsbatch._bundled_for").MADE_FOR
    here = python_and_platform()
    if made_for != here:
        raise LoadError(
            f"the archive contains tsbatch for {made_for}, but this worker is {here}; package it there with --bundle, "
            "or package it without --bundle and install tsbatch here"
        )
