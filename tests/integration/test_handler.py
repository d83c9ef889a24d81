"""The handler core whole, through the loop alone: whatever one request or one stage does, the others get their answers.

The oracle for the good requests is the same handler asked one by one.
"""

from __future__ import annotations

import asyncio
import json
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from pydantic import BaseModel, ConfigDict
from safetensors.torch import save_file

from tsbatch.errors import BadRequest, LoadError, NotSupported, PayloadTooLarge, Unprocessable
from tsbatch.handler import BatchHandler
from tsbatch.protocol.reply import Reply
from tsbatch.protocol.request import Item, Request
from tsbatch.worker.context import ModelContext

STAGES = ("decode", "preprocess", "collate", "inference", "postprocess", "encode")


class Unspeakable(RuntimeError):
    """An exception that cannot even be printed."""

    def __str__(self):
        raise ValueError("no text")


class Doubler(BatchHandler):
    """``{"value": 3}`` to ``{"double": 6.0}``; an item may name the stage in which it misbehaves."""

    error = ValueError("guilty")

    def load_model(self):
        return torch.nn.Identity()

    def misbehave(self, stage, values):
        for value in values:
            if value.get("fail") == stage:
                raise self.error

    def decode_item(self, value):
        self.misbehave("decode", [value])
        return value

    def preprocess(self, items):
        self.misbehave("preprocess", [item.value for item in items])
        # The feature carries its item's index, so that the later stages can tell the guilty.
        return torch.tensor([[float(item.value["value"]), self.guilt(item.value)] for item in items])

    def guilt(self, value):
        return float(STAGES.index(value["fail"])) if value.get("fail") in ("collate", "inference") else -1.0

    def collate(self, features):
        rows = super().collate(features)
        if (rows[:, 1] == STAGES.index("collate")).any():
            raise self.error
        return rows

    def inference(self, tensors):
        if (tensors[:, 1] == STAGES.index("inference")).any():
            raise self.error
        return self.model(tensors)[:, 0] * 2

    def postprocess(self, outputs, items):
        self.misbehave("postprocess", [item.value for item in items])
        return [{"double": output, "at": item.position} for output, item in zip(outputs.tolist(), items, strict=True)]

    def encode_response(self, results, request):
        if "encode" in json.dumps(request.fields["body"]):
            raise self.error
        return super().encode_response(results, request)


def load(cls, tmp_path=Path(), *, batch_size=8, config=None, **settings):
    handler = cls()
    context = ModelContext(model_dir=tmp_path, batch_size=batch_size, config={"tsbatch": settings, **(config or {})})
    handler.load(context)
    return handler


def bodies(replies):
    return [json.loads(reply.body) for reply in replies]


def statuses(replies):
    return [reply.status for reply in replies]


def one_by_one(handler, values):
    """Each request alone: (status, body) without the timings."""
    return [(reply.status, json.loads(reply.body)) for value in values for reply in handler.answer([Request.of(value)])]


def together(handler, values):
    replies = handler.answer([Request.of(value) for value in values])
    return list(zip(statuses(replies), bodies(replies), strict=True))


# ---- one guilty request hurts itself alone --------------------------------------------------------------------


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("place", [0, 3, 7])
def test_one_guilty_among_eight(stage, place):
    handler = load(Doubler)
    values = [{"value": number} for number in range(8)]
    values[place] = {"value": place, "fail": stage}
    answers = together(handler, values)
    for number, (status, body) in enumerate(answers):
        if number == place:
            assert status == 500
            assert body["error"]["code"] == "handler_failed"
            assert "ValueError: guilty" in body["error"]["message"]
            assert body["error"]["stage"] == ("inference" if stage == "collate" else stage)
        else:
            assert (status, body) == (200, {"double": 2.0 * number, "at": 0})


@pytest.mark.parametrize("stage", STAGES)
def test_the_guilty_one_alone(stage):
    [(status, body)] = together(load(Doubler), [{"value": 1, "fail": stage}])
    assert status == 500
    assert stage == "collate" or body["error"]["stage"] == stage


