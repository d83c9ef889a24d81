"""Shared parts of the benchmarks' reports: the machine, Markdown tables, targets, output and exit code."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from _ratios import Spread

Say = Callable[[str], None]
Rows = Sequence[Mapping[str, Any]]


def machine() -> dict[str, Any]:
    """Describe the machine and the versions behind the figures."""
    import torch
    import transformers

    from tsbatch.worker.resources import usable_cores

    return {
        "cpu": _cpu_name(),
        "cores": usable_cores(),
        "load": os.getloadavg() if hasattr(os, "getloadavg") else None,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


def _cpu_name() -> str:
    """Read the CPU's name on Linux, with the vector instructions that determine the speed of matrix products."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor() or platform.machine()
    facts = dict(line.replace("\t", "").split(":", 1) for line in text.splitlines() if ":" in line)
    vector = next((name for name in ("amx_tile", "avx512f", "avx2") if name in facts.get("flags", "")), "no AVX2")
    return f"{facts.get('model name', platform.machine()).strip()}, {vector}"


END: Final = "<!-- end -->"


def into(page: str, text: str, begin: str) -> str:
    """Replace what the page contains between ``begin`` and :data:`END` by ``text``.

    Raises:
        SystemExit: the page has no such lines.
    """
    before, found, rest = page.partition(begin)
    _, end, after = rest.partition(END)
    if not found or not end:
        raise SystemExit(f"the page has no lines {begin} and {END}; add them where the tables belong")
    return f"{before}{begin}\n{text}\n{end}{after}"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Render a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


@dataclass(frozen=True, slots=True)
class Target:
    """A required bound and the measured value.

    Attributes:
        what: the description.
        wanted: the bound.
        measured: the measurements; their median is compared with the bound.
        below: True if ``wanted`` is an upper bound, False if it is a lower bound.
    """

    what: str
    wanted: float
    measured: Spread
    below: bool = False

    @property
    def met(self) -> bool:
        """True if the median meets the bound."""
        return self.measured.median <= self.wanted if self.below else self.measured.median >= self.wanted

    def cells(self) -> list[str]:
        """Render as a row of :func:`targets`."""
        digits = 2 if self.wanted >= 0.1 else 4
        return [self.what, f"{'≤' if self.below else '≥'} {self.wanted:.{digits}f}", self.measured.text(digits)]


def targets(wanted: Sequence[Target]) -> str:
    """Render a Markdown table of targets."""
    return table(["comparison", "target", "measured"], [one.cells() for one in wanted])


def options(description: str) -> argparse.ArgumentParser:
    """Create a parser with the options shared by all benchmarks that have a page in the docs."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else to standard output")
    parser.add_argument("--save", type=Path, metavar="FILE", help="write all figures to FILE")
    parser.add_argument(
        "--from", type=Path, metavar="FILE", dest="source", help="show a --save file instead of measuring"
    )
    parser.add_argument("--write", action="store_true", help="write the tables into the docs")
    return parser


def progress() -> Say:
    """Create a function that prints progress messages to stderr, with the seconds elapsed since this call."""
    started = time.monotonic()

    def say(message: str) -> None:
        print(f"{time.monotonic() - started:5.0f} s  {message}", file=sys.stderr, flush=True)

    return say


def figures_of(chosen: argparse.Namespace, measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Measure, or read the figures from the ``--from`` file; write them to the ``--save`` file if there is one."""
    figures: dict[str, Any] = json.loads(chosen.source.read_text(encoding="utf-8")) if chosen.source else measure()
    if chosen.save:
        chosen.save.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    return figures


def deliver(
    chosen: argparse.Namespace, figures: Mapping[str, Any], text: str, page: Path, begin: str, wanted: Sequence[Target]
) -> int:
    """Print the figures and write them into the docs as the options in ``chosen`` require.

    Returns:
        The exit code, see :func:`finish`.
    """
    if chosen.write:
        page.write_text(into(page.read_text(encoding="utf-8"), text, begin), encoding="utf-8")
    missed = [one.cells() for one in wanted if not one.met]
    lines = [f"{what}: target {bound}, measured {measured}" for what, bound, measured in missed]
    return finish(chosen, figures, text, lines)


def finish(chosen: argparse.Namespace, figures: Mapping[str, Any], text: str, missed: Sequence[str] = ()) -> int:
    """Print the figures, as JSON with ``--json`` and as ``text`` otherwise, and the missed targets to stderr.

    Returns:
        The exit code: 1 if a target was missed, otherwise 0.
    """
    print(json.dumps(figures) if chosen.json else text)
    for line in missed:
        print(f"missed: {line}", file=sys.stderr)
    return 1 if missed else 0
