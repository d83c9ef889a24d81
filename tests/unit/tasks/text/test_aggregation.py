"""From labelled tokens to entities, by hand-made examples."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from tsbatch.tasks.text.aggregation import Token, find_entities, merge_windows, read_tokens

NAMES = ["O", "B-PER", "I-PER", "LOC"]
SCORES = np.array(
    [
        [0.1, 0.6, 0.2, 0.1],  # Ada
        [0.2, 0.1, 0.6, 0.1],  # Love
        [0.1, 0.05, 0.05, 0.8],  # ##lace
        [0.9, 0.05, 0.03, 0.02],  # in
        [0.1, 0.4, 0.2, 0.3],  # Lon
        [0.1, 0.1, 0.1, 0.7],  # ##don
        [0.0, 0.9, 0.1, 0.0],  # Ann
        [0.0, 0.8, 0.2, 0.0],  # Bo
    ],
    dtype=np.float32,
)
TOKENS = [
    Token("ada", 0, 3, 1, inside=False),
    Token("love", 4, 8, 2, inside=False),
    Token("##lace", 8, 12, 3, inside=True),
    Token("in", 13, 15, 4, inside=False),
    Token("lon", 16, 19, 5, inside=False),
    Token("##don", 19, 22, 6, inside=True),
    Token("ann", 23, 26, 7, inside=False),
    Token("bo", 27, 29, 8, inside=False),
]


def to_text(tokens):
    return " ".join(tokens).replace(" ##", "")


def entities(strategy, tokens=TOKENS, scores=SCORES):
    [found] = find_entities([tokens], scores, [strategy], NAMES, to_text)
    return found


def brief(found):
    return [(entity["entity_group"], entity["word"], round(float(entity["score"]), 3)) for entity in found]


def test_none_has_an_entry_a_token():
    found = entities("none")
    assert [entity["entity"] for entity in found] == ["B-PER", "I-PER", "LOC", "O", "B-PER", "LOC", "B-PER", "B-PER"]
    assert found[2] == {"entity": "LOC", "score": SCORES[2, 3], "word": "##lace", "start": 8, "end": 12, "index": 3}


def test_simple_joins_neighbours_of_one_class_but_not_two_beginnings():
    assert brief(entities("simple")) == [
        ("PER", "ada love", 0.6),
        ("LOC", "##lace", 0.8),
        ("O", "in", 0.9),
        ("PER", "lon", 0.4),
        ("LOC", "##don", 0.7),
        ("PER", "ann", 0.9),
        ("PER", "bo", 0.8),
    ]


@pytest.mark.parametrize(
    "strategy, expected",
    [
        ("first", [("PER", "ada lovelace", 0.6), ("O", "in", 0.9), ("PER", "london", 0.4)]),
        ("average", [("PER", "ada", 0.6), ("LOC", "lovelace", 0.45), ("O", "in", 0.9), ("LOC", "london", 0.5)]),
        ("max", [("PER", "ada", 0.6), ("LOC", "lovelace", 0.8), ("O", "in", 0.9), ("LOC", "london", 0.7)]),
    ],
)
def test_one_label_a_word(strategy, expected):
    found = entities(strategy)
    assert brief(found)[:-2] == expected
    assert (found[-3]["start"], found[-3]["end"]) == (16, 22)


def test_windows_with_strategies_of_their_own_at_once():
    strategies = ["max", "none", "first", "average", "simple"]
    together = find_entities([TOKENS] * 5, np.concatenate([SCORES] * 5), strategies, NAMES, to_text)
    assert together == [entities(strategy) for strategy in strategies]


def test_a_window_begins_with_a_word_even_inside_one():
    parts = find_entities([TOKENS[:2], TOKENS[2:]], SCORES, ["first", "first"], NAMES, to_text)
    assert [brief(part)[0] for part in parts] == [("PER", "ada love", 0.6), ("LOC", "##lace", 0.8)]


def test_no_token_no_entity():
    empty = np.empty((0, 4), dtype=np.float32)
    assert find_entities([[], []], empty, ["max", "none"], NAMES, to_text) == [[], []]
    assert find_entities([], empty, [], NAMES, to_text) == []


@pytest.mark.parametrize("strategy", ["none", "simple", "first", "average", "max"])
def test_a_model_that_answers_nan_loses_no_word(strategy):
    broken = np.full_like(SCORES, np.nan)
    found = entities(strategy, scores=broken)
    assert " ".join(entity["word"] for entity in found).replace(" ##", "") == "ada lovelace in london ann bo"
    assert all(np.isnan(entity["score"]) for entity in found)


def entity(start, end, score):
    return {"entity_group": "PER", "score": score, "word": "", "start": start, "end": end}


def test_of_entities_that_overlap_the_longest_then_the_surest_stays():
    found = [entity(0, 4, 0.9), entity(10, 14, 0.5), entity(2, 9, 0.3), entity(10, 14, 0.6), entity(12, 14, 0.9)]
    assert merge_windows(found) == [entity(2, 9, 0.3), entity(10, 14, 0.6)]
    assert merge_windows([]) == []


def test_tokens_inside_a_word_by_their_mark_and_by_blanks():
    text = "Ada Ω lace"
    encoding = SimpleNamespace(
        ids=[2, 5, 6, 1, 7, 3],
        tokens=["[CLS]", "ad", "##a", "[UNK]", "lace", "[SEP]"],
        offsets=[(0, 0), (0, 2), (2, 3), (4, 5), (6, 10), (0, 0)],
        special_tokens_mask=[1, 0, 0, 0, 0, 1],
    )
    marked = read_tokens(text, encoding, unknown=1, marked=True)
    assert [(token.word, token.position, token.inside) for token in marked] == [
        ("ad", 1, False),
        ("##a", 2, True),
        ("Ω", 3, False),
        ("lace", 4, False),
    ]
    assert [token.inside for token in read_tokens(text, encoding, unknown=None, marked=False)] == [
        False,
        True,
        False,
        False,
    ]
