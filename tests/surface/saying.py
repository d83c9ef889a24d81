"""A command, run in this process, and what it said."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Said:
    """What a command left.

    Attributes:
        code: its exit code.
        out, err: what it wrote.
    """

    code: int
    out: str
    err: str


def said(main: Callable[[list[str]], int], words: Sequence[object]) -> Said:
    """Run a command."""
    # Not StringIO: commands write bytes too.
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main([str(word) for word in words])
    return Said(code, *(stream.buffer.getvalue().decode() for stream in (out, err)))  # type: ignore[attr-defined]
