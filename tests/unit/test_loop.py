"""The loop's own doings: what it records, how it cuts, and what stages get to see."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tsbatch.errors import Unprocessable
from tsbatch.handler import BatchHandler
from tsbatch.protocol.reply import ListSink
from tsbatch.protocol.request import Request
from tsbatch.worker.context import ModelContext


class Texts(BatchHandler):
    """A text to its length; padded, so that micro-batches matter."""

    wants = "text"
    item_ndim = 0
    deterministic = True

    def __init__(self):
        super().__init__()
        self.passes = []
        self.posts = []

    def load_model(self):
        return torch.nn.Identity()

    def preprocess(self, items):
        return [torch.ones(len(item.value)) for item in items]

    def lengths(self, features):
        return [len(feature) for feature in features]

    def collate(self, features):
        return torch.nn.utils.rnn.pad_sequence(list(features), batch_first=True)

    def inference(self, tensors):
        self.passes.append(tuple(tensors.shape))
        return tensors.sum(1)

    def postprocess(self, outputs, items):
        self.posts.append(outputs)
        return [int(output) for output in outputs]


def load(cls=Texts, **settings):
    handler = cls()
    handler.load(ModelContext(model_dir=Path(), batch_size=8, config={"tsbatch": settings}))
    return handler


def run(handler, values, **request):
    """The record and the replies of a batch."""
    requests = [Request.of(value, index=place, **request) for place, value in enumerate(values)]
    sink = ListSink(len(requests))
    return handler.run_batch(requests, sink), sink.replies


def test_the_record_counts_what_was_done():
    record, _ = run(load(), ["aa", "aa", ["aaaa", "a" * 300], "", []])
    assert (record.size, record.capacity, record.items, record.features) == (5, 8, 5, 4)
    assert record.micro_batches == record.forward_passes == 2
    assert record.length == 306
    assert record.padded_length == 300 + 3 * 4
    assert record.padding_waste == pytest.approx(6 / 312)
    assert dict(record.failures) == {"bad_request": 1}
    assert sum(record.stages.values()) == pytest.approx(record.handler_time)
    assert set(record.stages) == {"decode", "preprocess", "inference", "postprocess", "encode"}


@pytest.mark.parametrize(
    "settings, passes", [({}, 2), ({"mode": "padded"}, 1), ({"max_features": 1}, 3), ({"max_tokens": 4}, 3)]
)
def test_micro_batches_follow_the_settings(settings, passes):
    handler = load(batching=settings)
    run(handler, ["aa", "aaa", "a" * 300])
    assert len(handler.passes) == passes


def test_answers_come_in_the_order_of_the_requests_whatever_was_cut():
    handler = load(batching={"max_features": 3})
    values = ["a" * ((7 * number) % 23) for number in range(23)]
    _, replies = run(handler, values)
    assert [int(reply.body) for reply in replies] == [len(value) for value in values]


def test_a_pass_that_was_split_is_counted_apart_from_the_plan():
    class Guilty(Texts):
        def inference(self, tensors):
            if len(tensors) > 1:
                raise ValueError("together never")
            return super().inference(tensors)

    record, replies = run(load(Guilty), ["a", "aa"])
    assert [reply.status for reply in replies] == [200, 200]
    assert (record.micro_batches, record.forward_passes) == (1, 3)


def test_postprocess_sees_one_tensor_in_the_order_of_the_items():
    handler = load()
    run(handler, ["aaa", "a" * 200, "a"])
    [seen] = handler.posts
    assert isinstance(seen, torch.Tensor)
    assert seen.tolist() == [3, 200, 1]


def test_outputs_in_a_list_come_as_a_list():
    class Listing(Texts):
        def inference(self, tensors):
            return [float(row.sum()) for row in tensors]

    handler = load(Listing)
    run(handler, ["aaa", "a"])
    assert handler.posts == [[3.0, 1.0]]


def test_rows_of_different_shapes_come_as_a_list_in_one_call():
    class Tokens(Texts):
        def inference(self, tensors):
            return [row[row > 0] for row in tensors]

        def postprocess(self, outputs, items):
            self.posts.append(outputs)
            return [len(row) for row in outputs]

    handler = load(Tokens)
    _, replies = run(handler, ["aaa", "a", "aa"])
    assert [reply.body for reply in replies] == [b"3", b"1", b"2"]
    assert [[len(row) for row in outputs] for outputs in handler.posts] == [[3, 1, 2]]


def test_a_later_stage_never_sees_what_failed_before():
    class Guilty(Texts):
        def preprocess(self, items):
            if any(item.value == "bad" for item in items):
                raise ValueError("guilty")
            return super().preprocess(items)

    handler = load(Guilty)
    record, replies = run(handler, ["bad", "aa", "bad"])
    assert [reply.status for reply in replies] == [500, 200, 500]
    assert handler.posts[0].tolist() == [2]
    assert record.features == 1


def test_when_nothing_is_left_no_stage_is_called():
    handler = load()
    record, replies = run(handler, [[], {"inputs": 5}])
    assert [reply.status for reply in replies] == [400, 422]
    assert handler.passes == handler.posts == []
    assert record.features == record.micro_batches == 0


def test_an_empty_batch():
    record, replies = run(load(), [])
    assert replies == []
    assert record.size == 0


def test_stage_times_are_the_stages_own():
    class Sleeping(Texts):
        def preprocess(self, items):
            time.sleep(0.02)
            return super().preprocess(items)

        def inference(self, tensors):
            time.sleep(0.05)
            return super().inference(tensors)

        def postprocess(self, outputs, items):
            time.sleep(0.03)
            return super().postprocess(outputs, items)

    record, _ = run(load(Sleeping), ["aa"])
    for stage, least in (("preprocess", 0.02), ("inference", 0.05), ("postprocess", 0.03)):
        assert least <= record.stages[stage] < least + 0.02
    assert record.stages["decode"] < 0.01


def test_nothing_is_computed_with_gradients():
    class Training(Texts):
        def load_model(self):
            return torch.nn.Linear(1, 1)

        def inference(self, tensors):
            assert torch.is_inference_mode_enabled()
            return self.model(tensors.sum(1, keepdim=True))[:, 0]

    _, replies = run(load(Training), ["aa"])
    assert replies[0].status == 200


def test_replies_go_to_the_index_of_their_request():
    handler = load()
    requests = [Request.of("a" * length, index=1 - place) for place, length in enumerate((1, 2))]
    sink = ListSink(2)
    handler.run_batch(requests, sink)
    assert [reply.body for reply in sink.replies] == [b"2", b"1"]


def test_an_error_in_an_items_place_fails_its_request_without_a_search():
    class Picky(Texts):
        calls = 0

        def preprocess(self, items):
            self.calls += 1
            features = super().preprocess(items)
            return [
                Unprocessable("bad") if item.value == "bad" else feature
                for item, feature in zip(items, features, strict=True)
            ]

        def postprocess(self, outputs, items):
            return [Unprocessable("odd") if output == 5 else int(output) for output in outputs]

    handler = load(Picky)
    _, replies = run(handler, ["a", "bad", ["abc", "bad"], "12345", "abcd"])
    assert [reply.status for reply in replies] == [200, 422, 422, 422, 200]
    assert handler.calls == 1
    assert [b'"preprocess"' in reply.body for reply in replies] == [False, True, True, False, False]


@pytest.mark.parametrize(
    "broken, says",
    [
        ({"headers": {"X-Long": "y" * 40_000}}, b"headers have"),
        ({"content_type": "a" * 40_000}, b"headers have"),
        ({"content_type": None}, b"content type"),
    ],
)
def test_headers_that_would_end_the_worker_fail_their_request_alone(broken, says):
    class Long(Texts):
        def encode_response(self, results, request):
            reply = super().encode_response(results, request)
            return replace(reply, **broken) if request.index == 1 else reply

    _, replies = run(load(Long), ["a", "b"])
    assert replies[0].status == 200
    assert (replies[1].status, says in replies[1].body) == (500, True)