@pytest.mark.parametrize("stage", STAGES)
def test_all_guilty(stage):
    answers = together(load(Doubler), [{"value": number, "fail": stage} for number in range(8)])
    assert [status for status, _ in answers] == [500] * 8


def test_a_batch_in_which_every_stage_fails_for_somebody():
    handler = load(Doubler)
    values = [{"value": number} for number in range(8)] + [{"value": 9, "fail": stage} for stage in STAGES]
    for seed in range(5):
        random.Random(seed).shuffle(values)
        assert together(handler, values) == one_by_one(handler, values)


ERRORS = {
    "ValueError": (ValueError("guilty"), 500, "ValueError: guilty"),
    "text CUDA": (RuntimeError("CUDA error: device-side assert triggered"), 500, "CUDA error"),
    "not ASCII": (ValueError("naïve – 猫"), 500, "naïve – 猫"),
    "lone surrogate": (ValueError("\ud800 half"), 500, "half"),
    "line break": (ValueError("one\r\ntwo: three"), 500, "one"),
    "very long": (ValueError("x" * 10_000_000), 500, "xxx"),
    "no text": (Unspeakable(), 500, "Unspeakable"),
    "KeyError": (KeyError("labels"), 500, "KeyError: 'labels'"),
    "StopIteration": (StopIteration(3), 500, "StopIteration"),
    "assertion": (AssertionError(), 500, "AssertionError"),
    "sys.exit": (SystemExit(3), 500, "SystemExit"),
    "Rust's panic": (type("PanicException", (BaseException,), {})("in Rust"), 500, "PanicException: in Rust"),
    "cancelled": (asyncio.CancelledError(), 500, "CancelledError"),
    "own __init__": (type("Odd", (BadRequest,), {"__init__": lambda self: None})(), 400, ""),
    "no status": (type("Odd", (BadRequest,), {"status": None})("mine"), 500, "mine"),
    "memory": (MemoryError(), 507, "ran out of memory"),
    "torch memory": (torch.OutOfMemoryError("CUDA out of memory."), 507, "ran out of memory"),
    "400": (BadRequest("mine", expected="yours"), 400, "mine"),
    "413": (PayloadTooLarge("mine"), 413, "mine"),
    "422": (Unprocessable("mine"), 422, "mine"),
    "501": (NotSupported("mine"), 501, "mine"),
}


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("name", ERRORS)
def test_whatever_is_raised_anywhere(stage, name):
    class Guilty(Doubler):
        error, status, part = ERRORS[name]

    handler = load(Guilty)
    answers = together(handler, [{"value": 0}, {"value": 1, "fail": stage}, {"value": 2}])
    assert [status for status, _ in answers] == [200, Guilty.status, 200]
    assert Guilty.part in answers[1][1]["error"]["message"]
    assert len(answers[1][1]["error"]["message"]) < 3000
    assert together(handler, [{"value": 5}]) == [(200, {"double": 10.0, "at": 0})], "and it goes on"


@pytest.mark.parametrize("stage", STAGES)
def test_a_person_may_still_stop_the_process(stage):
    class Stopped(Doubler):
        error = KeyboardInterrupt()

    with pytest.raises(KeyboardInterrupt):
        load(Stopped).answer([Request.of({"value": 1, "fail": stage})])


def test_no_payload_reaches_the_log(caplog):
    class Guilty(Doubler):
        error = ValueError("the patient's name")

    caplog.set_level("DEBUG")
    for stage in STAGES:
        load(Guilty).answer([Request.of({"value": 1, "fail": stage})])
    assert "ValueError at" in caplog.text
    assert "patient" not in caplog.text
    load(Guilty, log_messages=True).answer([Request.of({"value": 1, "fail": "inference"})])
    assert "patient" in caplog.text


# ---- several items, several features --------------------------------------------------------------------------


