"""Parse and capture the ``[METRICS]`` lines that a worker writes to its standard output.

TorchServe's frontend keeps a line only if it matches a pattern (metrics/Metric.java) and its metrics.yaml has the name.
The same pattern is used here, so that a value that TorchServe drops (``nan``, ``1e+16``) counts as dropped.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

PREFIX = "[METRICS]"

_LINE = re.compile(
    r"\s*(?P<name>[\w\s]+)\.(?P<unit>[\w\s]+):(?P<value>[0-9\-,.e]+)\|#(?P<dimensions>[^|]*)"
    r"(\|#type:(?P<type>[^|,]+))?\|#hostname:(?P<host>[^,]+),(?P<time>[^,]+)(,(?P<ids>.*))?",
    re.ASCII,
)


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric that a worker emitted.

    Attributes:
        name: the metric's name.
        unit: its unit, in TorchServe's spelling (``Milliseconds``, ``Count``).
        value: its value.
        dimensions: name and value of each dimension.
        request_ids: the ids of its requests; for a metric of the batch, those of all requests.
        type: COUNTER, GAUGE or HISTOGRAM; empty in the old line format.
    """

    name: str
    unit: str
    value: float
    dimensions: Mapping[str, str]
    request_ids: tuple[str, ...] = ()
    type: str = ""


def parse_metric(line: str) -> Metric | None:
    """Parse one line, with or without ``[METRICS]``; return None if TorchServe would drop it."""
    found = _LINE.fullmatch(line.removeprefix(PREFIX))
    if not found:
        return None
    try:
        value = float(found["value"])
    except ValueError:
        return None
    pairs = (pair.split(":") for pair in found["dimensions"].split(","))
    dimensions = {pair[0]: pair[1] for pair in pairs if len(pair) == 2}
    ids = tuple(found["ids"].split(",")) if found["ids"] else ()
    return Metric(found["name"], found["unit"], value, dimensions, ids, found["type"] or "")


@dataclass(slots=True)
class Captured:
    """The captured lines, parsed on access so that parsing does not affect measurements.

    Attributes:
        lines: the lines that start with ``[METRICS]``, in order.
    """

    lines: list[str] = field(default_factory=list)

    @property
    def metrics(self) -> list[Metric]:
        """The metrics, in order."""
        return [metric for metric in map(parse_metric, self.lines) if metric is not None]

    @property
    def dropped(self) -> list[str]:
        """The lines that TorchServe would drop, in order."""
        return [line for line in self.lines if parse_metric(line) is None]


class _Tap(logging.Handler):
    """Captures the metrics of a logger and passes its records on to the parents as before."""

    def __init__(self, logger: logging.Logger, captured: Captured) -> None:
        super().__init__()
        self._parent = logger.parent if logger.propagate else None
        self.threshold = logger.getEffectiveLevel()
        self._captured = captured

    def emit(self, record: logging.LogRecord) -> None:
        for line in record.getMessage().split("\n"):
            if line.startswith(PREFIX):
                self._captured.lines.append(line)
        if self._parent is not None and record.levelno >= self.threshold:
            self._parent.callHandlers(record)


@contextmanager
def capture_metrics(*loggers: str) -> Iterator[Captured]:
    """Capture the metrics that pass through ``loggers``, regardless of level; leave everything else unchanged."""
    captured = Captured()
    taps = []
    for logger in map(logging.getLogger, loggers):
        tap = _Tap(logger, captured)
        taps.append((logger, tap, logger.level, logger.propagate, logger.disabled))
        logger.addHandler(tap)
        if tap.threshold > logging.INFO:
            logger.setLevel(logging.INFO)
        logger.propagate = logger.disabled = False
    try:
        yield captured
    finally:
        for logger, tap, level, propagate, disabled in taps:
            logger.removeHandler(tap)
            logger.setLevel(level)
            logger.propagate, logger.disabled = propagate, disabled
