"""Whether one load test is better than another, judged by their repeats.

Runs differ by factors, from one to the next, more than anything inside a run tells. So each run counts as one
observation: its rate, P50 and P99. Figures are compared by the logarithms of these with Welch's test, and all of them
together are wrongly called different in at most :data:`LEVEL` of the comparisons of equal things (Bonferroni). A figure
is different just when its interval does not hold "no change".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

import numpy as np
from scipy.special import nctdtr, stdtrit

from tsbatch.bench.result_file import BenchResult, Run
from tsbatch.errors import UsageError

Verdict = Literal["better", "worse", "within the noise", "cannot tell"]

LEVEL: Final = 0.02
EFFECT: Final = 1.1
"""The change for which the needed repeats are told."""

POWER: Final = 0.9
MOST_REPEATS: Final = 1000
LEAST_SPREAD: Final = 0.001
"""Runs are taken to differ by so much at least, as a logarithm: clocks and rounding alone do that."""

FAILED: Final = "failed"
LEAST_FAILED: Final = 0.001
"""A difference in the share of failed requests below this is nobody's regression."""


@dataclass(frozen=True, slots=True)
class Figure:
    """What is compared.

    Attributes:
        name: as it is shown.
        of: its value in one run; None where it has none.
        less_is_better: as with latencies.
    """

    name: str
    of: Callable[[Run], float | None]
    less_is_better: bool = True


def _latency(name: str) -> Figure:
    return Figure(f"{name.upper()} ms", lambda run: run.summary["latency"].get(name, {}).get("value"))


def _failed(run: Run) -> float:
    # Odds, so that one in a thousand and one in ten thousand are as far apart as one in ten and one in a hundred.
    failed, good = run.summary["failed"], run.summary["requests"] - run.summary["failed"]
    return float((failed + 0.5) / (good + 0.5))


RATE: Final = Figure("requests/s", lambda run: run.summary["rate"], less_is_better=False)
GOODPUT: Final = Figure("goodput/s", lambda run: (run.summary["goodput"] or {}).get("rate"), less_is_better=False)
LATENCIES: Final = (_latency("p50"), _latency("p99"))
FAILURES: Final = Figure(FAILED, _failed)


@dataclass(frozen=True, slots=True)
class Change:
    """One figure of one step, before and after.

    Attributes:
        step: clients or requests a second; None for a trace.
        figure: its name.
        before, after: the typical value over the runs of A and of B; of failures their share.
        ratio: after by before; ``low`` and ``high`` the interval in which it lies; None when that cannot be told.
        verdict: what that means.
        visible: the ratio from which a change is found nine times in ten with so many runs.
        repeats: runs of each that it takes to find a change of 10 % nine times in ten; None for over 1000.
    """

    step: float | None
    figure: str
    before: float
    after: float
    ratio: float
    low: float | None = None
    high: float | None = None
    verdict: Verdict = "cannot tell"
    visible: float | None = None
    repeats: int | None = None


@dataclass(frozen=True, slots=True)
class Comparison:
    """What became of all figures.

    Attributes:
        verdict: worse when any figure is, better when any is and none is worse.
        runs: how many of A and of B, of the step that has fewest.
        changes: figure by figure.
        settings: the model's settings that differ, as ``batchSize: 8 -> 16``.
        notes: what makes the comparison worth less, one sentence each.
    """

    verdict: Verdict
    runs: tuple[int, int]
    changes: Sequence[Change]
    settings: Sequence[str]
    notes: Sequence[str]

    def to_json(self) -> dict[str, Any]:
        """As one JSON object."""
        return {"schema": 1, "kind": "comparison", **asdict(self)}


def compare(before: BenchResult, after: BenchResult) -> Comparison:
    """Whether ``after`` is better than ``before``.

    Raises:
        UsageError: they have no step in common.
    """
    mine, theirs = before.steps(), after.steps()
    steps = [step for step in mine if step in theirs]
    if before.plan["loop"] != after.plan["loop"] or not steps:
        raise UsageError(f"the two have no load in common: {_load(before)}, and {_load(after)}")
    pairs = [(step, figure) for step in steps for figure in figures_of(before.plan["loop"], mine[step], theirs[step])]
    level = LEVEL / max(1, len(pairs))
    changes = [change(step, figure, mine[step], theirs[step], level) for step, figure in pairs]
    return Comparison(
        verdict=overall([change.verdict for change in changes]),
        runs=(min(len(mine[step]) for step in steps), min(len(theirs[step]) for step in steps)),
        changes=changes,
        settings=list(_differences(before.target["settings"], after.target["settings"])),
        notes=list(_notes(before, after)),
    )


def figures_of(loop: str, before: Sequence[Run], after: Sequence[Run]) -> list[Figure]:
    """The figures that runs can be compared by: those that each of them has, failures if there were any.

    In an open loop the rate is that of the load, not of the server.
    """
    runs = [*before, *after]
    rates = (RATE, GOODPUT) if loop == "closed" else (GOODPUT,)
    known = [figure for figure in (*rates, *LATENCIES) if all(figure.of(run) for run in runs)]
    return [*known, FAILURES] if any(run.summary["failed"] for run in runs) else known


