"""Varied inputs for the ready-made tasks, and the batches to send them in."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from typing import Any

SENTENCES = [
    "A man is eating food.",
    "The weather is lovely today, is it not?",
    "Ada Lovelace worked with Charles Babbage in London on the Analytical Engine.",
    "Prices rose by 3.5 % in March 2024, after a fall of 1.2 % the month before.",
    "I did not like the film at all; the plot was thin and the ending worse.",
    "What a wonderful evening that was!",
]

TEXTS = [
    *SENTENCES,
    "x",
    "?",
    " . ",
    "ok",
    "  leading and trailing blanks  ",
    "UPPER lower MiXeD",
    "tab\tand\nnew line\r\nand more",
    "don't can't won't we'll",
    "https://example.org/?q=1&b=%20#frag",
    "user@example.org wrote: 50% off!!!",
    "1234567890 " * 8,
    "a" * 60,
    "Grüße aus Köln – schöne Straße!",
    "naïve café résumé, façade",
    "e\u0301 combining and zero\u200bwidth",
    "ﬁ ligature ½ ² ™",
    "今日はとても良い天気です。",
    "我来到北京清华大学，天气很好。",
    "中文 and English 混合 text",
    "Привет, мир! Как дела?",
    "مرحبا بالعالم، كيف حالك اليوم؟",
    "שלום עולם",
    "नमस्ते दुनिया",
    "안녕하세요 세계",
    "🙂🙂🙂 emoji 🚀",
    "👩‍👩‍👧‍👦 family and 🇩🇪 flag",
    "def f(x):\n    return x ** 2  # code",
    '{"json": [1, 2, 3]}',
    "<b>bold</b> &amp; more",
    *[" ".join(f"word{number}" for number in range(count)) for count in (2, 7, 19, 50)],
    *[(SENTENCES[2] + " ") * repeat for repeat in (2, 5, 13)],
]
"""44 texts, none without a token for a model that lower-cases and splits at blanks and marks."""


def batches(entries: Sequence[Any], sizes: Sequence[int] = (1, 7, 32), *, seed: int = 0) -> Iterator[list[int]]:
    """Places of ``entries``, shuffled and cut into batches of each size in turn: every entry comes in each size."""
    numbers = random.Random(seed)
    for size in sizes:
        order = list(range(len(entries)))
        numbers.shuffle(order)
        for start in range(0, len(order), size):
            yield order[start : start + size]


def answers_in_batches(handler: Any, requests: Sequence[Any], sizes: Sequence[int] = (1, 7, 32)) -> Iterator[Any]:
    """Each request in batches of each size: ``(place, answer)``, the answer parsed.

    Args:
        handler: a loaded handler.
        requests: bodies as a client would post them as JSON.
        sizes: requests in a batch.
    """
    from tsbatch.protocol.request import Request

    for places in batches(requests, sizes):
        replies = handler.answer([Request.of(requests[place]) for place in places])
        for place, reply in zip(places, replies, strict=True):
            assert reply.status == 200, f"request {place}, {requests[place]!r}: {reply.status} {reply.body[:300]!r}"
            yield place, json.loads(reply.body)
