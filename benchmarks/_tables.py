"""What the benchmarks' reports have in common: the machine, Markdown tables, targets, and the program's end."""

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
    """Where the figures come from."""
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
    """As Linux tells it, with the vector instructions that decide the speed of a matrix product."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor() or platform.machine()
    facts = dict(line.replace("\t", "").split(":", 1) for line in text.splitlines() if ":" in line)
    vector = next((name for name in ("amx_tile", "avx512f", "avx2") if name in facts.get("flags", "")), "no AVX2")
    return f"{facts.get('model name', platform.machine()).strip()}, {vector}"


END: Final = "<!-- end -->"


def into(page: str, text: str, begin: str) -> str:
    """The page with ``text`` in place of what stood between ``begin`` and :data:`END`.

    Raises:
        SystemExit: the page has no such lines.
    """
    before, found, rest = page.partition(begin)
    _, end, after = rest.partition(END)
    if not found or not end:
        raise SystemExit(f"the page has no lines {begin} and {END}")
    return f"{before}{begin}\n{text}\n{end}{after}"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


@dataclass(frozen=True, slots=True)
class Target:
    """A figure that was wanted, and what was measured.

    Attributes:
        what: in words.
        wanted: the bound.
        measured: its median is what counts.
        below: whether it shall be at most ``wanted``; at least otherwise.
    """

    what: str
    wanted: float
    measured: Spread
    below: bool = False

    @property
    def met(self) -> bool:
        """Whether the median keeps the bound."""
        return self.measured.median <= self.wanted if self.below else self.measured.median >= self.wanted

    def cells(self) -> list[str]:
        """As a row of :func:`targets`."""
        digits = 2 if self.wanted >= 0.1 else 4
        return [self.what, f"{'≤' if self.below else '≥'} {self.wanted:.{digits}f}", self.measured.text(digits)]


def targets(wanted: Sequence[Target]) -> str:
    """A Markdown table of targets."""
    return table(["against", "wanted", "measured"], [one.cells() for one in wanted])


def options(description: str) -> argparse.ArgumentParser:
    """The options that every benchmark with a page in the docs has."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output, nothing else")
    parser.add_argument("--save", type=Path, metavar="FILE", help="write every figure there")
    parser.add_argument("--from", type=Path, metavar="FILE", dest="source", help="measure nothing, show a --save file")
    parser.add_argument("--write", action="store_true", help="put the tables into the docs")
    return parser


def teller() -> Say:
    """Says on stderr what happens, with the seconds since now."""
    started = time.monotonic()

    def say(message: str) -> None:
        print(f"{time.monotonic() - started:5.0f} s  {message}", file=sys.stderr, flush=True)

    return say


def figures_of(chosen: argparse.Namespace, measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What is measured now, or what ``--from`` names; saved where ``--save`` says."""
    figures: dict[str, Any] = json.loads(chosen.source.read_text(encoding="utf-8")) if chosen.source else measure()
    if chosen.save:
        chosen.save.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    return figures


def deliver(
    chosen: argparse.Namespace, figures: Mapping[str, Any], text: str, page: Path, begin: str, wanted: Sequence[Target]
) -> int:
    """Print the figures and put them into the docs as ``chosen`` says.

    Returns:
        The exit code: 1 when a target is missed, which stderr names.
    """
    print(json.dumps(figures) if chosen.json else text)
    if chosen.write:
        page.write_text(into(page.read_text(encoding="utf-8"), text, begin), encoding="utf-8")
    missed = [one for one in wanted if not one.met]
    for one in missed:
        print(
            f"missed: {': '.join(one.cells()[:1])}: wanted {one.cells()[1]}, measured {one.cells()[2]}", file=sys.stderr
        )
    return 1 if missed else 0
