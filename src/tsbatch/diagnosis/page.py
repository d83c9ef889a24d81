"""A diagnosis as a person reads it."""

from __future__ import annotations

from collections.abc import Sequence

from tsbatch.diagnosis.diagnosis import Diagnosis
from tsbatch.diagnosis.latency_breakdown import Part, Window
from tsbatch.system.console import table

COLUMNS = ("part", "mean ms", "share %", "P50", "P99", "slowest 1 %")
TIME_COLUMNS = ("from s", "requests/s", "queue", "assembly", "handler", "outside", "P99", "failed %")


def show(diagnosis: Diagnosis) -> None:
    """Print it: headline, split, evidence, the next change, what would prove it wrong, what to leave alone."""
    known, finding = diagnosis.known, diagnosis.finding
    who = f"{known.model} {known.version}".strip() or "the model"
    print(f"{who}: {finding.regime}. {finding.headline}\n")
    parts = [*diagnosis.split.parts, *(part for part in diagnosis.split.stages)]
    table(COLUMNS, [_row(part, diagnosis.split.stages) for part in parts], title="Where the time goes")
    if diagnosis.split.windows:
        print()
        table(TIME_COLUMNS, [_window(one) for one in diagnosis.split.windows], title="Over time (means in ms)")
    _list("Evidence", finding.evidence)
    _list("Mind", diagnosis.traps)
    _next(diagnosis)
    _list("About these figures", diagnosis.remarks)


def _next(diagnosis: Diagnosis) -> None:
    advice = diagnosis.advice
    print(f"\nNext single change: {advice.change or 'none'}\n  {advice.why}")
    if advice.change is not None:
        command = advice.change.command(diagnosis.known.model or "MODEL", diagnosis.known.engine)
        if command:
            print(f"    {command}")
        print("  or in model-config.yaml:")
        for line in advice.change.yaml().splitlines():
            print(f"    {line}")
    print(f"What would prove it wrong\n  {advice.disproof}")
    _list("What not to touch meanwhile", advice.leave, gap="")


def _list(title: str, lines: Sequence[str], gap: str = "\n") -> None:
    if lines:
        print(f"{gap}{title}")
        for line in lines:
            print(f"  {line}")


def _row(part: Part, stages: Sequence[Part]) -> list[object]:
    name = f"  {part.name}" if part in stages else part.name
    figures = (None if value is None else f"{value:.1f}" for value in (part.p50, part.p99, part.slowest))
    return [name, f"{part.mean:.1f}", f"{100 * part.share:.0f}", *figures]


def _window(one: Window) -> list[object]:
    means = (f"{value:.0f}" for value in (one.queue, one.assembly, one.handler, one.outside, one.p99))
    return [f"{one.begin:.0f}", f"{one.rate:.1f}", *means, f"{100 * one.failed:.0f}"]
