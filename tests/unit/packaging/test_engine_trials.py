"""What counts as the same answer, which trial wins, the texts."""

from __future__ import annotations

import math
from statistics import median, quantiles

import pytest

from tsbatch.errors import UsageError
from tsbatch.packaging.engine_selection import agree, lay_out, mixed_texts
from tsbatch.packaging.engine_trials import COLUMNS, Trial, fastest


def test_the_cosine_for_vectors_of_one_length():
    turned = [math.cos(0.1), math.sin(0.1)]
    assert agree({"embedding": [1.0, 0.0]}, {"embedding": turned}) == pytest.approx(math.cos(0.1))
    assert agree({"embedding": turned}, {"embedding": turned}) == 1.0
    assert agree([1.0, 0.0], [1.1, 0.0]) == pytest.approx(0.995)  # a single score must not slip through
    assert agree([0.0], [0.0]) == 1.0
    assert agree([0.0], [0.1]) == 0.0


@pytest.mark.parametrize(
    "one, other",
    [
        ({"label": "cat", "score": 0.9}, {"label": "dog", "score": 0.9}),
        ([1.0, 2.0], [1.0]),
        ([1.0], [None]),
        ({"tokens": 3}, {"tokens": 4}),
        ({"a": 1.0}, {"b": 1.0}),
    ],
)
def test_what_is_no_fraction_must_be_the_same(one, other):
    assert agree(one, other) == -1.0


def test_an_answer_that_is_not_a_number_never_agrees():
    assert not agree([1.0], [math.nan]) >= 0.9


def test_the_fastest_without_a_problem_wins():
    trials = [
        Trial("eager", "float32", "packed", 50.0, 110.0, 1.0, 1.0),
        Trial("wrong", "int8", "bucketed", 90.0, 300.0, 0.9, 1.0, problem="strays"),
        Trial("quick", "float32", "bucketed", 70.0, 120.0, 0.99999, 1.0),
        Trial("absent", "float32", problem="needs it"),
    ]
    assert fastest(trials).engine == "quick"
    with pytest.raises(UsageError, match=r"--engine wrong \(int8\): strays; --engine absent \(float32\): needs it"):
        fastest([trials[1], trials[3]])


def test_a_row_has_a_cell_for_each_head():
    full = Trial("eager", "float32", "packed", 50.04, 110.0, 0.9999999, 1.25).cells()
    assert full == ("eager", "float32", "packed", "50.0", "110.0", "1.000000", "1.2", "")
    assert Trial("absent", "float32", problem="needs it").cells() == ("absent", "float32", *[None] * 5, "needs it")
    assert len(full) == len(COLUMNS)


def test_the_texts_are_distinct_and_of_mixed_lengths():
    lengths = [len(text.split()) for text in mixed_texts(1000)]
    assert median(lengths) == pytest.approx(20, abs=2)
    assert quantiles(lengths, n=20)[-1] == pytest.approx(120, rel=0.15)
    assert len(set(mixed_texts(64))) == 64
    assert mixed_texts(64) == mixed_texts(64)


def test_an_archive_is_laid_out_as_it_will_be_unpacked_twice(tmp_path, monkeypatch):
    weights = tmp_path / "weights"
    weights.write_bytes(b"w" * 10)
    for content in (b"one", b"two"):
        lay_out({"a/weights": weights, "config.yaml": content}, tmp_path / "laid")
        assert (tmp_path / "laid" / "a" / "weights").read_bytes() == b"w" * 10
        assert (tmp_path / "laid" / "config.yaml").read_bytes() == content
    monkeypatch.setattr("pathlib.Path.symlink_to", lambda *_: (_ for _ in ()).throw(OSError("no links")))
    lay_out({"weights": weights}, tmp_path / "copied")
    assert not (tmp_path / "copied" / "weights").is_symlink()
    assert (tmp_path / "copied" / "weights").read_bytes() == b"w" * 10
