"""Compute identical items of a batch once."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import orjson

from tsbatch.protocol.request import Item


def group_identical(items: Sequence[Item]) -> tuple[list[Item], list[int]]:
    """Return the distinct items, and for each item the index of its equal among them.

    Items are identical if their values and parameters are, including types (``1``, ``1.0`` and ``True`` are three
    items), and if they belong to the same kind of request. Values that are expensive to compare count as distinct.
    """
    indices: dict[Hashable, int] = {}
    distinct: list[Item] = []
    twins: list[int] = []
    for item in items:
        index = indices.setdefault(_key(item), len(distinct))
        if index == len(distinct):
            distinct.append(item)
        twins.append(index)
    return distinct, twins


def _key(item: Item) -> Hashable:
    try:
        # orjson calls dict() for parameters that are nested models
        parameters = orjson.dumps(dict(item.parameters), dict, orjson.OPT_SORT_KEYS) if item.parameters else b""
        return item.request.kind, _value_key(item.value), parameters
    except (TypeError, ValueError):
        return id(item)


def _value_key(value: Any) -> Hashable:
    if isinstance(value, (str, bytes, int)):
        return type(value), value
    if isinstance(value, bytearray):
        return bytearray, bytes(value)
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    written = orjson.dumps(value)
    if b"null" in written:
        raise ValueError("null may stand for None, NaN or infinity")
    return written
