"""Warm-up: the handler's own examples, alone and in a full batch, before the first request."""

from __future__ import annotations

import pytest
import torch

from tsbatch import warmup
from tsbatch.batching.strategy import Choice
from tsbatch.errors import LoadError, Unprocessable
from tsbatch.handler import BatchHandler
from tsbatch.protocol.reply import Reply
from tsbatch.worker.context import ModelContext


class Numbers(BatchHandler):
    shown = [1, 2, 3]

    def __init__(self):
        super().__init__()
        self.batches = []

    def load_model(self):
        return torch.nn.Identity()

    def examples(self):
        return self.shown

    def preprocess(self, items):
        self.batches.append([item.value for item in items])
        return torch.tensor([float(item.value) for item in items])

    def postprocess(self, outputs, items):
        return outputs.tolist()


def loaded(handler, tmp_path, **settings):
    handler.load(ModelContext(model_dir=tmp_path, batch_size=4, config={"tsbatch": settings}))
    return handler


def test_examples_run_alone_and_in_batches_up_to_a_full_one(tmp_path):
    assert loaded(Numbers(), tmp_path).batches == [[1], [1, 2], [1, 2, 3, 1]]


@pytest.mark.parametrize(
    "seconds, batches",
    [
        ([9.0, 0.0, 0.0], [[1], [1, 2], [1, 2, 3, 1]]),  # the first pass initialises and does not count
        ([0.0, 0.1, 0.0], [[1], [1, 2], [1, 2, 3, 1]]),
        ([0.0, 0.2, 0.0], [[1], [1, 2]]),  # the next one would take twice as long, and more than is left
    ],
)
def test_a_slow_model_is_not_warmed_up_for_long(tmp_path, monkeypatch, seconds, batches):
    now = [0.0]

    class Slow(Numbers):
        def inference(self, tensors):
            now[0] += seconds[len(self.batches) - 1]
            return tensors

    monkeypatch.setattr(warmup.time, "perf_counter", lambda: now[0])
    assert loaded(Slow(), tmp_path).batches == batches


@pytest.mark.parametrize("seconds, batches", [(0.1, [[1], [1, 2]]), (0.3, [[1]])])
def test_a_big_model_that_has_proved_its_packing_is_warm(tmp_path, monkeypatch, seconds, batches):
    now = [0.0]

    class Packed(Numbers):
        def choose_batching(self):
            return Choice("packed", "it has run already")

        def inference(self, tensors):
            now[0] += seconds * len(tensors)
            return tensors

    monkeypatch.setattr(warmup.time, "perf_counter", lambda: now[0])
    assert loaded(Packed(), tmp_path).batches == batches


def test_it_can_be_switched_off(tmp_path):
    assert loaded(Numbers(), tmp_path, warmup=False).batches == []


def test_without_examples_nothing_is_run(tmp_path):
    class Silent(Numbers):
        shown = ()

    assert loaded(Silent(), tmp_path).batches == []


def test_bytes_are_sent_as_a_file_would_be(tmp_path):
    class Files(Numbers):
        wants = "bytes"
        shown = [b"\x00\xff"]

        def preprocess(self, items):
            self.batches.append([item.value for item in items])
            return torch.zeros(len(items))

    assert loaded(Files(), tmp_path).batches[0] == [b"\x00\xff"]


@pytest.mark.parametrize(
    "error, told",
    [
        (ValueError("no such\n layer"), "500: postprocess raised ValueError: no such layer"),
        (Unprocessable("too short", expected="10 words"), "422: postprocess: too short; expected 10 words"),
        (Unprocessable("too short"), "422: postprocess: too short"),
    ],
)
def test_a_model_that_cannot_answer_its_examples_is_not_put_into_service(tmp_path, error, told):
    class Broken(Numbers):
        def postprocess(self, outputs, items):
            raise error

    with pytest.raises(LoadError) as caught:
        loaded(Broken(), tmp_path)
    assert str(caught.value) == f"the warm-up example was answered with {told}"


def test_an_error_in_a_handlers_own_words_is_told_whole(tmp_path):
    class Own(Numbers):
        def encode_response(self, results, request):
            return Reply(b"not\ntoday", status=503)

    with pytest.raises(LoadError, match="answered with 503: not today"):
        loaded(Own(), tmp_path)


def test_the_worker_counts_as_free_from_the_warm_up_on(tmp_path):
    assert loaded(Numbers(), tmp_path).free_since is not None
