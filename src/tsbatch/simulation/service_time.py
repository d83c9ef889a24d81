"""How long a batch is in the handler: by the items in it, the length of its requests, and chance."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import orjson

from tsbatch.bench.request_table import Column
from tsbatch.errors import UsageError
from tsbatch.simulation.batching_rules import Handler, Overhead

SCHEMA: Final = 1
KIND: Final = "service-time"
SPREADS: Final = 1000
"""So many factors tell the spread, at most."""

LEAST: Final = 0.01
"""Ms that a batch takes at least, whatever a line says."""

NUMBER: Final = r"\d+(?:\.\d+)?|\.\d+"
CONSTANT: Final = re.compile(rf"\s*({NUMBER})\s*(?:ms)?\s*")
LINE: Final = re.compile(rf"\s*({NUMBER})\s*\+\s*({NUMBER})\s*\*\s*n\s*")
POINT: Final = re.compile(rf"\s*(\d+)\s*:\s*({NUMBER})\s*")
EXPECTED: Final = "a file of bench or check, a time (20ms), a line (5+2*n) or times by batch size (1:20,8:60), in ms"


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Where a service time was measured, as far as it is known.

    Attributes:
        workers: how many were at work.
        cores: that they could use.
        worker_cores: cores that one of them kept busy in its handler.
    """

    workers: int | None = None
    cores: int | None = None
    worker_cores: float | None = None

    def slower_with(self, workers: int) -> float:
        """How many times longer a batch takes when so many workers share the cores: missing ones are waited for."""
        if not self.cores or not self.worker_cores:
            return 1.0
        wanted, measured = (max(1.0, one * self.worker_cores / self.cores) for one in (workers, self.workers or 1))
        return wanted / measured


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceTime:
    """Time in the handler.

    Between the sizes it is a straight line, beyond them the line through the two outermost goes on; a single size is a
    constant.

    Attributes:
        sizes: items in a batch, ascending, shape (k,).
        times: mean ms of each, at the mean length, shape (k,).
        spread: equally likely factors of it, with mean 1.
        per_length: ms for each byte that a batch has beyond the mean length of its requests.
        items: equally likely numbers of items in a request.
        lengths: equally likely lengths of a request, in bytes.
        overhead: what TorchServe adds.
        machine: where it was measured.
        source: what it was made of.
    """

    sizes: Sequence[float]
    times: Sequence[float]
    spread: Sequence[float] = (1.0,)
    per_length: float = 0.0
    items: Sequence[float] = (1.0,)
    lengths: Sequence[float] = (0.0,)
    overhead: Overhead = field(default_factory=Overhead)
    machine: Machine = field(default_factory=Machine)
    source: str = ""

    def __post_init__(self) -> None:
        sizes, times, spread = (np.asarray(one, dtype=np.float64) for one in (self.sizes, self.times, self.spread))
        wrong = len(sizes) != len(times) or not len(sizes) or not len(spread) or (np.diff(sizes) <= 0).any()
        if wrong or not all(np.isfinite(one).all() and (one >= 0).all() for one in (sizes, times, spread)):
            raise UsageError(
                f"service time {list(self.sizes)}: {list(self.times)}: expected rising sizes, times not below 0"
            )

    @property
    def largest(self) -> float:
        """The largest batch that was measured, in items; beyond it is a guess."""
        return float(self.sizes[-1]) if self.source else np.inf

    def mean(self, items: Column | float) -> Column:
        """Mean ms of batches with so many items at the mean length, shape of ``items``."""
        sizes, times = np.asarray(self.sizes, dtype=np.float64), np.asarray(self.times, dtype=np.float64)
        at = np.asarray(items, dtype=np.float64)
        if len(sizes) == 1:
            return np.full(at.shape, max(times[0], LEAST))
        low = times[0] + (at - sizes[0]) * (times[1] - times[0]) / (sizes[1] - sizes[0])
        high = times[-1] + (at - sizes[-1]) * (times[-1] - times[-2]) / (sizes[-1] - sizes[-2])
        inside = np.interp(at, sizes, times)
        found: Column = np.maximum(np.where(at < sizes[0], low, np.where(at > sizes[-1], high, inside)), LEAST)
        return found

    def with_workers(self, workers: int) -> ServiceTime:
        """What it becomes when so many workers share the machine's cores."""
        factor = self.machine.slower_with(workers)
        times = [time * factor for time in self.times]
        return replace(self, times=times, per_length=self.per_length * factor) if factor != 1 else self

    def draw_items(self, count: int, seed: int) -> Column | None:
        """Items of so many requests; None when each has one."""
        return None if set(self.items) == {1.0} else np.random.default_rng((seed, 1)).choice(self.items, count)

    def draw_lengths(self, count: int, seed: int) -> Column | None:
        """Lengths of so many requests; None where they do not matter."""
        return np.random.default_rng((seed, 2)).choice(self.lengths, count) if self.per_length else None

    def handler(self, count: int, *, items: Column | None, lengths: Column | None, seed: int) -> Handler:
        """A handler that takes that long.

        Args:
            count: of requests.
            items: in each request, shape (count,); None for one in each.
            lengths: of each request, shape (count,); None when they do not matter.
            seed: of the spread.
        """
        factors: Iterator[float] = iter(np.random.default_rng(seed).choice(self.spread, count).tolist())
        if items is None and lengths is None:
            times: list[float] = [0.0, *self.mean(np.arange(1.0, count + 1)).tolist()]
            return lambda members: times[len(members)] * next(factors)
        every = np.ones(count) if items is None else items
        longer = np.zeros(count) if lengths is None else (lengths - np.mean(self.lengths)) * self.per_length

        def took(members: Sequence[int]) -> float:
            rows = list(members)
            mean = float(self.mean(every[rows].sum())) + float(longer[rows].sum())
            return max(LEAST, mean) * next(factors)

        return took

    def to_json(self) -> dict[str, Any]:
        """As the JSON object of a file."""
        return {
            "schema": SCHEMA,
            "kind": KIND,
            "source": self.source,
            "points": [[float(size), round(float(time), 4)] for size, time in zip(self.sizes, self.times, strict=True)],
            "spread": [round(float(factor), 5) for factor in self.spread],
            "per_length": self.per_length,
            "items": [float(one) for one in self.items],
            "lengths": [float(one) for one in self.lengths],
            "overhead": {name: getattr(self.overhead, name) for name in OVERHEADS},
            "machine": {name: getattr(self.machine, name) for name in MACHINE},
        }

    def save(self, path: Path) -> None:
        """Write it.

        Raises:
            OSError: it cannot be written there.
        """
        path.write_bytes(orjson.dumps(self.to_json(), option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE))

    @classmethod
    def from_json(cls, value: Mapping[str, Any], where: str) -> ServiceTime:
        """The opposite of :meth:`to_json`.

        Raises:
            UsageError: it is none, or a later version's.
        """
        if value.get("schema") != SCHEMA:
            raise UsageError(f"{where} has schema {value.get('schema')!r}; this tsbatch reads schema {SCHEMA}")
        try:
            sizes, times = zip(*value["points"], strict=True)
            return cls(
                sizes=sizes,
                times=times,
                spread=value["spread"],
                per_length=value["per_length"],
                items=value["items"],
                lengths=value["lengths"],
                overhead=Overhead(**{name: value["overhead"][name] for name in OVERHEADS}),
                machine=Machine(**{name: value["machine"][name] for name in MACHINE}),
                source=value["source"],
            )
        except (KeyError, TypeError, ValueError) as error:
            raise UsageError(f"{where} is damaged: {type(error).__name__}: {error}") from None


