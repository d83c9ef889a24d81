"""The goal of a tuning: an objective and limits, and the figures of a run."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from tsbatch.errors import UsageError

Objective = Literal["throughput", "p99", "p50", "memory"]
Limit = Literal["p99", "memory", "gpu_memory", "failed"]
Aim = Objective | Limit

MORE_IS_BETTER: Final = {"throughput"}
EXACT: Final = {"memory", "gpu_memory", "failed"}
"""Limits that are compared as measured; P99 varies from run to run."""

MAX_FAILED: Final = 0.01
MAX_GPU_SHARE: Final = 0.9
"""Default limit for the share of a GPU's memory that a model's workers hold."""

TINY: Final = 1e-6
WORDS: Final[Mapping[str, tuple[str, str]]] = {
    "throughput": ("requests/s", ""),
    "p99": ("P99", " ms"),
    "p50": ("P50", " ms"),
    "memory": ("memory", " MB"),
    "gpu_memory": ("GPU memory", " %"),
    "failed": ("failed", " %"),
}
SCALES: Final = {"memory": 1e-6, "gpu_memory": 100.0, "failed": 100.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """The figures of one run.

    Attributes:
        throughput: successful requests/s.
        p50, p99: latency in ms.
        failed: share of failed requests.
        memory: private memory of all workers together, in bytes; None if unknown.
        gpu_memory: share of a GPU's memory that they hold together, 0 to 1, on the fullest GPU; None if they hold none
            or it is unknown.
        requests: number of requests sent.
    """

    throughput: float
    p50: float
    p99: float
    failed: float = 0.0
    memory: float | None = None
    gpu_memory: float | None = None
    requests: int = 0

    def of(self, name: str) -> float:
        """Return one of them by the name of an objective or limit; NaN if unknown."""
        value = getattr(self, name)
        return math.nan if value is None else float(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """What to improve, within which limits.

    Attributes:
        objective: the figure to improve.
        p99: maximum P99 in ms; None for no limit.
        memory: maximum private memory of all workers together, in bytes.
        gpu_memory: maximum share of any GPU's memory.
        failed: maximum share of failed requests.
        open_loop: whether the load has a fixed rate, so that settings cannot change the requests/s.
    """

    objective: Objective = "throughput"
    p99: float | None = None
    memory: float | None = None
    gpu_memory: float = MAX_GPU_SHARE
    failed: float = MAX_FAILED
    open_loop: bool = False

    def limits(self) -> dict[Limit, float]:
        """Return the limits that are set."""
        names: list[Limit] = ["failed", "memory", "gpu_memory", "p99"]
        return {name: limit for name in names if (limit := getattr(self, name)) is not None}

    def named_limits(self) -> dict[Limit, float]:
        """Return the limits to report: the GPU limit only if it was given, because most tunings use no GPU."""
        return {name: limit for name, limit in self.limits().items() if name != "gpu_memory" or limit != MAX_GPU_SHARE}

    def broken(self, figures: Figures) -> list[Limit]:
        """Return the limits that these figures break, the worst first."""
        over = {name: figures.of(name) / max(limit, TINY) for name, limit in self.limits().items()}
        return sorted((name for name, times in over.items() if times > 1), key=lambda name: -over[name])

    def aim(self, figures: Sequence[Figures]) -> Aim:
        """Return the figure to improve next: the worst broken limit, else the objective."""
        broken = self.broken(mean(figures))
        return broken[0] if broken else self.objective

    def __str__(self) -> str:
        what = "more requests/s" if self.objective == "throughput" else f"less {WORDS[self.objective][0]}"
        return ", ".join(
            [what, *(f"{WORDS[name][0]} at most {shown(name, limit)}" for name, limit in self.named_limits().items())]
        )


def merit(figures: Figures, aim: Aim) -> float:
    """Return how good a run was in one figure, as a logarithm: more is better, and a difference is a factor."""
    value = figures.of(aim)
    if aim == "failed":  # odds, half a request in doubt: none at all and one in a thousand are not infinitely apart
        bad, all_of_them = value * figures.requests, figures.requests
        return -math.log((bad + 0.5) / (all_of_them - bad + 0.5))
    logarithm = math.log(max(value, TINY)) if value == value else 0.0
    return logarithm if aim in MORE_IS_BETTER else -logarithm


def mean(figures: Sequence[Figures]) -> Figures:
    """Return the typical figures of several runs: geometric means, because runs differ by factors."""
    if not figures:
        raise ValueError("the mean needs at least one run")

    def typical(name: str) -> float:
        return math.exp(sum(math.log(max(one.of(name), TINY)) for one in figures) / len(figures))

    def known(values: Iterable[float | None]) -> float | None:
        present = [value for value in values if value is not None]
        return sum(present) / len(present) if present else None

    return Figures(
        throughput=typical("throughput"),
        p50=typical("p50"),
        p99=typical("p99"),
        failed=sum(one.failed for one in figures) / len(figures),
        memory=known(one.memory for one in figures),
        gpu_memory=known(one.gpu_memory for one in figures),
        requests=sum(one.requests for one in figures),
    )


def label(name: str) -> str:
    """Return a figure's name and unit for a column heading."""
    return "".join(WORDS[name])


def cell(figures: Figures, name: str, digits: int = 1) -> float | None:
    """Return a figure in that unit, rounded for a table; None if unknown."""
    value = figures.of(name)
    return None if math.isnan(value) else round(value * SCALES.get(name, 1.0), digits)


def shown(name: str, value: float) -> str:
    """Format a figure with its unit."""
    scaled = value * SCALES.get(name, 1.0)
    number = f"{scaled:.0f}" if scaled >= 100 or scaled == round(scaled) else f"{scaled:.3g}"
    return f"{number}{WORDS[name][1]}"


def read_time(text: str, option: str = "") -> float:
    """Convert ``100``, ``100ms`` or ``1.5s`` to milliseconds.

    Raises:
        UsageError: it is not a time; ``option`` names where it was given.
    """
    return _read(text, {"ms": 1.0, "s": 1000.0, "": 1.0}, "a time like 100ms or 1.5s", option)


def read_size(text: str, option: str = "") -> int:
    """Convert ``8GB``, ``512MB`` or ``8GiB`` to bytes.

    Raises:
        UsageError: it is not a size; ``option`` names where it was given.
    """
    units = {"gb": 1e9, "mb": 1e6, "gib": 2.0**30, "mib": 2.0**20, "g": 1e9, "m": 1e6}
    return int(_read(text, units, "a size like 8GB or 512MB", option))


def read_share(text: str, option: str = "") -> float:
    """Convert ``80%`` or ``80`` to 0.8.

    Raises:
        UsageError: it is not a share, or more than 100 %; ``option`` names where it was given.
    """
    return _read(text, {"%": 0.01, "": 0.01}, "a share like 80%", option, maximum=1.0)


def _read(
    text: str, units: Mapping[str, float], expected: str, option: str, maximum: float = sys.float_info.max
) -> float:
    word = text.strip().lower()
    unit = word.lstrip("0123456789.")
    try:
        value = float(word.removesuffix(unit)) * units[unit.strip()]
    except (KeyError, ValueError):
        value = math.nan
    if not 0 < value <= maximum:
        raise UsageError(f"{option} is {text}; expected {expected}" if option else f"{text!r}: expected {expected}")
    return value
