"""The command line: parsing, printing, exit codes."""

from __future__ import annotations

from tsbatch.cli.program import main

__all__ = ["main"]