OVERHEADS: Final = ("frontend", "batch", "request")
MACHINE: Final = ("workers", "cores", "worker_cores")


def parse(text: str, *, variation: float = 0.0, overhead: Overhead | None = None) -> ServiceTime:
    """The service time that somebody wrote down.

    Args:
        text: ``20ms``, ``5+2*n`` or ``1:20,8:60``; in ms.
        variation: its standard deviation as a share of its mean; log-normal.
        overhead: what TorchServe adds.

    Raises:
        UsageError: it is no such thing.
    """
    if found := CONSTANT.fullmatch(text):
        points = {1: float(found[1])}
    elif found := LINE.fullmatch(text):
        points = {size: float(found[1]) + float(found[2]) * size for size in (1, 2)}
    else:
        matches = [POINT.fullmatch(one) for one in text.split(",")]
        if not all(matches):
            raise UsageError(f"--service is {text!r}; expected {EXPECTED}")
        points = {int(one[1]): float(one[2]) for one in matches if one}
    sizes = sorted(points)
    return ServiceTime(
        sizes=sizes,
        times=[points[size] for size in sizes],
        spread=log_normal(variation),
        overhead=overhead or Overhead(),
    )


def log_normal(variation: float) -> Sequence[float]:
    """Equally likely factors with mean 1 and that standard deviation, from the middle of each thousandth."""
    if not variation:
        return (1.0,)
    from scipy.special import ndtri

    width = np.sqrt(np.log1p(variation**2))
    factors = np.exp(width * ndtri((np.arange(SPREADS) + 0.5) / SPREADS))
    return list(factors / factors.mean())
