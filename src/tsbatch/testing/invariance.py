"""The assertion that batching does not change answers.

An answer may depend only on its request: not on the other requests of the batch, their number or order, nor on earlier
requests. Floating-point sums depend slightly on the shape of the computation, hence the tolerance.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tsbatch.emulation.client_request import Call
from tsbatch.emulation.frames import Answer
from tsbatch.emulation.runner import HandlerRunner

_NUMBER = (int, float)
_SHOWN = 60
_SIZES = (1, 2, 3, 7)


@dataclass(frozen=True, slots=True)
class _Tolerance:
    rtol: float
    atol: float

    def takes(self, alone: float, batched: float) -> bool:
        # Equality covers infinities; NaN counts as equal to NaN.
        both_nan = math.isnan(alone) and math.isnan(batched)
        return alone == batched or both_nan or abs(alone - batched) <= self.atol + self.rtol * abs(alone)


def assert_batch_invariant(
    runner: HandlerRunner,
    requests: Iterable[Any],
    *,
    rtol: float = 1e-4,
    atol: float = 1e-5,
    batch_sizes: Sequence[int] | None = None,
    seed: int = 0,
) -> None:
    """Assert that each request gets the same answer alone and in any batch.

    Each request is sent alone; then all are sent in batches of each size and in one batch, in the given order,
    reversed and shuffled; then each alone again. Statuses, content types, JSON structure and strings must be equal,
    numbers within ``atol + rtol * abs(alone)``; a body that is not JSON must be the same bytes. Headers are not
    compared, because timings differ.

    Args:
        runner: the handler.
        requests: at least two, as for ``HandlerRunner.predict``, preferably of different lengths.
        rtol: relative tolerance.
        atol: absolute tolerance.
        batch_sizes: sizes up to the runner's ``batch_size``; None for those of 1, 2, 3 and 7 that are.
        seed: the seed of the shuffled order.

    Raises:
        AssertionError: an answer differs; the message has the request, its batch, the path in the JSON and both values.
        ValueError: fewer than two requests, or a batch size that the runner does not allow.
    """
    __tracebackhide__ = True
    calls = [Call.of(request) for request in requests]
    if len(calls) < 2:
        raise ValueError("one request alone has no company to differ in; give at least two, better seven or more")
    if batch_sizes is None:
        batch_sizes = [size for size in _SIZES if size <= runner.batch_size]
    too_large = [size for size in batch_sizes if not 1 <= size <= runner.batch_size]
    if too_large:
        raise ValueError(f"batch sizes {too_large} are not from 1 to the runner's batch_size, {runner.batch_size}")
    tolerance = _Tolerance(rtol, atol)
    alone = [runner.predict_one(call) for call in calls]
    for order, batch in _batches(len(calls), {*batch_sizes, min(len(calls), runner.batch_size)}, seed):
        for index, answer in zip(batch, runner.predict([calls[index] for index in batch]), strict=True):
            difference = _difference(alone[index], answer, tolerance)
            if difference:
                raise AssertionError(_explain(index, calls[index], order, batch, difference, tolerance))


def _batches(count: int, sizes: Iterable[int], seed: int) -> Iterator[tuple[str, list[int]]]:
    orders = {"in order": list(range(count)), "reversed": list(reversed(range(count)))}
    orders["shuffled"] = random.Random(seed).sample(range(count), count)
    for size in sorted(sizes):
        for name, order in orders.items():
            for start in range(0, count, size):
                yield name, order[start : start + size]
    for index in range(count):
        yield "asked alone once more", [index]


def _explain(index: int, call: Call, order: str, batch: Sequence[int], difference: str, tolerance: _Tolerance) -> str:
    shown = repr(call.body if call.fields is None else dict(call.fields))
    shown = shown if len(shown) <= _SHOWN else shown[: _SHOWN - 4] + " ..."
    return (
        f"request {index} ({shown}) is answered differently in the batch of {len(batch)} {list(batch)}, {order}:\n"
        f"  {difference}\n  tolerance: atol={tolerance.atol:g}, rtol={tolerance.rtol:g}"
    )


def _difference(alone: Answer, batched: Answer, tolerance: _Tolerance) -> str | None:
    for what, one, other in (
        ("status", alone.status, batched.status),
        ("content type", alone.content_type, batched.content_type),
    ):
        if one != other:
            return f"{what}: alone {one!r}, in the batch {other!r} ({batched.text[: 2 * _SHOWN]!r})"
    if alone.body == batched.body:
        return None
    try:
        values = json.loads(alone.body), json.loads(batched.body)
    except ValueError:
        return f"body: alone {alone.body[:_SHOWN]!r}, in the batch {batched.body[:_SHOWN]!r}"
    return _compare(*values, "$", tolerance)


def _compare(alone: Any, batched: Any, path: str, tolerance: _Tolerance) -> str | None:
    if isinstance(alone, dict) and isinstance(batched, dict) and alone.keys() == batched.keys():
        pairs: Iterable[tuple[Any, Any, str]] = ((alone[key], batched[key], f"{path}.{key}") for key in alone)
        return next(filter(None, (_compare(*pair, tolerance) for pair in pairs)), None)
    if isinstance(alone, list) and isinstance(batched, list) and len(alone) == len(batched):
        pairs = ((one, other, f"{path}[{at}]") for at, (one, other) in enumerate(zip(alone, batched, strict=True)))
        return next(filter(None, (_compare(*pair, tolerance) for pair in pairs)), None)
    if _is_number(alone) and _is_number(batched):
        if tolerance.takes(alone, batched):
            return None
        return f"{path}: alone {alone!r}, in the batch {batched!r}, difference {abs(alone - batched):.3g}"
    if type(alone) is type(batched) and alone == batched:
        return None
    return f"{path}: alone {_short(alone)}, in the batch {_short(batched)}"


def _is_number(value: Any) -> bool:
    return isinstance(value, _NUMBER) and not isinstance(value, bool)


def _short(value: Any) -> str:
    if isinstance(value, dict):
        return f"an object with the keys {sorted(value)}"
    return f"a list of {len(value)}" if isinstance(value, list) else repr(value)[:_SHOWN]
