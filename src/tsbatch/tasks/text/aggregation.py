"""From labelled tokens to entities, as transformers' TokenClassificationPipeline makes them.

::

    tokens ─ pieces ─ label and score ─ groups
             each token by itself (none, simple), or the tokens of a word together (first, average, max)

The scores of a whole batch are computed at once, whatever strategy each window has
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
"""A tokenizer's way from tokens to text."""

_BY_WORD = frozenset({"first", "average", "max"})


class Token(NamedTuple):
    """A token of a window that is no special one.

    Attributes:
        word: the token as the tokenizer writes it; of one it does not know, the text.
        start: its first character in the text.
        end: the character after its last.
        place: its place in the window, special tokens counted.
        inside: it goes on with the word of the token before.
    """

    word: str
    start: int
    end: int
    place: int
    inside: bool


class _Piece(NamedTuple):
    entity: str
    score: np.floating[Any]
    word: str
    start: int
    end: int
    place: int


def read_tokens(text: str, encoding: Any, *, unknown: int | None, marked: bool) -> list[Token]:
    """The tokens of a window that are no special ones.

    Args:
        text: the whole text.
        encoding: the tokenizer's record of the window (``tokenizers.Encoding``).
        unknown: the id of what the tokenizer does not know.
        marked: the tokenizer marks tokens inside a word, as WordPiece does with ``##``. Otherwise a token is taken to
            be inside one when there is no blank at its start or right before.
    """
    columns = zip(encoding.ids, encoding.tokens, encoding.offsets, encoding.special_tokens_mask, strict=True)
    tokens = []
    for place, (identity, word, (start, end), special) in enumerate(columns):
        if special:
            continue
        if identity == unknown:
            tokens.append(Token(text[start:end], start, end, place, inside=False))
        elif marked:
            tokens.append(Token(word, start, end, place, inside=len(word) != end - start))
        else:
            inside = start > 0 and " " not in text[start - 1 : start + 1]
            tokens.append(Token(word, start, end, place, inside))
    return tokens


def find_entities(
    windows: Sequence[Sequence[Token]],
    scores: Array,
    strategies: Sequence[Strategy],
    names: Sequence[str],
    to_text: ToText,
) -> list[list[Entity]]:
    """The entities of each window, those of uninteresting labels too.

    Args:
        windows: the tokens of each window.
        scores: probabilities of all these tokens, one row each, in order: shape (tokens, classes).
        strategies: one a window.
        names: the classes.
        to_text: the tokenizer's way from tokens to text.

    Returns:
        With ``none`` an entry a token: ``entity``, ``score``, ``index``, ``word``, ``start``, ``end``. Otherwise
        neighbours of one class together: ``entity_group``, ``score``, ``word``, ``start``, ``end``.
    """
    split = [
        _words(tokens) if way in _BY_WORD else _single(tokens) for tokens, way in zip(windows, strategies, strict=True)
    ]
    sizes = np.asarray([len(word) for words in split for word in words], dtype=np.int64)
    ways = [way for words, way in zip(split, strategies, strict=True) for _ in words]
    labels, best = _label(scores, sizes, np.asarray(ways, dtype=str))
    labelled = iter(zip(labels.tolist(), best, strict=True))
    entities = []
    for words, way in zip(split, strategies, strict=True):
        pieces = [
            _Piece(names[label], score, _spelled(word, way, to_text), word[0].start, word[-1].end, word[0].place)
            for word, (label, score) in zip(words, labelled, strict=False)  # the windows share one iterator
        ]
        entities.append(_each(pieces) if way == "none" else _groups(pieces, to_text))
    return entities


def _single(tokens: Sequence[Token]) -> list[list[Token]]:
    return [[token] for token in tokens]


def _words(tokens: Sequence[Token]) -> list[list[Token]]:
    words: list[list[Token]] = []
    for token in tokens:
        if words and token.inside:
            words[-1].append(token)
        else:
            words.append([token])
    return words


def _spelled(word: Sequence[Token], way: Strategy, to_text: ToText) -> str:
    return to_text([token.word for token in word]) if way in _BY_WORD else word[0].word


def _label(scores: Array, sizes: Array, ways: Array) -> tuple[Array, Array]:
    """Class and score of each piece; ``sizes`` are the numbers of their tokens, ``ways`` their strategies."""
    if not len(sizes):
        return np.empty(0, np.int64), np.empty(0, scores.dtype)
    heads = np.cumsum(sizes) - sizes
    chosen = scores[heads]
    averaged, highest = ways == "average", ways == "max"
    if averaged.any():
        chosen[averaged] = (np.add.reduceat(scores, heads) / sizes[:, None])[averaged]
    if highest.any():
        peaks = np.nan_to_num(scores.max(axis=1))  # a model that answers NaN must not lose its words
        at_peak = np.flatnonzero(peaks == np.repeat(np.maximum.reduceat(peaks, heads), sizes))
        piece = np.repeat(np.arange(len(sizes)), sizes)[at_peak]
        first = at_peak[np.unique(piece, return_index=True)[1]]
        chosen[highest] = scores[first[highest]]
    labels = chosen.argmax(axis=1)
    return labels, np.take_along_axis(chosen, labels[:, None], axis=1)[:, 0]


def _each(pieces: Sequence[_Piece]) -> list[Entity]:
    keys = ("entity", "score", "word", "start", "end", "index")
    return [dict(zip(keys, piece, strict=True)) for piece in pieces]


def _groups(pieces: Sequence[_Piece], to_text: ToText) -> list[Entity]:
    """Neighbours of one class together, but what begins an entity (``B-``) starts a group."""
    groups: list[list[_Piece]] = []
    last = ""
    for piece in pieces:
        begins, name = _class(piece.entity)
        if groups and name == last and not begins:
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


def _class(label: str) -> tuple[bool, str]:
    """Whether a label of the kind ``B-PER``, ``I-PER`` or ``PER`` begins an entity, and the entity's class."""
    return label.startswith("B-"), label[2:] if label.startswith(("B-", "I-")) else label


def merge_windows(entities: Sequence[Entity]) -> list[Entity]:
    """The entities of a text's windows as one list: of those that overlap the longest, then the surest."""
    kept: list[Entity] = []
    for entity in sorted(entities, key=lambda entity: entity["start"]):
        if not kept or not kept[-1]["start"] <= entity["start"] < kept[-1]["end"]:
            kept.append(entity)
        elif _weight(entity) > _weight(kept[-1]):
            kept[-1] = entity
    return kept


def _weight(entity: Entity) -> tuple[int, float]:
    return entity["end"] - entity["start"], entity["score"]
