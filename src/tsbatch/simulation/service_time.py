"""The handler time of a batch: by its items, the length of its requests, and chance."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
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
"""Maximum number of factors that describe the spread."""

MIN_TIME: Final = 0.01
"""Minimum ms of a batch, whatever a line gives."""

NUMBER: Final = r"\d+(?:\.\d+)?|\.\d+"
CONSTANT: Final = re.compile(rf"\s*({NUMBER})\s*(?:ms)?\s*")
LINE: Final = re.compile(rf"\s*({NUMBER})\s*\+\s*({NUMBER})\s*\*\s*n\s*")
POINT: Final = re.compile(rf"\s*(\d+)\s*:\s*({NUMBER})\s*")
EXPECTED: Final = "a file of bench or check, a time (20ms), a line (5+2*n) or times by batch size (1:20,8:60), in ms"


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The machine of a measurement, as far as known.

    Attributes:
        workers: number of active workers.
        cores: available to them.
        worker_cores: cores that one worker keeps busy in its handler.
    """

    workers: int | None = None
    cores: int | None = None
    worker_cores: float | None = None

    def slower_with(self, workers: int) -> float:
        """Return the factor by which batches slow down if this many workers share the cores."""
        if not self.cores or not self.worker_cores:
            return 1.0
        wanted, measured = (max(1.0, one * self.worker_cores / self.cores) for one in (workers, self.workers or 1))
        return wanted / measured


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceTime:
    """Handler time by batch size.

    It is linear between the sizes, and beyond them along the line through the two outermost; a single size is a
    constant.

    Attributes:
        sizes: items in a batch, ascending, shape (k,).
        times: mean ms of each, at the mean length, shape (k,).
        spread: equally likely factors of the time, with mean 1.
        per_length: ms per byte of a batch beyond the mean length of its requests.
        items: equally likely numbers of items in a request.
        lengths: equally likely lengths of a request, in bytes.
        overhead: TorchServe's own time.
        machine: where it was measured.
        source: the measurement.
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
                f"service time {list(self.sizes)}: {list(self.times)}: expected ascending sizes, times of at least 0"
            )

    @property
    def largest(self) -> float:
        """The largest measured batch, in items; larger ones are extrapolated."""
        return float(self.sizes[-1]) if self.source else np.inf

    def mean(self, items: Column | float) -> Column:
        """Return the mean ms of batches with these numbers of items at the mean length, shape of ``items``."""
        sizes, times = np.asarray(self.sizes, dtype=np.float64), np.asarray(self.times, dtype=np.float64)
        at = np.asarray(items, dtype=np.float64)
        if len(sizes) == 1:
            return np.full(at.shape, max(times[0], MIN_TIME))
        low = times[0] + (at - sizes[0]) * (times[1] - times[0]) / (sizes[1] - sizes[0])
        high = times[-1] + (at - sizes[-1]) * (times[-1] - times[-2]) / (sizes[-1] - sizes[-2])
        inside = np.interp(at, sizes, times)
        found: Column = np.maximum(np.where(at < sizes[0], low, np.where(at > sizes[-1], high, inside)), MIN_TIME)
        return found

    def with_workers(self, workers: int) -> ServiceTime:
        """Return the service time if this many workers share the machine's cores."""
        factor = self.machine.slower_with(workers)
        times = [time * factor for time in self.times]
        return replace(self, times=times, per_length=self.per_length * factor) if factor != 1 else self

    def draw_items(self, count: int, seed: int) -> Column | None:
        """Draw the items of ``count`` requests; None if each has one."""
        return None if set(self.items) == {1.0} else np.random.default_rng((seed, 1)).choice(self.items, count)

    def draw_lengths(self, count: int, seed: int) -> Column | None:
        """Draw the lengths of ``count`` requests; None if they do not matter."""
        return np.random.default_rng((seed, 2)).choice(self.lengths, count) if self.per_length else None

    def handler(self, count: int, *, items: Column | None, lengths: Column | None, seed: int) -> Handler:
        """Return a handler with these times.

        Args:
            count: number of requests.
            items: of each request, shape (count,); None if each has one.
            lengths: of each request, shape (count,); None if they do not matter.
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
            return max(MIN_TIME, mean) * next(factors)

        return took

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object of a file."""
        return {
            "schema": SCHEMA,
            "kind": KIND,
            "source": self.source,
            "points": [[float(size), round(float(time), 4)] for size, time in zip(self.sizes, self.times, strict=True)],
            "spread": [round(float(factor), 5) for factor in self.spread],
            "per_length": self.per_length,
            "items": [float(one) for one in self.items],
            "lengths": [float(one) for one in self.lengths],
            "overhead": asdict(self.overhead),
            "machine": asdict(self.machine),
        }

    def save(self, path: Path) -> None:
        """Write the file.

        Raises:
            OSError: it cannot be written.
        """
        path.write_bytes(orjson.dumps(self.to_json(), option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE))

    @classmethod
    def from_json(cls, value: Mapping[str, Any], where: str) -> ServiceTime:
        """Read the value of :meth:`to_json`.

        Raises:
            UsageError: it is damaged, or has another schema.
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
                overhead=Overhead(**value["overhead"]),
                machine=Machine(**value["machine"]),
                source=value["source"],
            )
        except (KeyError, TypeError, ValueError) as error:
            raise UsageError(f"{where} is damaged: {type(error).__name__}: {error}") from None


def parse(text: str, *, variation: float = 0.0, overhead: Overhead | None = None) -> ServiceTime:
    """Parse a service time.

    Args:
        text: ``20ms``, ``5+2*n`` or ``1:20,8:60``; in ms.
        variation: standard deviation as a share of the mean; log-normal.
        overhead: TorchServe's own time.

    Raises:
        UsageError: it is not a service time.
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
    """Return equally likely log-normal factors with mean 1 and this standard deviation."""
    if not variation:
        return (1.0,)
    from scipy.special import ndtri

    width = np.sqrt(np.log1p(variation**2))
    factors = np.exp(width * ndtri((np.arange(SPREADS) + 0.5) / SPREADS))
    return list(factors / factors.mean())
