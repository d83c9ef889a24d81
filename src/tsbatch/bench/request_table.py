"""The table of requests that the load test and the log reader fill and everything else reads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Column = NDArray[np.float64]
WAITS: Final = ("queue", "assembly", "handler")
STAGES: Final = ("decode", "preprocess", "inference", "postprocess", "encode")


def _empty() -> Column:
    return np.empty(0)


def _is_unknown(column: Column) -> bool:
    """Whether this is the single repeated NaN that represents a missing column."""
    return column.strides == (0,) and bool(np.isnan(column[:1]).any())


@dataclass(frozen=True, slots=True)
class Samples:
    """Requests as columns of one length n, float64, shape (n,); NaN for unknown values.

    Attributes:
        sent: when the request was sent, or due in an open loop; seconds since the epoch. From a log: its arrival.
        latency: from ``sent`` to the complete answer, ms. From a log: as seen by the server.
        status: HTTP status; 0 without an answer (connection refused or reset, timeout).
        queue, assembly, handler: the waits and the handler time, ms.
        decode, preprocess, inference, postprocess, encode: the handler's stages, ms.
        batch: size of the request's batch.
        capacity: maximum size of that batch (batchSize).
        worker: number of the worker that answered, from 0.
        items: number of items in the request.
        length: size of its body in bytes.
    """

    sent: Column
    latency: Column
    status: Column
    queue: Column = field(default_factory=_empty)
    assembly: Column = field(default_factory=_empty)
    handler: Column = field(default_factory=_empty)
    decode: Column = field(default_factory=_empty)
    preprocess: Column = field(default_factory=_empty)
    inference: Column = field(default_factory=_empty)
    postprocess: Column = field(default_factory=_empty)
    encode: Column = field(default_factory=_empty)
    batch: Column = field(default_factory=_empty)
    capacity: Column = field(default_factory=_empty)
    worker: Column = field(default_factory=_empty)
    items: Column = field(default_factory=_empty)
    length: Column = field(default_factory=_empty)

    def __post_init__(self) -> None:
        for name in COLUMNS:
            column = np.asarray(getattr(self, name), dtype=np.float64)
            if column.size == 0 and len(self.sent):
                column = np.broadcast_to(np.nan, len(self.sent))  # takes no memory
            if column.shape != (len(self.sent),):
                raise ValueError(f"{name}: expected {len(self.sent)} values, got an array of shape {column.shape}")
            object.__setattr__(self, name, column)

    def __len__(self) -> int:
        return len(self.sent)

    @property
    def ok(self) -> NDArray[np.bool_]:
        """Mask of the requests answered with a 2xx, shape (n,)."""
        good: NDArray[np.bool_] = (self.status >= 200) & (self.status < 300)
        return good

    def where(self, mask: NDArray[np.bool_]) -> Samples:
        """Return the requests selected by ``mask``, shape (n,)."""
        columns = {name: getattr(self, name) for name in COLUMNS}
        return Samples(**{name: values[mask] for name, values in columns.items() if not _is_unknown(values)})

    def columns(self) -> Iterator[tuple[str, Column]]:
        """Yield name and values of every column with known values."""
        for name in COLUMNS:
            values = getattr(self, name)
            if not np.isnan(values).all():
                yield name, values

    def to_json(self) -> dict[str, list[float | None]]:
        """Return the known columns, with None for NaN and times in ms rounded to µs."""
        rounded = {name: values if name == "sent" else np.round(values, 3) for name, values in self.columns()}
        return {
            name: [None if np.isnan(value) else float(value) for value in values] for name, values in rounded.items()
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Sequence[float | None]]) -> Samples:
        """Read the output of :meth:`to_json`; columns of later versions are ignored.

        Raises:
            ValueError: a column is missing or has the wrong length.
        """
        known: dict[str, Any] = {name: np.array(value[name], dtype=np.float64) for name in COLUMNS if name in value}
        missing = {"sent", "latency", "status"} - known.keys()
        if missing and value:
            raise ValueError(f"columns are missing: {', '.join(sorted(missing))}")
        return cls(**known) if known else cls(_empty(), _empty(), _empty())

    @classmethod
    def join(cls, parts: Sequence[Samples]) -> Samples:
        """Concatenate the requests of several runs."""
        if not parts:
            return cls(_empty(), _empty(), _empty())
        return cls(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in COLUMNS})


COLUMNS: Final = tuple(one.name for one in fields(Samples))