def test_several_items_a_request():
    handler = load(Doubler)
    values = [[{"value": 1}, {"value": 2}], {"value": 3}, {"inputs": [{"value": 4}]}, {"instances": [{"value": 5}]}]
    assert together(handler, values) == [
        (200, [{"double": 2.0, "at": 0}, {"double": 4.0, "at": 1}]),
        (200, {"double": 6.0, "at": 0}),
        (200, [{"double": 8.0, "at": 0}]),
        (200, {"predictions": [{"double": 10.0, "at": 0}]}),
    ]


def test_a_request_fails_as_a_whole_with_its_first_guilty_item():
    values = [[{"value": 1}, {"value": 2, "fail": "inference"}, {"value": 3}], {"value": 4}]
    answers = together(load(Doubler), values)
    assert [status for status, _ in answers] == [500, 200]
    assert answers[0][1]["error"]["stage"] == "inference"


class Windows(BatchHandler):
    """A list of numbers, cut into windows of two: its sum from the windows' sums. A bare number is one feature."""

    deterministic = True
    item_ndim = 1

    def load_model(self):
        return torch.nn.Identity()

    def preprocess(self, items):
        self.seen = len(items)
        return [
            [torch.tensor(item.value[at : at + 2]) for at in range(0, len(item.value), 2)]
            if isinstance(item.value, list)
            else torch.tensor([item.value])
            for item in items
        ]

    def lengths(self, features):
        return [len(feature) for feature in features]

    def collate(self, features):
        return torch.nn.utils.rnn.pad_sequence(list(features), batch_first=True)

    def inference(self, tensors):
        if (tensors == 666).any():
            raise ValueError("guilty")
        return tensors.sum(1)

    def postprocess(self, outputs, items):
        assert len(outputs) == len(items)
        return [
            {"sum": sum(int(part) for part in own), "windows": len(own)} if isinstance(own, list) else {"one": int(own)}
            for own in outputs
        ]


