"""Rows of files as items."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from tsbatch.errors import BadRequest, PayloadTooLarge, Unprocessable
from tsbatch.tasks.tensors.inputs import TensorInput, split_rows


def test_too_many_rows_are_refused_before_any_is_made():
    """A hundred megabytes of an .npz may be as many rows."""
    arrays = {"input": np.zeros((200_000, 1), dtype=bool)}
    tracemalloc.start()
    try:
        with pytest.raises(PayloadTooLarge, match="200,000 items, over the limit of 64"):
            split_rows(arrays, [TensorInput()], 64)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_as_many_rows_as_are_taken():
    rows, single = split_rows({"input": np.zeros((64, 1))}, [TensorInput()], 64)
    assert (len(rows), single) == (64, False)


@pytest.mark.parametrize(
    "arrays, error",
    [
        ({"a": np.zeros((0, 4))}, BadRequest),
        ({"a": np.zeros((2, 4)), "b": np.zeros(3)}, Unprocessable),
        ({"a": np.zeros((2, 4)), "b": np.array(3)}, Unprocessable),
        ({"a": np.array(3)}, Unprocessable),
    ],
)
def test_rows_that_are_none(arrays, error):
    with pytest.raises(error):
        split_rows(arrays, [TensorInput(name=name) for name in arrays], 64)
