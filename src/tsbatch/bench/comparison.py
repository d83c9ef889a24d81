"""Decide whether one load test is better than another, based on their repeats.

Figures vary more between runs than within a run, and by factors. So each run counts as one observation: its rate, P50
and P99. The logarithms of these figures are compared by Welch's test, with at most :data:`LEVEL` of the comparisons of
equal things called different (Bonferroni, over all figures). A figure differs exactly if its interval excludes "no
change".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, Literal

import numpy as np
from scipy.special import nctdtr, nctdtrinc, stdtrit

from tsbatch.bench.result_file import BenchResult, Run
from tsbatch.errors import UsageError

Verdict = Literal["better", "worse", "within the noise", "cannot tell"]

LEVEL: Final = 0.02
EFFECT: Final = 1.1
"""The change for which the required number of repeats is computed."""

POWER: Final = 0.9
MAX_REPEATS: Final = 1000
MIN_SPREAD: Final = 0.001
"""Minimum standard deviation between runs, as a logarithm, caused by clocks and rounding alone."""

MAX_EFFECT: Final = 30.0
"""In standard errors; larger effects are certain, and beyond what nctdtr can compute."""

FAILED: Final = "failed"
MIN_FAILED_CHANGE: Final = 0.001
"""A smaller difference in the share of failed requests is not a regression."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure to compare.

    Attributes:
        name: its name in tables.
        of: returns its value in a run; None if the run has none.
        less_is_better: true for latencies.
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
    """The change of one figure of one step.

    Attributes:
        step: clients or requests/s; None for a trace.
        figure: its name.
        before, after: geometric mean over the runs of A and of B; for failures their mean share.
        ratio: after divided by before; ``low`` and ``high`` are its interval, None if unknown.
        verdict: the conclusion.
        visible: the smallest ratio that this number of runs detects in nine of ten cases.
        repeats: runs of each needed to detect a change of 10 % in nine of ten cases; None for over 1000.
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
    """The comparison of all figures.

    Attributes:
        verdict: worse if any figure is, better if any is and none is worse.
        runs: number of runs of A and of B in the step with the fewest.
        changes: the change of each figure.
        settings: differing settings of the model, as ``batchSize: 8 -> 16``.
        notes: limitations of the comparison, one sentence each.
    """

    verdict: Verdict
    runs: tuple[int, int]
    changes: Sequence[Change]
    settings: Sequence[str]
    notes: Sequence[str]

    def to_json(self) -> dict[str, Any]:
        """Return one JSON object."""
        return {"schema": 1, "kind": "comparison", **asdict(self)}


def compare(before: BenchResult, after: BenchResult) -> Comparison:
    """Compare two load tests.

    Raises:
        UsageError: they have no step in common.
    """
    old, new = before.steps(), after.steps()
    steps = [step for step in old if step in new]
    if before.plan["loop"] != after.plan["loop"] or not steps:
        raise UsageError(f"the two results have no load in common: {_load(before)}, and {_load(after)}")
    pairs = [(step, figure) for step in steps for figure in figures_of(before.plan["loop"], old[step], new[step])]
    level = LEVEL / max(1, len(pairs))
    changes = [change(step, figure, old[step], new[step], level) for step, figure in pairs]
    return Comparison(
        verdict=overall([change.verdict for change in changes]),
        runs=(min(len(old[step]) for step in steps), min(len(new[step]) for step in steps)),
        changes=changes,
        settings=_differences(before.target["settings"], after.target["settings"]),
        notes=list(_notes(before, after)),
    )


def figures_of(loop: str, before: Sequence[Run], after: Sequence[Run]) -> list[Figure]:
    """Return the figures to compare: those that all runs have, and failures if there were any.

    In an open loop the rate is that of the load, not of the server.
    """
    runs = [*before, *after]
    rates = (RATE, GOODPUT) if loop == "closed" else (GOODPUT,)
    known = [figure for figure in (*rates, *LATENCIES) if all(figure.of(run) for run in runs)]
    return [*known, FAILURES] if any(run.summary["failed"] for run in runs) else known


def change(step: float | None, figure: Figure, before: Sequence[Run], after: Sequence[Run], level: float) -> Change:
    """Compare one figure; ``level`` is the probability of calling equal ones different."""
    logs = [np.log(np.array([figure.of(run) for run in runs], dtype=np.float64)) for runs in (before, after)]
    shown = typical = [float(np.exp(one.mean())) for one in logs]
    if figure.name == FAILED:
        shown = [
            float(np.mean([run.summary["failed"] / max(1, run.summary["requests"]) for run in runs]))
            for runs in (before, after)
        ]
    plain = Change(step, figure.name, shown[0], shown[1], typical[1] / typical[0])
    if min(len(before), len(after)) < 2:
        return plain
    spreads = [max(float(one.std(ddof=1)), MIN_SPREAD) for one in logs]
    error, freedom = welch(spreads[0], len(before), spreads[1], len(after))
    critical = float(stdtrit(freedom, 1 - level / 2))
    reach, difference = critical * error, float(logs[1].mean() - logs[0].mean())
    detectable = min(MAX_EFFECT, float(nctdtrinc(freedom, 1 - POWER, critical))) * error
    spread = math.sqrt((spreads[0] ** 2 + spreads[1] ** 2) / 2)
    same = abs(difference) <= reach or (figure.name == FAILED and abs(shown[1] - shown[0]) < MIN_FAILED_CHANGE)
    return replace(
        plain,
        low=math.exp(difference - reach),
        high=math.exp(difference + reach),
        verdict="within the noise" if same else "better" if (difference < 0) == figure.less_is_better else "worse",
        visible=math.exp(detectable),
        repeats=repeats_for(spread, math.log(EFFECT), level),
    )


def welch(spread: float, n: int, other_spread: float, other_n: int) -> tuple[float, float]:
    """Return standard error and degrees of freedom of the difference of two means (Welch, Satterthwaite)."""
    a, b = spread**2 / n, other_spread**2 / other_n
    return math.sqrt(a + b), (a + b) ** 2 / (a**2 / (n - 1) + b**2 / (other_n - 1))


def power(effect: float, error: float, freedom: float, level: float) -> float:
    """Return the probability that a two-sided test detects a true difference (noncentral t)."""
    if effect / error > MAX_EFFECT:
        return 1.0
    # The probability of an error in direction is neglected: it only matters where nothing is detected.
    return float(1 - nctdtr(freedom, effect / error, stdtrit(freedom, 1 - level / 2)))


def repeats_for(spread: float, effect: float, level: float) -> int | None:
    """Return the runs of each needed to detect ``effect`` with :data:`POWER`; None for more than a thousand.

    Args:
        spread: standard deviation between runs.
        effect: the true difference, in the same unit.
        level: the probability of calling equal ones different.
    """
    counts = range(2, MAX_REPEATS + 1)
    return next((n for n in counts if power(effect, *welch(spread, n, spread, n), level) >= POWER), None)


def overall(verdicts: Sequence[Verdict]) -> Verdict:
    """Return the verdict on all figures."""
    order: tuple[Verdict, ...] = ("cannot tell", "worse", "better")
    return next((verdict for verdict in order if verdict in verdicts), "within the noise")


def _load(result: BenchResult) -> str:
    return f"{result.plan['loop']} loop at {', '.join(f'{step:g}' for step in result.plan['steps']) or 'a trace'}"


def _differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    return [
        f"{key}: {before.get(key)} -> {after.get(key)}"
        for key in {**before, **after}
        if before.get(key) != after.get(key)
    ]


def _notes(before: BenchResult, after: BenchResult) -> Iterator[str]:
    loads = _differences(before.plan, after.plan)
    if varied := [text for text in loads if not text.startswith(("steps:", "repeat:", "seed:"))]:
        yield f"the loads differ: {', '.join(varied)}"
    machines = _differences(before.environment, after.environment)
    if varied := [text for text in machines if text.startswith(("cpu", "cores"))]:
        yield f"the machines differ: {', '.join(varied)}"
    starts = [sorted(run.started for run in result.runs) for result in (before, after)]
    if min(map(len, starts)) > 1 and (starts[0][-1] < starts[1][0] or starts[1][-1] < starts[0][0]):
        yield (
            "all runs of one came before those of the other: a machine that got slower meanwhile would look like a"
            " change; alternate them with: tsbatch bench … --output FILE --append"
        )