def test_several_features_an_item_come_back_to_their_item():
    handler = load(Windows)
    generator = random.Random(0)
    values = [[generator.randint(0, 9) for _ in range(generator.randint(1, 9))] for _ in range(20)] + [7]
    expected = [{"sum": sum(value), "windows": (len(value) + 1) // 2} for value in values[:-1]] + [{"one": 7}]
    assert [body for _, body in together(handler, values)] == expected
    assert together(handler, values) == one_by_one(handler, values)


def test_one_guilty_window_fails_its_item_alone():
    answers = together(load(Windows), [[1, 2, 666, 4], [5, 6, 7], [666], [666, 1, 2, 3], [666, 1, 2]])
    assert [status for status, _ in answers] == [500, 200, 500, 500, 500]
    guilty = [body["error"]["stage"] for status, body in answers if status == 500]
    assert guilty == ["inference"] * 4
    assert answers[1][1] == {"sum": 18, "windows": 2}


# ---- identical items ------------------------------------------------------------------------------------------


def test_identical_items_are_computed_once_and_answered_each():
    handler = load(Windows)
    values = [[1, 2], [3], [1, 2], [1.0, 2.0], [1, 2]]
    assert [body["sum"] for _, body in together(handler, values)] == [3, 3, 3, 3, 3]
    assert handler.seen == 3
    together(load(Windows, batching={"deduplicate": False}), values)


@pytest.mark.parametrize("asked, seen", [("auto", 2), (True, 1), (False, 2)])
def test_own_handlers_compute_identical_items_once_only_when_asked(asked, seen):
    class Counting(Doubler):
        def preprocess(self, items):
            self.seen = len(items)
            return super().preprocess(items)

    handler = load(Counting, batching={"deduplicate": asked})
    assert together(handler, [{"value": 1}] * 2) == [(200, {"double": 2.0, "at": 0})] * 2
    assert handler.seen == seen


# ---- parameters -----------------------------------------------------------------------------------------------


class Scaling(BatchHandler):
    class Wish(BaseModel):
        model_config = ConfigDict(extra="forbid")
        factor: float = 1.0

    parameters_class = Wish
    item_ndim = 0

    def load_model(self):
        return torch.nn.Identity()

    def postprocess(self, outputs, items):
        return [float(output) * item.parameters.factor for output, item in zip(outputs, items, strict=True)]


def test_parameters_of_each_request_and_item():
    values = [
        {"inputs": 2, "parameters": {"factor": 10}},
        2,
        {"inputs": [2, {"inputs": 3, "parameters": {"factor": 100}}], "parameters": {"factor": 10}},
        {"inputs": 2, "parameters": {"facter": 10}},
        {"inputs": 2, "parameters": {"factor": "much"}},
        {"inputs": 2, "parameters": {}},
    ]
    answers = together(load(Scaling), values)
    assert [status for status, _ in answers] == [200, 200, 200, 422, 422, 200]
    assert [answers[place][1] for place in (0, 1, 2, 5)] == [20.0, 2.0, [20.0, 300.0], 2.0]
    assert "did you mean 'factor'" in answers[3][1]["error"]["message"]


# ---- describe and explain -------------------------------------------------------------------------------------


class Explaining(Doubler):
    """An explanation is the gradient of the square: it needs gradients on."""

    deterministic = True

    def explain_items(self, items):
        assert torch.is_grad_enabled()
        assert not torch.is_inference_mode_enabled()
        if any(item.value.get("fail") == "explain" for item in items):
            raise ValueError("guilty")
        values = torch.tensor([float(item.value["value"]) for item in items], requires_grad=True)
        (self.model(values) ** 2).sum().backward()
        return [{"gradient": slope} for slope in values.grad.tolist()]

    def inference(self, tensors):
        assert torch.is_inference_mode_enabled()
        return super().inference(tensors)


def test_predict_explain_and_describe_in_one_batch():
    handler = load(Explaining)
    requests = [
        Request.of({"value": 3}),
        Request.of({"value": 3}, kind="explain"),
        Request.of(None, kind="describe"),
        Request.of({"value": 3, "fail": "explain"}, kind="explain"),
        Request.of([{"value": 1}, {"value": 2}], kind="explain"),
        Request.of({"value": 4, "fail": "inference"}),
    ]
    replies = handler.answer(requests)
    assert statuses(replies) == [200, 200, 200, 500, 200, 500]
    answers = bodies(replies)
    assert answers[0] == {"double": 6.0, "at": 0}
    assert answers[1] == {"gradient": 6.0}
    assert answers[2]["handler"] == "Explaining"
    assert answers[3]["error"]["stage"] == "explain"
    assert answers[4] == [{"gradient": 2.0}, {"gradient": 4.0}]
    assert answers[5]["error"]["stage"] == "inference"


def test_a_handler_that_cannot_explain_says_so():
    [reply] = load(Doubler).answer([Request.of({"value": 1}, kind="explain")])
    assert reply.status == 501
    assert "Doubler cannot explain" in bodies([reply])[0]["error"]["message"]


# ---- what stages may and may not return -----------------------------------------------------------------------

WRONG = {
    "None": lambda good: None,
    "a number": lambda good: 1.5,
    "text": lambda good: "text",
    "a dict": lambda good: {"a": 1},
    "a set": lambda good: {1},
    "a generator": lambda good: (row for row in good),
    "one too few": lambda good: list(good)[:-1],
    "one too many": lambda good: [*good, *list(good)[:1]],
    "an empty list": lambda good: [],
    "a tensor without rows": lambda good: torch.tensor(1.0),
    "a tensor of one row too many": lambda good: torch.zeros(len(good) + 1, 2),
}


class Spoilt(Doubler):
    """One stage returns something else than it should."""

    def spoil(self, stage, good):
        return WRONG[self.how](good) if stage == self.stage else good

    def preprocess(self, items):
        return self.spoil("preprocess", super().preprocess(items))

    def inference(self, tensors):
        return self.spoil("inference", super().inference(tensors))

    def postprocess(self, outputs, items):
        return self.spoil("postprocess", super().postprocess(outputs, items))


@pytest.mark.parametrize("stage_name", ["preprocess", "inference", "postprocess"])
@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("size", [1, 4])
def test_a_stage_that_always_returns_something_wrong(stage_name, name, size):
    class Wrong(Spoilt):
        how, stage = name, stage_name

    answers = together(load(Wrong), [{"value": number} for number in range(size)])
    for status, body in answers:
        assert status == 500
        assert body["error"]["code"] == "contract_broken"
        assert stage_name in body["error"]["message"]
        assert body["error"]["expected"]


def test_the_wrong_number_names_both_numbers():
    class Short(Doubler):
        def postprocess(self, outputs, items):
            return []

    [(_, body)] = together(load(Short), [{"value": 1}])
    assert body["error"]["message"] == "postprocess returned 0 results for 1 inputs"


RIGHT = {
    "a tuple": lambda good: tuple(good),
    "NumPy numbers": lambda good: [np.float32(row["double"]) for row in good],
    "an array": lambda good: np.array([row["double"] for row in good]),
    "a tensor": lambda good: torch.tensor([row["double"] for row in good]),
    "tensors": lambda good: [torch.tensor([row["double"]]) for row in good],
    "columns": lambda good: {"double": torch.tensor([row["double"] for row in good])},
    "bfloat16": lambda good: torch.tensor([row["double"] for row in good], dtype=torch.bfloat16),
    "with gradients": lambda good: torch.tensor([row["double"] for row in good], requires_grad=True),
}


@pytest.mark.parametrize("name", RIGHT)
def test_results_of_many_kinds(name):
    class Kind(Doubler):
        def postprocess(self, outputs, items):
            return RIGHT[name](super().postprocess(outputs, items))

    handler = load(Kind)
    values = [{"value": number} for number in range(3)]
    answers = together(handler, values)
    assert [status for status, _ in answers] == [200] * 3
    assert "4.0" in json.dumps(answers[2][1])
    assert answers == one_by_one(handler, values)


def circle():
    ring = []
    ring.append(ring)
    return ring


UNWRITABLE = {
    "a circle": circle(),
    "a lone surrogate": "\ud83d",
    "an object": object(),
    "a set": {1},
    "a huge integer": 2**80,
    "a complex tensor": torch.ones(2, dtype=torch.complex64),
    "a function": len,
}


@pytest.mark.parametrize("name", UNWRITABLE)
def test_a_result_that_cannot_be_json_hurts_its_request_alone(name):
    class Unwritable(Doubler):
        def postprocess(self, outputs, items):
            good = super().postprocess(outputs, items)
            return [
                UNWRITABLE[name] if item.value["value"] == 1 else row for item, row in zip(items, good, strict=True)
            ]

    answers = together(load(Unwritable), [{"value": number} for number in range(3)])
    assert [status for status, _ in answers] == [200, 500, 200]
    assert answers[1][1]["error"]["code"] == "contract_broken"
    assert answers[1][1]["error"]["stage"] == "encode"


@pytest.mark.parametrize("nan, status", [("null", 200), ("error", 500)])
def test_nan_is_null_or_an_error_as_set(nan, status):
    class NotANumber(Doubler):
        def postprocess(self, outputs, items):
            return [[1.0, float("nan"), float("inf")] if item.value["value"] else [1.0] for item in items]

    answers = together(load(NotANumber, nan=nan), [{"value": 0}, {"value": 1}])
    assert answers[0] == (200, [1.0])
    assert answers[1][0] == status
    if status == 200:
        assert answers[1][1] == [1.0, None, None]
    else:
        assert "NaN" in answers[1][1]["error"]["message"]


def test_an_answer_over_the_servers_limit_hurts_its_request_alone():
    class Large(Doubler):
        def postprocess(self, outputs, items):
            return ["x" * int(item.value["value"]) for item in items]

    values = [{"value": 10}, {"value": 7_000_000}, {"value": 6_553_498}, {"value": 6_553_499}]
    answers = together(load(Large), values)
    assert [status for status, _ in answers] == [200, 500, 200, 500], "two quotes beside the characters"
    assert answers[1][1]["error"]["code"] == "answer_too_large"
    assert "7,000,002" in answers[1][1]["error"]["message"]
    assert "6,553,500" in answers[1][1]["error"]["message"]
    assert "max_response_size" in answers[1][1]["error"]["expected"]
    assert together(load(Large, limits={"response_bytes": 1024}), [{"value": 2000}])[0][0] == 500


REPLIES = {
    "a Reply": (Reply(b"mine", 201, "Created", "text/plain", {"X-Mine": "1"}), 201),
    "text": ("text", 500),
    "bytes": (b"bytes", 500),
    "None": (None, 500),
    "a list": ([Reply(b"")], 500),
    "a Reply of text": (Reply("text"), 500),
    "a Reply with a status of text": (Reply(b"", "200"), 500),
    "a Reply with a wrong status": (Reply(b"", 99), 500),
    "a Reply without headers": (Reply(b"", headers=None), 500),
    "a Reply with a header of bytes": (Reply(b"", headers={"A": b"1"}), 500),
}


@pytest.mark.parametrize("name", REPLIES)
def test_what_encode_response_returns(name):
    class Own(Doubler):
        def encode_response(self, results, request):
            return REPLIES[name][0] if results[0]["double"] == 2.0 else super().encode_response(results, request)

    replies = load(Own).answer([Request.of({"value": number}) for number in range(3)])
    assert statuses(replies) == [200, REPLIES[name][1], 200]
    if replies[1].status == 201:
        assert replies[1].body == b"mine"
        assert replies[1].headers["X-Mine"] == "1"
    else:
        assert bodies(replies)[1]["error"]["stage"] == "encode"


def test_one_reply_object_for_several_requests_keeps_their_timings_apart():
    class Constant(Doubler):
        reply = Reply(b"same")

        def encode_response(self, results, request):
            return self.reply

    handler = load(Constant)
    replies = handler.answer([Request.of({"value": 1}, arrival=time.time() - age) for age in (3.0, 1.0)])
    waits = [reply.headers["Server-Timing"].split(", handler")[0] for reply in replies]
    assert waits[0] != waits[1]
    assert Constant.reply.headers == {}


DECODED = [None, [], {}, "text", [1], (Item(1, {}, Request({})),), [None]]


@pytest.mark.parametrize("decoded", DECODED, ids=repr)
def test_what_decode_request_returns(decoded):
    class Own(Doubler):
        def decode_request(self, request):
            return decoded if request.fields["body"]["value"] == 1 else super().decode_request(request)

    answers = together(load(Own), [{"value": number} for number in range(3)])
    assert [status for status, _ in answers] == [200, 500, 200]
    assert answers[1][1]["error"]["code"] == "contract_broken"
    assert answers[1][1]["error"]["stage"] == "decode"


LENGTHS = [
    lambda n: None,
    lambda n: [1],
    lambda n: ["x"] * n,
    lambda n: 5,
    lambda n: [float("nan")] * n,
    lambda n: [-3] * n,
]


@pytest.mark.parametrize("lengths", LENGTHS)
def test_wrong_lengths_cost_speed_and_never_an_answer(lengths):
    class Own(Doubler):
        def lengths(self, features):
            return lengths(len(features))

    class Raising(Doubler):
        def lengths(self, features):
            sys.exit(1)

    for cls in (Own, Raising):
        assert [status for status, _ in together(load(cls), [{"value": number} for number in range(5)])] == [200] * 5


# ---- memory ---------------------------------------------------------------------------------------------------


def small_machine(fits):
    """A model that runs out of memory over so many rows."""

    class Small(Doubler):
        sizes = []

        def inference(self, tensors):
            self.sizes.append(len(tensors))
            if len(tensors) > fits or (tensors[:, 0] == 13).any():
                raise MemoryError
            return super().inference(tensors)

    return Small


def test_out_of_memory_makes_smaller_passes_and_remembers():
    cls = small_machine(3)
    handler = load(cls)
    values = [{"value": number} for number in range(8)]
    assert together(handler, values) == [(200, {"double": 2.0 * number, "at": 0}) for number in range(8)]
    assert cls.sizes == [8, 4, 2, 2, 4, 2, 2]
    assert handler.memory.limit == 2
    cls.sizes.clear()
    together(handler, values)
    assert cls.sizes == [2, 2, 2, 2], "the cap is remembered"


def test_one_that_does_not_fit_alone_is_told_so_and_changes_nothing():
    cls = small_machine(99)
    handler = load(cls)
    answers = together(handler, [{"value": number} for number in (11, 12, 13, 14)])
    assert [status for status, _ in answers] == [200, 200, 507, 200]
    assert answers[2][1]["error"]["code"] == "out_of_memory"
    assert handler.memory.limit is None
    cls.sizes.clear()
    together(handler, [{"value": 1}] * 8)
    assert cls.sizes == [8]


# ---- time for isolation ---------------------------------------------------------------------------------------


@pytest.mark.alone
def test_looking_for_the_guilty_ends_before_the_server_does():
    class Slow(Doubler):
        def inference(self, tensors):
            time.sleep(0.05)
            raise ValueError("all are guilty")

    started = time.monotonic()
    answers = together(load(Slow, batching={"isolation_seconds": 0.12}), [{"value": number} for number in range(32)])
    assert time.monotonic() - started < 1
    assert {status for status, _ in answers} <= {500, 503}
    assert 503 in {status for status, _ in answers}


# ---- loading --------------------------------------------------------------------------------------------------


def test_a_subclass_that_overrides_handle_is_told_what_to_do():
    class Old(BatchHandler):
        def handle(self, data, context):
            return [b""]

    with pytest.raises(LoadError, match=r"Old overrides handle.*override the stages"):
        load(Old)


def test_a_stage_with_torchserves_arguments_is_told_the_right_line():
    class Old(Doubler):
        def postprocess(self, data):
            return data

    with pytest.raises(LoadError) as caught:
        load(Old)
    assert str(caught.value) == (
        "Old.postprocess cannot be called as postprocess(outputs, items); write: def postprocess(self, outputs, items)"
    )


def test_torchserves_own_argument_names_are_fine():
    class Old(Doubler):
        def preprocess(self, data):
            return super().preprocess(data)

        def inference(self, data, *args, **kwargs):
            return super().inference(data)

    assert together(load(Old), [{"value": 2}]) == [(200, {"double": 4.0, "at": 0})]


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 3)
        self.drop = torch.nn.Dropout(0.5)

    def forward(self, x):
        return self.drop(self.layer(x)).softmax(-1)


class Flowers(BatchHandler):  # twelve lines over a plain torch.nn.Module
    item_ndim = 1

    def load_model(self):
        return self.load_weights(Net(), "flowers.safetensors")

    def preprocess(self, items):
        return torch.tensor([item.value for item in items])

    def postprocess(self, outputs, items):
        return [self.aux["labels"][best] for best in outputs.argmax(1)]


def test_twelve_lines_over_a_plain_module(tmp_path):
    torch.manual_seed(0)
    net = Net().eval()
    save_file(net.state_dict(), tmp_path / "flowers.safetensors")
    (tmp_path / "labels.json").write_text('["setosa", "versicolor", "virginica"]')
    handler = load(Flowers, tmp_path, aux={"labels": "labels.json"})
    rows = torch.randn(8, 4)
    expected = [("setosa", "versicolor", "virginica")[best] for best in net(rows).argmax(1)]
    assert len(set(expected)) > 1
    answers = together(handler, [*rows.tolist(), [1.0, 2.0], rows.tolist()])
    assert [body for _, body in answers[:8]] == expected
    assert answers[8][0] == 500
    assert answers[9] == (200, expected)


def test_the_state_is_locked_and_outlives_its_files(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    save_file(Net().state_dict(), folder / "flowers.safetensors")
    (folder / "labels.json").write_text('["a", "b", "c"]')
    handler = load(Flowers, folder, aux={"labels": "labels.json"})
    assert not handler.model.training
    assert not any(parameter.requires_grad for parameter in handler.model.parameters())
    shutil.rmtree(folder)
    before = (handler.model, handler.aux, handler.tokenizer)
    answers = {json.dumps(together(handler, [[1.0, 2.0, 3.0, 4.0]] * 4)) for _ in range(100)}
    assert len(answers) == 1
    assert (handler.model, handler.aux, handler.tokenizer) == before


# ---- without TorchServe ---------------------------------------------------------------------------------------

HANDLER_FILE = """
import torch
from tsbatch import BatchHandler


class Mean(BatchHandler):
    item_ndim = 1

    def load_model(self):
        return torch.nn.Identity()

    def preprocess(self, items):
        return torch.tensor([item.value for item in items])

    def postprocess(self, outputs, items):
        return outputs.mean(1).tolist()
"""
SCRIPT = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if BLOCK and (name == "ts" or name.startswith("ts.")):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

BLOCK = sys.argv[1] == "blocked"
sys.meta_path.insert(0, Blocked())
sys.path.insert(0, sys.argv[2])

import pathlib
from mean import Mean
from tsbatch import ModelContext, Request

handler = Mean()
handler.load(ModelContext(model_dir=pathlib.Path(sys.argv[2]), batch_size=4))
replies = handler.answer([Request.of([1.0, 2.0]), Request.of([3.0]), Request.of("x"), Request.of([[5.0], [7.0]])])
print([(reply.status, reply.body if reply.status == 200 else b"") for reply in replies])
print(any(name == "ts" or name.startswith("ts.") for name in sys.modules))
"""


def test_the_same_file_runs_with_torchserve_and_without(tmp_path):
    (tmp_path / "mean.py").write_text(HANDLER_FILE)
    (tmp_path / "script.py").write_text(SCRIPT)
    printed = {}
    for how in ("blocked", "there"):
        done = subprocess.run(
            [sys.executable, str(tmp_path / "script.py"), how, str(tmp_path)],
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
        printed[how] = done.stdout.splitlines()[-2:]
    assert printed["blocked"][0] == printed["there"][0]
    assert printed["blocked"][0] == "[(200, b'1.5'), (200, b'3.0'), (500, b''), (200, b'[5.0,7.0]')]"
    assert (printed["blocked"][1], printed["there"][1]) == ("False", "True")


class StateFirst(torch.nn.Module):
    """Two outputs for each batch; the second has its layers first, as many as there may be items."""

    def __init__(self):
        super().__init__()
        self.cells = torch.nn.LSTM(3, 4, num_layers=2, batch_first=True)

    def forward(self, rows):
        output, (hidden, _) = self.cells(rows.unsqueeze(1))
        return output, hidden


class ListOfOutputs(torch.nn.Module):
    def forward(self, rows):
        return [rows * 2, rows + 1]


@pytest.mark.parametrize("module", [StateFirst, ListOfOutputs])
def test_several_outputs_of_a_module_stay_with_their_items(tmp_path, module):
    """As many outputs or layers as items: sizes alone would tell the wrong thing."""

    class Mine(BatchHandler):
        def load_model(self):
            torch.manual_seed(0)
            return module()

        def preprocess(self, items):
            return torch.tensor([item.value for item in items], dtype=torch.float32)

        def postprocess(self, outputs, items):
            return [[part.tolist() for part in parts] for parts in outputs]

    handler = Mine()
    handler.load(ModelContext(model_dir=tmp_path))
    rows = [[1.0, 2.0, 3.0], [6.0, 5.0, 4.0]]
    with torch.inference_mode():
        expected = [module_outputs(handler.model, row) for row in rows]
    together = handler.answer([Request.of({"instances": [row]}) for row in rows])
    for reply, parts in zip(together, expected, strict=True):
        (found,) = json.loads(reply.body)["predictions"]
        for one, other in zip(found, parts, strict=True):
            assert torch.allclose(torch.tensor(one), other, atol=1e-6)
    assert not torch.allclose(expected[0][1], expected[1][1], atol=1e-3)


def module_outputs(model, row):
    """What the module gives for one row, without the dimension that counts the rows."""
    outputs = model(torch.tensor([row]))
    return [part[:, 0] if isinstance(model, StateFirst) and number else part[0] for number, part in enumerate(outputs)]
