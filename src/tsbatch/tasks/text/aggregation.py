"""Combine labelled tokens into entities, as transformers' TokenClassificationPipeline does.

::

    tokens ─ pieces ─ label and score ─ groups
             each token by itself (none, simple), or the tokens of a word together (first, average, max)

The scores of a whole batch are computed at once, whatever the strategy of each window
(transformers/pipelines/token_classification.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

Array = np.ndarray[Any, Any]
Strategy = Literal["none", "simple", "first", "average", "max"]
Entity = dict[str, Any]
ToText = Callable[[list[str]], str]
"""A tokenizer's method that turns tokens into text."""

TOKEN_KEYS = ("entity", "score", "word", "start", "end", "index")
_BY_WORD = frozenset({"first", "average", "max"})


class Token(NamedTuple):
    """A token of a window that is not a special one.

    Attributes:
        word: the token as the tokenizer writes it; the text for an unknown token.
        start: its first character in the text.
        end: the character after its last.
        position: its index in the window, special tokens included.
        inside: it continues the word of the previous token.
    """

    word: str
    start: int
    end: int
    position: int
    inside: bool


class _Piece(NamedTuple):
    entity: str
    score: np.floating[Any]
    word: str
    start: int
    end: int
    position: int


def read_tokens(text: str, encoding: Any, *, unknown: int | None, marked: bool) -> list[Token]:
    """The tokens of a window without the special ones.

    Args:
        text: the whole text.
        encoding: the tokenizer's result for the window (``tokenizers.Encoding``).
        unknown: the id of the tokenizer's unknown token.
        marked: the tokenizer marks tokens inside a word, as WordPiece does with ``##``. Otherwise a token counts as
            inside a word if there is no space at its start or directly before it.
    """
    columns = zip(encoding.ids, encoding.tokens, encoding.offsets, encoding.special_tokens_mask, strict=True)
    tokens = []
    for index, (identity, word, (start, end), special) in enumerate(columns):
        if special:
            continue
        if identity == unknown:
            tokens.append(Token(text[start:end], start, end, index, inside=False))
        elif marked:
            tokens.append(Token(word, start, end, index, inside=len(word) != end - start))
        else:
            inside = start > 0 and " " not in text[start - 1 : start + 1]
            tokens.append(Token(word, start, end, index, inside))
    return tokens


def find_entities(
    windows: Sequence[Sequence[Token]],
    scores: Array,
    strategies: Sequence[Strategy],
    names: Sequence[str],
    to_text: ToText,
) -> list[list[Entity]]:
    """Find the entities of each window, with those of labels that a request ignores.

    Args:
        windows: the tokens of each window.
        scores: probabilities of all these tokens in order, shape (tokens, classes).
        strategies: the strategy of each window.
        names: the names of the classes.
        to_text: turns tokens into text.

    Returns:
        With ``none`` an entry for each token: ``entity``, ``score``, ``index``, ``word``, ``start``, ``end``.
        Otherwise one for neighbours of one class together: ``entity_group``, ``score``, ``word``, ``start``, ``end``.
    """
    split = [
        _words(tokens) if strategy in _BY_WORD else [[token] for token in tokens]
        for tokens, strategy in zip(windows, strategies, strict=True)
    ]
    sizes = np.asarray([len(word) for words in split for word in words], dtype=np.int64)
    by_piece = [strategy for words, strategy in zip(split, strategies, strict=True) for _ in words]
    labels, best = _label(scores, sizes, np.asarray(by_piece, dtype=str))
    labelled = iter(zip(labels.tolist(), best, strict=True))
    entities = []
    for words, strategy in zip(split, strategies, strict=True):
        pieces = []
        for word, (label, score) in zip(words, labelled, strict=False):  # the windows share one iterator
            text = to_text([token.word for token in word]) if strategy in _BY_WORD else word[0].word
            pieces.append(_Piece(names[label], score, text, word[0].start, word[-1].end, word[0].position))
        entities.append(
            [dict(zip(TOKEN_KEYS, piece, strict=True)) for piece in pieces]
            if strategy == "none"
            else _by_group(pieces, to_text)
        )
    return entities


def _words(tokens: Sequence[Token]) -> list[list[Token]]:
    words: list[list[Token]] = []
    for token in tokens:
        if words and token.inside:
            words[-1].append(token)
        else:
            words.append([token])
    return words


def _label(scores: Array, sizes: Array, strategies: Array) -> tuple[Array, Array]:
    """Class and score of each piece; ``sizes`` are their numbers of tokens."""
    if not len(sizes):
        return np.empty(0, np.int64), np.empty(0, scores.dtype)
    heads = np.cumsum(sizes) - sizes
    chosen = scores[heads]
    averaged, highest = strategies == "average", strategies == "max"
    if averaged.any():
        chosen[averaged] = (np.add.reduceat(scores, heads) / sizes[:, None])[averaged]
    if highest.any():
        peaks = np.nan_to_num(scores.max(axis=1))  # a model that gives NaN must not lose its words
        at_peak = np.flatnonzero(peaks == np.repeat(np.maximum.reduceat(peaks, heads), sizes))
        piece = np.repeat(np.arange(len(sizes)), sizes)[at_peak]
        first = at_peak[np.unique(piece, return_index=True)[1]]
        chosen[highest] = scores[first[highest]]
    labels = chosen.argmax(axis=1)
    return labels, np.take_along_axis(chosen, labels[:, None], axis=1)[:, 0]


def _by_group(pieces: Sequence[_Piece], to_text: ToText) -> list[Entity]:
    """Group neighbours of one class; a piece that begins an entity (``B-``) starts a new group."""
    groups: list[list[_Piece]] = []
    last = ""
    for piece in pieces:
        label = piece.entity  # for example B-PER, I-PER or PER
        name = label[2:] if label.startswith(("B-", "I-")) else label
        if groups and name == last and not label.startswith("B-"):
            groups[-1].append(piece)
        else:
            groups.append([piece])
        last = name
    return [
        {
            "entity_group": group[0].entity.split("-", 1)[-1],
            "score": np.mean([piece.score for piece in group]),
            "word": to_text([piece.word for piece in group]),
            "start": group[0].start,
            "end": group[-1].end,
        }
        for group in groups
    ]


def merge_windows(entities: Sequence[Entity]) -> list[Entity]:
    """Merge the entities of a text's windows; of overlapping ones the longest stays, of equal length the best."""
    kept: list[Entity] = []
    for entity in sorted(entities, key=lambda entity: entity["start"]):
        if not kept or not kept[-1]["start"] <= entity["start"] < kept[-1]["end"]:
            kept.append(entity)
        elif _priority(entity) > _priority(kept[-1]):
            kept[-1] = entity
    return kept


def _priority(entity: Entity) -> tuple[int, float]:
    return entity["end"] - entity["start"], entity["score"]
