"""From a request's wishes, the model's own defaults and the limits to a plan."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from tsbatch.errors import Unprocessable
from tsbatch.tasks.generation.parameters import GenerationParameters, make_plan, samples
from tsbatch.tasks.generation.token_selection import Plan


def plan(usual=None, *, prompt=10, room=1000, cap=500, **wish):
    return make_plan(GenerationParameters(**wish), usual or {}, prompt=prompt, room=room, cap=cap)


def test_greedy_and_256_tokens_where_nobody_says():
    assert plan() == Plan(256)


@pytest.mark.parametrize(
    "usual, wish, most, least",
    [
        ({}, {"max_new_tokens": 7, "min_new_tokens": 2}, 7, 2),
        ({}, {"max_length": 17, "min_length": 12}, 7, 2),
        ({"max_new_tokens": 9, "min_new_tokens": 3}, {}, 9, 3),
        ({"max_length": 19, "min_length": 13}, {}, 9, 3),
        ({"max_new_tokens": 9}, {"max_length": 30}, 20, 0),
        ({"max_length": 19}, {"max_new_tokens": 30}, 30, 0),
        ({"max_new_tokens": 9, "max_length": 99}, {}, 9, 0),
        ({"max_length": 10}, {}, 256, 0),
        ({}, {"max_new_tokens": 7, "max_length": 99}, 7, 0),
        ({"max_new_tokens": 9, "min_length": 50}, {}, 9, 9),
        ({"min_length": 5}, {"max_new_tokens": 7}, 7, 0),
    ],
)
def test_lengths(usual, wish, most, least):
    made = plan(usual, **wish)
    assert (made.max_new_tokens, made.min_new_tokens) == (most, least)


def test_a_default_fits_the_limits_and_a_wish_must():
    assert plan(room=40).max_new_tokens == 40
    assert plan(cap=30).max_new_tokens == 30
    assert plan({"max_new_tokens": 100}, room=40).max_new_tokens == 40
    with pytest.raises(Unprocessable, match="50 new tokens are over the positions of the model, 40"):
        plan(room=40, max_new_tokens=50)
    with pytest.raises(Unprocessable, match=r"50 new tokens are over handler\.max_new_tokens of this model, 30"):
        plan(cap=30, max_new_tokens=50)
    with pytest.raises(Unprocessable, match="max_length: 10 does not exceed the 10 tokens of the input"):
        plan(max_length=10)
    with pytest.raises(Unprocessable, match="at least 9 new tokens and at most 5"):
        plan(max_new_tokens=5, min_new_tokens=9)


@pytest.mark.parametrize(
    "usual, wish, expected",
    [
        ({}, {}, False),
        ({}, {"do_sample": True}, True),
        ({}, {"temperature": 0.5}, True),
        ({}, {"top_k": 5}, True),
        ({}, {"top_p": 0.5}, True),
        ({}, {"min_p": 0.5}, True),
        ({}, {"temperature": 0.0}, False),
        ({}, {"do_sample": True, "temperature": 0.0}, False),
        ({}, {"do_sample": False, "top_k": 5}, False),
        ({}, {"seed": 5}, False),
        ({"do_sample": True}, {}, True),
        ({"do_sample": True}, {"do_sample": False}, False),
        ({"temperature": 0.5}, {}, False),
    ],
)
def test_what_is_drawn(usual, wish, expected):
    assert samples(GenerationParameters(**wish), usual) is expected
    assert (plan(usual, **wish).temperature > 0) is expected


def test_sampling_as_the_model_has_it_and_the_request_overrides():
    usual = {"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.9, "min_p": 0.1, "num_beams": 4}
    made = plan(usual, seed=5, top_k=0)
    assert (made.temperature, made.top_k, made.top_p, made.min_p, made.seed, made.num_beams) == (
        0.6,
        0,
        0.9,
        0.1,
        (5, 0),
        1,
    )
    assert plan({"do_sample": True}) == Plan(256, temperature=1.0, top_k=50)


def test_beams_as_the_model_has_them_and_the_request_overrides():
    usual = {"num_beams": 4, "length_penalty": 2.0, "early_stopping": True, "no_repeat_ngram_size": 3}
    made = plan(usual, repetition_penalty=1.2)
    assert made == Plan(
        max_new_tokens=256,
        num_beams=4,
        length_penalty=2.0,
        early_stopping=True,
        no_repeat_ngram_size=3,
        repetition_penalty=1.2,
    )
    assert plan(usual, num_beams=1, early_stopping=False).num_beams == 1
    assert plan(usual, num_beams=2, early_stopping="never").early_stopping == "never"


def test_beams_and_sampling_exclude_each_other():
    with pytest.raises(Unprocessable, match="exclude each other"):
        plan(num_beams=2, do_sample=True)
    assert plan(num_beams=1, do_sample=True).temperature == 1.0


def test_stop_strings():
    assert plan(stop="x").stops == ("x",)
    assert plan(stop=["x", "yy"]).stops == ("x", "yy")


@pytest.mark.parametrize(
    "wish",
    [
        {"max_new_tokens": 0},
        {"max_new_tokens": True},
        {"max_new_tokens": "7"},
        {"temperature": -1.0},
        {"temperature": float("nan")},
        {"top_p": 0.0},
        {"top_p": 1.5},
        {"num_beams": 17},
        {"seed": -1},
        {"seed": 2**63},
        {"stop": ""},
        {"stop": ["x"] * 17},
        {"early_stopping": "sometimes"},
        {"repetition_penalty": 0.0},
        {"no_such": 1},
    ],
)
def test_wrong_values_are_refused(wish):
    with pytest.raises(ValidationError):
        GenerationParameters(**wish)
