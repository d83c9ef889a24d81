"""The batch-invariance assertion with handlers that are invariant, and with each way of not being so."""

from __future__ import annotations

import random
import re
from itertools import pairwise

import pytest

from tsbatch.emulation.runner import Call, HandlerRunner
from tsbatch.testing.invariance import assert_batch_invariant

TEXTS = ["a", "bb", "ccc", "dddd", "eeeee", "ffffff", "ggggggg", "hhhhhhhh"]


class Handler:
    def initialize(self, context):
        self.seen = 0

    def handle(self, data, context):
        return self.answer([row["body"] for row in data], context)


class Right(Handler):
    """Lengths, with the rounding noise that a batched sum has, and a 4xx for one text."""

    def answer(self, texts, context):
        noise = random.Random(len(texts))
        for index, text in enumerate(texts):
            if text == "ccc":
                context.set_response_status(422, "", index)
        return [{"n": [len(text) * (1 + noise.uniform(-1e-6, 1e-6)), "ok", None, True]} for text in texts]


class PaddingLeaks(Handler):
    def answer(self, texts, context):
        padded = max(map(len, texts))
        return [{"mean": len(text) / padded} for text in texts]


class FirstDecides(Handler):
    def answer(self, texts, context):
        return [{"label": texts[0][0]} for _ in texts]


class SharedState(Handler):
    def answer(self, texts, context):
        self.seen += len(texts)
        return [{"text": text, "late": self.seen > 70} for text in texts]


class SpoiltByBatches(Handler):
    """Every batch is right, and what is asked alone afterwards is not."""

    def answer(self, texts, context):
        self.seen = max(self.seen, len(texts))
        return ["spoilt" if len(texts) == 1 < self.seen else text for text in texts]


class OrderLost(Handler):
    def answer(self, texts, context):
        return sorted(texts, key=len)


class FailsTogether(Handler):
    def answer(self, texts, context):
        if len(texts) == 7:
            raise ValueError("seven")
        return texts


class ShapeChanges(Handler):
    def answer(self, texts, context):
        return [{"all": [1] * len(texts)} for _ in texts]


class KeysChange(Handler):
    def answer(self, texts, context):
        return [{"one" if len(texts) == 1 else "many": 1} for _ in texts]


class TypeChanges(Handler):
    def answer(self, texts, context):
        return [{"flag": True if len(texts) == 1 else 1} for _ in texts]


class BytesChange(Handler):
    def answer(self, texts, context):
        return [b"\xff" + bytes([len(texts)]) for _ in texts]


class ContentTypeChanges(Handler):
    def answer(self, texts, context):
        for index in range(len(texts)):
            context.set_response_content_type(index, "text/plain" if len(texts) < 3 else "text/html")
        return texts


def check(cls, tmp_path, **options):
    with HandlerRunner.from_class(cls, tmp_path, batch_size=8) as runner:
        assert_batch_invariant(runner, TEXTS, **options)


def test_a_handler_that_is_right(tmp_path):
    check(Right, tmp_path)


def test_the_tolerance_is_what_is_said(tmp_path):
    with pytest.raises(AssertionError, match=re.escape("$.n[0]: alone ")):
        check(Right, tmp_path, rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    "cls,said",
    [
        (
            PaddingLeaks,
            [
                "request 0 ('a') is answered differently in the batch of 2 [0, 1], in order",
                "$.mean: alone 1.0, in the batch 0.5",
            ],
        ),
        (FirstDecides, ["request 1 ('bb')", "$.label: alone 'b', in the batch 'a'"]),
        (SharedState, ["$.late: alone False, in the batch True"]),
        (OrderLost, ["reversed", "body: alone b'hhhhhhhh', in the batch b'ggggggg'"]),
        (
            FailsTogether,
            ["the batch of 7 [0, 1, 2, 3, 4, 5, 6]", "status: alone 200, in the batch 503", "Prediction failed"],
        ),
        (ShapeChanges, ["$.all: alone a list of 1, in the batch a list of 2"]),
        (KeysChange, ["$: alone an object with the keys ['one'], in the batch an object with the keys ['many']"]),
        (TypeChanges, ["$.flag: alone True, in the batch 1"]),
        (BytesChange, [r"body: alone b'\xff\x01', in the batch b'\xff\x02'"]),
        (ContentTypeChanges, ["content type: alone 'text/plain', in the batch 'text/html'"]),
    ],
)
def test_handlers_that_are_not_invariant(cls, said, tmp_path):
    with pytest.raises(AssertionError) as caught:
        check(cls, tmp_path)
    for part in said:
        assert part in str(caught.value)


def test_state_that_only_a_second_question_shows(tmp_path):
    with pytest.raises(AssertionError, match=r"the batch of 1 \[0\], asked alone once more"):
        check(SpoiltByBatches, tmp_path, batch_sizes=(1, 2, 4))


def test_the_batch_named_is_one_that_shows_it(tmp_path):
    class OnlyShuffled(Handler):
        def answer(self, texts, context):
            steps = {ord(b[0]) - ord(a[0]) for a, b in pairwise(texts)}
            return ["odd" if len(texts) == 8 and not steps <= {1, -1} else "fine" for _ in texts]

    with pytest.raises(AssertionError, match="shuffled") as caught:
        check(OnlyShuffled, tmp_path, seed=3)
    with pytest.raises(AssertionError) as again:
        check(OnlyShuffled, tmp_path, seed=3)
    assert str(caught.value) == str(again.value)


def test_long_requests_and_forms_are_named_in_short(tmp_path):
    class Own(Handler):
        def handle(self, data, context):
            return [len(data)] * len(data)

    with HandlerRunner.from_class(Own, tmp_path) as runner:
        with pytest.raises(AssertionError, match=r"request 0 \('x{55} \.\.\.\)"):
            assert_batch_invariant(runner, ["x" * 900, "y"])
        with pytest.raises(AssertionError, match=re.escape("request 0 ({'data': b'x'})")):
            assert_batch_invariant(runner, [Call(fields={"data": b"x"}), "y"])


def test_what_cannot_be_checked(tmp_path):
    with HandlerRunner.from_class(Right, tmp_path, batch_size=2) as runner:
        with pytest.raises(ValueError, match="at least two"):
            assert_batch_invariant(runner, ["a"])
        with pytest.raises(ValueError, match=re.escape("[0, 7] are not from 1 to the runner's batch_size, 2")):
            assert_batch_invariant(runner, ["a", "b"], batch_sizes=(0, 2, 7))
        assert_batch_invariant(runner, ["a", "b"])


def test_nan_and_infinity_are_answers_like_others(tmp_path):
    class Odd(Handler):
        def answer(self, texts, context):
            return [[float("nan"), float("inf")] for _ in texts]

    check(Odd, tmp_path)
