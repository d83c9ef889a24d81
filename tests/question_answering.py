"""A tiny model that answers questions, and what is asked of it."""

from __future__ import annotations

from functools import partial

from tests.tiny_text import draw_weights, save_model, save_wordpiece
from tests.varied import SENTENCES, TEXTS

LIMIT = 100
"""Tokens that the model takes."""
QUESTIONS = [
    "Who worked with Charles Babbage?",
    "What did prices do?",
    "天气怎么样？",
    "كيف حالك؟",
    "🙂?",
    "Wo liegt Köln?",
    "why",
]
CONTEXTS = [*TEXTS, " ".join(TEXTS), " ".join(SENTENCES) * 2, "word " * 300]
WISHES = [
    {},
    {"top_k": 3},
    {"max_answer_len": 2, "top_k": 2},
    {"handle_impossible_answer": True},
    {"handle_impossible_answer": True, "top_k": 4},
    {"align_to_words": False},
    {"align_to_words": False, "top_k": 3},
    {"max_seq_len": 50, "doc_stride": 5},
    {"doc_stride": 0, "max_answer_len": 40},
]
BODIES = [
    {
        "inputs": {"question": QUESTIONS[place % len(QUESTIONS)], "context": context},
        "parameters": WISHES[(place + shift) % len(WISHES)],
    }
    for place, context in enumerate(CONTEXTS)
    for shift in (0, 4)
]
"""Every context with two of the wishes."""


def save(folder, kind="Bert", *, seed=1, scale=40.0, types=True, **config):
    """A tiny ``kind``ForQuestionAnswering and its tokenizer."""
    tokenizer = partial(save_wordpiece, max_length=LIMIT, types=types, extra=QUESTIONS)
    model = save_model(folder, f"{kind}ForQuestionAnswering", tokenizer=tokenizer, **config)
    draw_weights(model, seed, scale)
    model.save_pretrained(folder)
    return folder


def check(answer, expected):
    """The same answers with scores within 1e-4, in the same order wherever the scores tell it."""
    assert isinstance(answer, dict) == isinstance(expected, dict)
    answers, wanted = ([entry] if isinstance(entry, dict) else entry for entry in (answer, expected))
    scores = [entry["score"] for entry in wanted]
    assert len(answers) == len(wanted)
    for place, (one, other) in enumerate(zip(answers, wanted, strict=True)):
        assert abs(one["score"] - other["score"]) <= 1e-4
        near = [score for score in scores[max(0, place - 1) : place + 2] if abs(score - other["score"]) <= 2e-4]
        if len(near) == 1:
            assert {**one, "score": 0} == {**other, "score": 0}
