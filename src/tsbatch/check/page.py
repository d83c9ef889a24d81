"""Print the report of a check, the verdict first."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping

from tsbatch.check.findings import Failure, Phase, Report
from tsbatch.system.console import table

MEGABYTE = 10**6
MAX_SAMPLES = 10


def show(report: Report) -> None:
    """Print the report on stdout."""
    if report.failure is not None:
        _print(_failed(report, report.failure))
        _show_phases(report.phases)
        return
    _print([_verdict(report), *(f"  finding: {finding}" for finding in report.findings)])
    _show_phases(report.phases)
    _print(["", *_memory(report), *_advice(report)])
    if report.service:
        _print([""])
        _show_service(report.service)
    _print(["", *_answers(report)])


def _failed(report: Report, failure: Failure) -> Iterator[str]:
    yield failure.cause
    if failure.remedy:
        yield f"remedy: {failure.remedy}"
    yield f"{report.name} ({report.archive}) does not load; it failed in the phase {failure.phase or 'python'}"
    if failure.traceback:
        yield ""
        yield from (f"  {line}" for line in failure.traceback)
    yield ""


def _verdict(report: Report) -> str:
    number = len(report.findings)
    what = "no findings" if not number else f"{number} finding{'s' * (number > 1)}"
    version = f" {report.version}" if report.version else ""
    return (
        f"{report.name}{version} loads in {report.load_seconds:.1f} s, peak {_megabytes(report.peak)} MB; {what} "
        f"({report.about['handler']}, batches of up to {report.about['batch_size']})"
    )


def _show_phases(phases: Iterable[Phase]) -> None:
    rows = [
        [phase.name, f"{phase.seconds:.2f}", _megabytes(phase.resident), _megabytes(phase.peak)] for phase in phases
    ]
    if rows:
        table(["phase", "s", "MB at the end", "peak MB"], rows)


def _memory(report: Report) -> Iterator[str]:
    for which, memory in zip(("worker", "second worker"), report.memory, strict=False):
        yield f"{which}: {_megabytes(memory.private)} MB private, {_megabytes(memory.shared)} MB shared"
    for which, gpu in zip(("worker", "second worker"), report.gpu, strict=False):
        yield (
            f"GPU after the {which}: {_megabytes(gpu['free'])} of {_megabytes(gpu['total'])} MB free, "
            f"{_megabytes(gpu['reserved'])} MB held by its tensors"
        )


def _advice(report: Report) -> Iterator[str]:
    advice = {
        "startupTimeout:": report.startup_timeout,
        "responseTimeout:": report.response_timeout,
        "workers: up to": report.workers,
    }
    yield from (f"{what} {each.value}  ({each.reason})" for what, each in advice.items() if each is not None)
    yield from (f"note: {note}" for note in report.notes)


def _show_service(service: Iterable[Mapping[str, float]]) -> None:
    rows = [
        [row["batch"], f"{1000 * row['seconds']:.1f}", f"{1000 * row['slowest']:.1f}", f"{1000 * row['per_item']:.2f}"]
        for row in service
    ]
    table(["batch", "ms", "slowest ms", "ms per item"], rows)


def _answers(report: Report) -> Iterator[str]:
    if report.invariance:
        yield f"batch invariance: {_verdict_of(report.invariance)} ({report.invariance['compared']} requests compared)"
    for result in report.isolation:
        got = f" (it got {result['status']})" if result["status"] is not None else ""
        yield f"isolation, {result['broken'] or 'not tested'}: {_verdict_of(result)}{got}"
    if report.samples:
        failed = [sample for sample in report.samples if sample["reason"] is not None]
        yield f"samples: {len(report.samples) - len(failed)} of {len(report.samples)} answered"
        for sample in failed[:MAX_SAMPLES]:
            yield f"  {sample['name']}: {sample['status']} {sample['reason']}"
        if len(failed) > MAX_SAMPLES:
            yield f"  and {len(failed) - MAX_SAMPLES} more; --json shows all"
    yield from (f"not tested: {reason}" for reason in report.unable)


def _verdict_of(result: Mapping[str, object]) -> str:
    if result["holds"] is None:
        return f"not tested: {result['why']}"
    return "holds" if result["holds"] else f"does not hold: {result['why']}"


def _megabytes(number: int | None) -> int | None:
    return None if number is None else round(number / MEGABYTE)


def _print(lines: Iterable[str]) -> None:
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()
