"""Identical items: the same value, of the same type, with the same parameters, asked the same."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from tsbatch.batching.deduplication import group_identical
from tsbatch.protocol.request import NO_PARAMETERS, Item, Request

PREDICT, EXPLAIN = Request.of(""), Request.of("", kind="explain")


class Wish(BaseModel):
    top: int = 1


def item(value, parameters=NO_PARAMETERS, request=PREDICT):
    return Item(value, parameters, request)


def twins_of(*items):
    distinct, twins = group_identical(items)
    assert len(twins) == len(items)
    return distinct, twins


DIFFERENT = {
    "int": 1,
    "float": 1.0,
    "bool": True,
    "text": "1",
    "bytes": b"1",
    "list": [1],
    "float list": [1.0],
    "bool list": [True],
    "text list": ["1"],
    "nested": [[1]],
    "object": {"a": 1},
    "object of float": {"a": 1.0},
    "other key": {"b": 1},
    "zero": 0.0,
    "minus zero": -0.0,
    "int zero": 0,
    "false": False,
    "none": None,
    "nan": math.nan,
    "inf": math.inf,
    "list of none": [None],
    "list of nan": [math.nan],
    "list of inf": [math.inf],
    "array": np.array([1]),
    "int32 array": np.array([1], dtype=np.int32),
    "float array": np.array([1.0]),
    "column": np.array([[1]]),
    "integer zeros": np.zeros(2, dtype=np.int64),
    "float zeros": np.zeros(2, dtype=np.float64),
    "empty text": "",
    "empty list": [],
    "empty object": {},
}


def test_no_two_different_values_are_twins():
    taken_for_twins = [
        names
        for names in combinations(DIFFERENT, 2)
        if twins_of(*(item(DIFFERENT[name]) for name in names))[1] != [0, 1]
    ]
    assert taken_for_twins == []


@pytest.mark.parametrize(
    "make",
    [
        lambda: "a sentence",
        lambda: b"bytes",
        lambda: bytearray(b"bytes"),
        lambda: 3,
        lambda: 0.1,
        lambda: True,
        lambda: [1, [2.5, {"a": "b"}]],
        lambda: {"premise": "x", "hypothesis": ["y", 1]},
        lambda: np.arange(6.0).reshape(2, 3),
    ],
)
def test_equal_values_are_computed_once(make):
    distinct, twins = twins_of(item(make()), item("other"), item(make()))
    assert twins == [0, 1, 0]
    assert len(distinct) == 2


def test_parameters_make_items_different():
    items = [item("x", {"a": 1}), item("x", {"a": 1.0}), item("x", {"a": True}), item("x", {"b": 1}), item("x")]
    assert twins_of(*items)[1] == [0, 1, 2, 3, 4]


def test_the_order_of_parameters_does_not():
    assert twins_of(item("x", {"a": 1, "b": [2]}), item("x", {"b": [2], "a": 1}))[1] == [0, 0]


def test_parameters_of_a_class():
    assert twins_of(item("x", Wish(top=1)), item("x", Wish(top=2)), item("x", Wish()))[1] == [0, 1, 0]


def test_an_explanation_is_not_a_prediction():
    assert twins_of(item("x"), item("x", request=EXPLAIN), item("x", request=EXPLAIN))[1] == [0, 1, 1]


@pytest.mark.parametrize("make", [object, lambda: torch.ones(2), lambda: {1, 2}, lambda: 2**70, lambda: "\ud800"[0:1]])
def test_what_cannot_be_compared_is_computed_each_time(make):
    first, second = item([make()]), item([make()])
    assert twins_of(first, second)[1] == [0, 1]


def test_parameters_that_cannot_be_compared():
    assert twins_of(item("x", {"a": object()}), item("x", {"a": object()}))[1] == [0, 1]


@given(values=st.lists(st.sampled_from(["a", "b", 1, 1.0, True, None, "1"]), max_size=12))
def test_each_item_finds_its_own_value(values):
    items = [item(value) for value in values]
    distinct, twins = group_identical(items)
    for mine, twin in zip(items, twins, strict=True):
        assert type(distinct[twin].value) is type(mine.value)
        assert distinct[twin].value == mine.value


def test_the_first_of_the_twins_is_the_one_computed():
    first, second = item("x"), item("x")
    assert group_identical([first, second])[0] == [first]


class Nested(BaseModel):
    more: Wish = Wish()


def test_parameters_with_a_section_of_their_own():
    distinct, twins = twins_of(*(item("a", Nested(more=Wish(top=top))) for top in (1, 2, 1)))
    assert (len(distinct), twins) == (2, [0, 1, 0])
