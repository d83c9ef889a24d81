"""Print a diagnosis on the terminal."""

from __future__ import annotations

from tsbatch.diagnosis.diagnosis import Diagnosis
from tsbatch.diagnosis.explanation import next_step, reasons
from tsbatch.diagnosis.latency_breakdown import Part, Window
from tsbatch.system.console import table

COLUMNS = ("part", "mean ms", "share %", "P50", "P99", "slowest 1 %")
TIME_COLUMNS = ("from s", "requests/s", "queue", "assembly", "handler", "outside", "P99", "failed %")


def show(diagnosis: Diagnosis) -> None:
    """Print headline, latency breakdown, evidence, and the next change."""
    finding, split = diagnosis.finding, diagnosis.split
    print(f"{diagnosis.known.name}: {finding.regime}. {finding.headline}\n")
    parts = [*(_row(part.name, part) for part in split.parts), *(_row(f"  {part.name}", part) for part in split.stages)]
    table(COLUMNS, parts, title="Where the time goes")
    if split.windows:
        print()
        table(TIME_COLUMNS, [_window(one) for one in split.windows], title="Over time (means in ms)")
    for words in (*reasons(diagnosis), *next_step(diagnosis)):
        print("\n  ".join([f"\n{words.title}", *words.lines]))
        for line in words.code.splitlines():
            print(f"    {line}".rstrip())


def _row(name: str, part: Part) -> list[object]:
    figures = (None if value is None else f"{value:.1f}" for value in (part.p50, part.p99, part.slowest))
    return [name, f"{part.mean:.1f}", f"{100 * part.share:.0f}", *figures]


def _window(one: Window) -> list[object]:
    means = (f"{value:.0f}" for value in (one.queue, one.assembly, one.handler, one.outside, one.p99))
    return [f"{one.begin:.0f}", f"{one.rate:.1f}", *means, f"{100 * one.failed:.0f}"]