def change(step: float | None, figure: Figure, before: Sequence[Run], after: Sequence[Run], level: float) -> Change:
    """What became of one figure; ``level`` is the chance to call equal ones different."""
    logs = [np.log(np.array([figure.of(run) for run in runs], dtype=np.float64)) for runs in (before, after)]
    typical = [float(np.exp(one.mean())) for one in logs]
    shown = [_share(runs) for runs in (before, after)] if figure.name == FAILED else typical
    plain = Change(step, figure.name, shown[0], shown[1], typical[1] / typical[0])
    if min(len(before), len(after)) < 2:
        return plain
    spreads = [max(float(one.std(ddof=1)), LEAST_SPREAD) for one in logs]
    error, freedom = welch(spreads[0], len(before), spreads[1], len(after))
    reach = float(stdtrit(freedom, 1 - level / 2)) * error
    difference = float(logs[1].mean() - logs[0].mean())
    spread = math.sqrt((spreads[0] ** 2 + spreads[1] ** 2) / 2)
    return Change(
        step,
        figure.name,
        shown[0],
        shown[1],
        plain.ratio,
        low=math.exp(difference - reach),
        high=math.exp(difference + reach),
        verdict=_verdict(figure, difference, reach, shown),
        visible=math.exp(_visible(error, freedom, level)),
        repeats=repeats_for(spread, math.log(EFFECT), level),
    )


def welch(spread: float, n: int, other_spread: float, other_n: int) -> tuple[float, float]:
    """Standard error of the difference of two means, and its degrees of freedom (Welch and Satterthwaite)."""
    a, b = spread**2 / n, other_spread**2 / other_n
    return math.sqrt(a + b), (a + b) ** 2 / (a**2 / (n - 1) + b**2 / (other_n - 1))


def power(effect: float, error: float, freedom: float, level: float) -> float:
    """The chance to find a true difference with a two-sided test (noncentral t)."""
    critical = stdtrit(freedom, 1 - level / 2)
    away = effect / error
    if away > 30:  # certain, and beyond what nctdtr can compute
        return 1.0
    # The chance to err in the direction is left out: it only counts where nothing is found.
    return float(1 - nctdtr(freedom, away, critical))


def repeats_for(spread: float, effect: float, level: float) -> int | None:
    """Runs of each that it takes to find ``effect`` with :data:`POWER`; None when it takes over a thousand.

    Args:
        spread: standard deviation from run to run.
        effect: the true difference, in the same unit.
        level: the chance to call equal ones different.
    """
    for runs in range(2, MOST_REPEATS + 1):
        if power(effect, *welch(spread, runs, spread, runs), level) >= POWER:
            return runs
    return None


def overall(verdicts: Sequence[Verdict]) -> Verdict:
    """The verdict on everything."""
    order: tuple[Verdict, ...] = ("cannot tell", "worse", "better")
    return next((verdict for verdict in order if verdict in verdicts), "within the noise")


def _visible(error: float, freedom: float, level: float) -> float:
    low, high = 0.0, 30 * error
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (low, middle) if power(middle, error, freedom, level) >= POWER else (middle, high)
    return high


def _verdict(figure: Figure, difference: float, reach: float, shown: Sequence[float]) -> Verdict:
    if abs(difference) <= reach or (figure.name == FAILED and abs(shown[1] - shown[0]) < LEAST_FAILED):
        return "within the noise"
    return "better" if (difference < 0) == figure.less_is_better else "worse"


def _share(runs: Sequence[Run]) -> float:
    return float(np.mean([run.summary["failed"] / max(1, run.summary["requests"]) for run in runs]))


def _load(result: BenchResult) -> str:
    return f"{result.plan['loop']} loop at {', '.join(f'{step:g}' for step in result.plan['steps']) or 'a trace'}"


def _differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    return [
        f"{key}: {before.get(key)} -> {after.get(key)}"
        for key in {**before, **after}
        if before.get(key) != after.get(key)
    ]


def _notes(before: BenchResult, after: BenchResult) -> list[str]:
    notes = []
    loads = _differences(before.plan, after.plan)
    varied = [text for text in loads if not text.startswith(("steps:", "repeat:", "seed:"))]
    if varied:
        notes.append(f"the loads differ: {', '.join(varied)}")
    machines = [
        text for text in _differences(before.environment, after.environment) if text.startswith(("cpu", "cores"))
    ]
    if machines:
        notes.append(f"the machines differ: {', '.join(machines)}")
    starts = [sorted(run.started for run in result.runs) for result in (before, after)]
    if min(map(len, starts)) > 1 and (starts[0][-1] < starts[1][0] or starts[1][-1] < starts[0][0]):
        notes.append(
            "all runs of one came before those of the other: a machine that got slower meanwhile would look like a"
            " change; alternate them with: tsbatch bench … --output FILE --append"
        )
    return notes
