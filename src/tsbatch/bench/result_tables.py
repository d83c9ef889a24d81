"""Tables of a load test, shown on the terminal and in the HTML report, each with its own number of digits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from tsbatch.bench.result_file import BenchResult, Run

MEGABYTE: Final = 10**6


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows of cells; None is shown as a dash.

    Attributes:
        title: its heading.
        columns: the column headings.
        rows: the cells, row by row.
        note: an explanation of the table.
        folded: whether it is shown only on demand.
    """

    kind: ClassVar[str] = "table"
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    note: str = ""
    folded: bool = False

    @classmethod
    def of(cls, title: str, records: Sequence[Mapping[str, object]], note: str = "") -> Table:
        """Make a table of records with the same keys, which become the columns."""
        return cls(title=title, columns=[*records[0]], rows=[[*one.values()] for one in records], note=note)


def number(value: float | None) -> str | None:
    """Return a number with about three significant digits."""
    if value is None:
        return None
    return f"{value:.2f}" if abs(value) < 100 else f"{value:.1f}" if abs(value) < 1000 else f"{value:.0f}"


def interval(low: float | None, high: float | None, text: Callable[[float], str | None] = number) -> str | None:
    """Return an interval as text; None if it is unknown."""
    return None if low is None or high is None else f"{text(low)} to {text(high)}"


def target_name(target: Mapping[str, Any]) -> str:
    """Name and version of the model, or else the address."""
    return f"{target['model']} {target['version'] or ''}".strip() if target["model"] else target["address"]


def notes(summary: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the remarks of all steps."""
    return [
        f"step {step['step']:g}: {remark}" if len(summary) > 1 else remark
        for step in summary
        for remark in step["remarks"]
    ]


def figures(step: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield name and estimate of a step's rates and latencies."""
    yield "requests/s", step["rate"]
    if step["items_rate"] != step["rate"]:
        yield "items/s", step["items_rate"]
    if goodput := step["goodput"]:
        yield f"goodput/s (<= {goodput['limit']:g} ms: {goodput['share']['value']:.2%})", goodput["rate"]
    for name, estimate in step["latency"].items():
        yield f"{name} ms", estimate


def rates_and_latencies(result: BenchResult) -> Table:
    """The figures of every step with their intervals."""
    return Table(
        title="Rate and latency",
        columns=["step", "figure", "value", "interval", "runs"],
        rows=[
            [step["step"], name, one["value"], interval(one["low"], one["high"], "{:.4g}".format), step["runs"]]
            for step in result.summary
            for name, one in figures(step)
        ],
        note="95 % intervals: of a single run they cover the variation within it, of several runs also that between"
        " runs.",
    )


def batch_sizes(batch: Mapping[str, Any]) -> Table:
    """Number of requests and batches by batch size."""
    total = sum(size["batches"] for size in batch["sizes"])
    records = [
        {**size, "batches": round(size["batches"]), "share": f"{size['batches'] / total:.1%}"}
        for size in batch["sizes"]
    ]
    return Table.of("Batch sizes", records)


def processes(runs: Sequence[Run]) -> Table | None:
    """Resource usage of the server's processes; None if none was watched."""
    watched = [(index, one) for index, run in enumerate(runs, 1) for one in run.workers]
    on_gpus = [sum(one.get("memory_gpus", {}).values()) for _, one in watched]
    records = [
        {
            **({"run": index} if len(runs) > 1 else {}),
            "process": one["name"],
            "pid": one["pid"],
            "cores": one["cpu"],
            "memory MB": _megabytes(one["memory_rss"]),
            "private MB": _megabytes(one["memory_private"]),
            **({"GPU MB": _megabytes(gpu_memory)} if any(on_gpus) else {}),
        }
        for (index, one), gpu_memory in zip(watched, on_gpus, strict=True)
    ]
    return Table.of("Processes of the server", records) if records else None


def _megabytes(size: int | None) -> int | None:
    return None if size is None else round(size / MEGABYTE)


def failures(runs: Sequence[Run]) -> Table | None:
    """Failed requests by status and reason; None without any."""
    counts: Counter[tuple[object, str]] = Counter()
    for error in (error for run in runs for error in run.errors):
        counts[error["status"] or "none", error["reason"]] += error["count"]
    rows = [[*kind, count] for kind, count in counts.items()]
    return Table(title="Failed requests", columns=["status", "reason", "count"], rows=rows) if rows else None
