"""What is wanted of a setting, and what must never be broken for it."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

from tsbatch.errors import UsageError

Objective = Literal["throughput", "p99", "p50", "memory"]
Limit = Literal["p99", "memory", "gpu_memory", "failed"]
Aim = Objective | Limit

MORE_IS_BETTER: Final = {"throughput"}
EXACT: Final = {"memory", "gpu_memory", "failed"}
"""Limits that are compared as they were measured; P99 differs from run to run."""

MAX_FAILED: Final = 0.01
MAX_GPU_SHARE: Final = 0.9
"""Of a GPU's memory, what a model's workers may hold unless told otherwise."""

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
    """What one run showed.

    Attributes:
        throughput: good answers a second.
        p50, p99: latency, ms.
        failed: share without a good answer.
        memory: bytes that the workers hold for themselves, together; None when nobody could look.
        gpu_memory: share that they hold together of a GPU's memory, 0 to 1, where it is largest; None when they hold
            none, or nobody could look.
        requests: how many were sent.
    """

    throughput: float
    p50: float
    p99: float
    failed: float = 0.0
    memory: float | None = None
    gpu_memory: float | None = None
    requests: int = 0

    def of(self, name: str) -> float:
        """One of them by the name of an objective or a limit; what is unknown is no number."""
        value = getattr(self, name)
        return math.nan if value is None else float(value)

    def to_json(self) -> dict[str, Any]:
        """By name."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """What to make better, within which limits.

    Attributes:
        objective: what to make better.
        p99: ms that it may be at most; None for no limit.
        memory: bytes that all workers together may hold for themselves.
        gpu_memory: share that they may hold of any GPU's memory.
        failed: share of requests that may fail.
        open_loop: whether the load has a rate of its own, so that requests/s are no merit of a setting.
    """

    objective: Objective = "throughput"
    p99: float | None = None
    memory: float | None = None
    gpu_memory: float = MAX_GPU_SHARE
    failed: float = MAX_FAILED
    open_loop: bool = False

    def limits(self) -> dict[Limit, float]:
        """The limits that there are."""
        names: list[Limit] = ["failed", "memory", "gpu_memory", "p99"]
        return {name: limit for name in names if (limit := getattr(self, name)) is not None}

    def named_limits(self) -> dict[Limit, float]:
        """Those that are told: of a GPU only where somebody asked, since most tunings have none."""
        return {name: limit for name, limit in self.limits().items() if name != "gpu_memory" or limit != MAX_GPU_SHARE}

    def broken(self, figures: Figures) -> list[Limit]:
        """The limits that these figures break, the worst first."""
        over = {name: figures.of(name) / max(limit, TINY) for name, limit in self.limits().items()}
        return sorted((name for name, times in over.items() if times > 1), key=lambda name: -over[name])

    def aim(self, figures: Sequence[Figures]) -> Aim:
        """What is to become better next: the worst broken limit, else the objective."""
        broken = self.broken(mean(figures))
        return broken[0] if broken else self.objective

    def said(self) -> str:
        """In words."""
        what = "more requests/s" if self.objective == "throughput" else f"less {WORDS[self.objective][0]}"
        return ", ".join(
            [what, *(f"{WORDS[name][0]} at most {shown(name, limit)}" for name, limit in self.named_limits().items())]
        )

    def to_json(self) -> dict[str, Any]:
        """By name."""
        return asdict(self)


def merit(figures: Figures, aim: Aim) -> float:
    """How good a run was in one respect, as a logarithm: more is better, and a difference is a factor."""
    value = figures.of(aim)
    if aim == "failed":  # odds, half a request in doubt: none at all and one in a thousand are not infinitely apart
        bad, all_of_them = value * figures.requests, figures.requests
        return -math.log((bad + 0.5) / (all_of_them - bad + 0.5))
    logarithm = math.log(max(value, TINY)) if value == value else 0.0
    return logarithm if aim in MORE_IS_BETTER else -logarithm


def mean(figures: Sequence[Figures]) -> Figures:
    """The typical figures of several runs: geometric means, since runs differ by factors; failures as they are."""
    if not figures:
        raise ValueError("no run, no mean")

    def typical(name: str) -> float:
        return math.exp(sum(math.log(max(one.of(name), TINY)) for one in figures) / len(figures))

    def known(values: Iterable[float | None]) -> float | None:
        there = [value for value in values if value is not None]
        return sum(there) / len(there) if there else None

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
    """A figure's name and unit, as the heading of a column."""
    return "".join(WORDS[name])


def cell(figures: Figures, name: str, digits: int = 1) -> float | None:
    """A figure in that unit, rounded, as a table has it; None when it is unknown."""
    value = figures.of(name)
    return None if math.isnan(value) else round(value * SCALES.get(name, 1.0), digits)


def shown(name: str, value: float) -> str:
    """A figure with its unit."""
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
