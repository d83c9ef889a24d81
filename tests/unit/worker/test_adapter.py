"""The adapter, against TorchServe's own Context and message encoder."""

from __future__ import annotations

import gc
import logging
import os
import re
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import ts.context
from ts.metrics.metric_cache_yaml_impl import MetricsCacheYamlImpl
from ts.protocol.otf_message_handler import create_predict_response

import tsbatch
from tsbatch.errors import LoadError
from tsbatch.handler import BatchHandler
from tsbatch.protocol.reply import Reply
from tsbatch.worker.adapter import ContextSink, StandInBase, model_context, requests_from
from tsbatch.worker.context import ModelContext

MANIFEST = {"model": {"modelName": "m", "modelVersion": "2.5", "serializedFile": "w.pt"}}


class Echo(BatchHandler):
    def load_model(self):
        return torch.nn.Identity()

    def preprocess(self, items):
        return torch.zeros(len(items))

    def postprocess(self, outputs, items):
        if any(item.value == "bad" for item in items):
            raise ValueError("guilty")
        return [item.value for item in items]


def metrics():
    cache = MetricsCacheYamlImpl(config_file_path=str(Path(tsbatch.__file__).with_name("metrics.yaml")))
    cache.initialize_cache()
    cache.model_name = "m"
    return cache


def ts_context(properties=(), *, config=None, manifest=MANIFEST, batch_size=8, gpu=None):
    """A Context as Service makes it, in the state that Service.predict leaves it in."""
    context = ts.context.Context("m", "folder", manifest, batch_size, gpu, "0.12.0", metrics=metrics())
    context.model_yaml_config = config
    context.request_ids = {index: f"id-{index}" for index in range(len(properties))}
    context.metrics.request_ids = context.request_ids
    context.request_processor = [ts.context.RequestProcessor(dict(own)) for own in properties]
    return context


def json_row(value):
    """A row and its properties, as Service.retrieve_data_for_inference makes them of a JSON body."""
    return {"body": value}, {"body": {"content-type": "application/json"}}


def handle(handler, values, headers=({},) * 99):
    rows, properties = [], []
    for value, own in zip(values, headers, strict=False):
        row, types = json_row(value)
        rows.append(row)
        properties.append({**types, **own})
    context = ts_context(properties)
    return handler.handle(rows, context), context


@pytest.fixture
def echo():
    handler = Echo()
    handler.load(ModelContext(model_dir=Path(), batch_size=8))
    return handler


# ---- loading --------------------------------------------------------------------------------------------------


def test_a_handler_is_a_handler_of_torchserve():
    from ts.torch_handler.base_handler import BaseHandler

    assert issubclass(BatchHandler, BaseHandler)


def test_a_worker_does_not_import_the_compilers_that_torchserve_would(tmp_path):
    (tmp_path / "openvino").mkdir()
    (tmp_path / "openvino" / "__init__.py").touch()
    (tmp_path / "openvino" / "torch.py").write_text("print('loaded')")
    program = "import tsbatch.worker.adapter as t; print(t.BaseHandler.__module__); import openvino.torch"
    command = [sys.executable, "-W", "ignore", "-c", program]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(tmp_path)}, capture_output=True, text=True)
    assert done.stdout.split() == ["ts.torch_handler.base_handler", "loaded"], done.stderr


def test_the_stand_in_has_what_a_handler_needs():
    stand_in = StandInBase()
    assert (stand_in.model, stand_in.device, stand_in.initialized) == (None, None, False)


def test_torchserves_context_at_load_time():
    context = model_context(ts_context(config={"batchSize": 8}, gpu=1))
    assert context == ModelContext(
        model_dir=Path("folder"),
        model_name="m",
        model_version="2.5",
        batch_size=8,
        gpu_id=1,
        config={"batchSize": 8},
        manifest=MANIFEST["model"],
    )


@pytest.mark.parametrize("manifest", [None, {}, {"model": {}}])
def test_what_an_archive_may_lack(manifest):
    context = model_context(ts_context(manifest=manifest, batch_size=None))
    assert (context.model_version, context.batch_size, context.config, context.manifest) == ("1.0", 1, {}, {})


def test_a_config_that_is_no_mapping():
    with pytest.raises(LoadError, match=r"model-config.yaml: expected keys and values, got list"):
        model_context(ts_context(config=["a"]))


# ---- rows to requests -----------------------------------------------------------------------------------------


def test_headers_and_content_types_are_told_apart():
    rows = [{"data": b"x", "file": b"y"}]
    context = ts_context([{"data": {"content-type": "text/plain"}, "file": {"content-type": None}, "X-A": "1"}])
    [request] = requests_from(rows, context)
    assert dict(request.headers) == {"x-a": "1"}
    assert request.content_types == {"data": "text/plain", "file": None}
    assert request.fields is rows[0]
    assert (request.id, request.index, request.kind, request.arrival) == ("id-0", 0, "predict", None)


@pytest.mark.parametrize(
    "headers, kind",
    [
        ({}, "predict"),
        ({"explain": "True"}, "explain"),
        ({"Explain": "True"}, "explain"),
        ({"explain": "False"}, "predict"),
        ({"describe": "True"}, "describe"),
        ({"describe": "True", "explain": "True"}, "describe"),
        ({"describe": "true"}, "predict"),
    ],
)
def test_each_request_says_for_itself_what_it_asks(headers, kind):
    requests = requests_from([{}, {}], ts_context([headers, {}]))
    assert [request.kind for request in requests] == [kind, "predict"]


def test_the_arrival_is_read():
    sent = time.time() - 2
    requests = requests_from(
        [{}, {}], ts_context([{"X-Request-Start": f"t={sent * 1e3:.0f}"}, {"x-request-start": "x"}])
    )
    assert requests[0].arrival == pytest.approx(sent, abs=0.002)
    assert requests[1].arrival is None


# ---- replies to the context -----------------------------------------------------------------------------------

NASTY = [
    "one\r\nSet-Cookie: two",
    "naïve – 猫",
    "\ud800",
    "tab\there",
    "nul\x00",
    "\x7f",
    "",
]


@pytest.mark.parametrize("text", NASTY)
def test_nothing_in_a_reply_can_break_the_frame(text):
    context = ts_context([{}, {}])
    sink = ContextSink(context, 2)
    sink.send(0, Reply(b"body", 418, text, text, {"X-A": text, text or "X-B": "1", "content-type": "x/y", "X-N": 5}))
    sink.send(1, Reply(b"other"))
    frame = bytes(create_predict_response(sink.bodies, context.request_ids, "ok", 200, context=context))
    answers = read_frame(frame)
    assert [answer["body"] for answer in answers] == [b"body", b"other"]
    assert answers[0]["status"] == 418
    assert answers[0]["phrase"] == "I'm a Teapot"
    for answer in answers:
        for part in (answer["type"], answer["phrase"], *answer["headers"], *answer["headers"].values()):
            assert all(" " <= character <= "~" for character in part)
    assert answers[1]["type"] == "application/json"
    assert answers[0]["headers"]["content-type"] == answers[0]["type"], "a header cannot replace the content type"


def read_frame(frame):
    """What the frontend reads (ModelResponseDecoder.java): lengths are bytes."""
    at = 0

    def number():
        nonlocal at
        at += 4
        return struct.unpack("!i", frame[at - 4 : at])[0]

    def text():
        nonlocal at
        length = number()
        at += length
        return frame[at - length : at]

    number()
    text()
    answers = []
    while (length := number()) != -1:
        at += length
        answer = {"type": text().decode("ascii"), "status": number(), "phrase": text().decode("ascii")}
        answer["headers"] = {text().decode("ascii"): text().decode("ascii") for _ in range(number())}
        answer["body"] = text()
        answers.append(answer)
    assert at == len(frame), "the frame is read to its last byte"
    return answers


TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")  # RFC 9110, 5.6.2


@pytest.mark.parametrize("name", ["X Mine", "X:Mine", "X-Mïne", "a;b=c", "(x)", "a,b", '"', "X-Mine\r\n"])
def test_a_header_gets_a_name_that_netty_takes(name):
    context = ts_context([{}])
    ContextSink(context, 1).send(0, Reply(b"", headers={name: "1"}))
    names = [own for own in context.get_response_headers(0) if own != "content-type"]
    assert len(names) == 1
    assert TOKEN.fullmatch(names[0])


@pytest.mark.parametrize(
    "name", ["Content-Length", "transfer-encoding", "Connection", "ts_stream_next", "Content-Type", ""]
)
def test_headers_that_frame_the_answer_stay_the_servers(name):
    context = ts_context([{}])
    ContextSink(context, 1).send(0, Reply(b"", headers={name: "true"}))
    assert context.get_response_headers(0) == {"content-type": "application/json"}


def test_an_unknown_status_has_a_phrase_too():
    context = ts_context([{}])
    ContextSink(context, 1).send(0, Reply(b"", 599))
    assert context.get_response_status(0) == (599, "Unknown")


def test_a_good_reply_needs_no_status():
    context = ts_context([{}])
    sink = ContextSink(context, 1)
    sink.send(0, Reply(b"x"))
    assert context.get_response_status(0) == (200, None)
    assert sink.missing == set()


# ---- handle ---------------------------------------------------------------------------------------------------


def test_one_answer_for_each_row_in_order(echo):
    answers, context = handle(echo, ["a", "bad", "c"], [{}, {}, {"X-Request-Start": f"t={time.time() - 1}"}])
    assert answers[0] == b'"a"'
    assert answers[2] == b'"c"'
    assert b"guilty" in answers[1]
    assert all(type(answer) is bytes for answer in answers)
    assert [context.get_response_status(index)[0] for index in range(3)] == [200, 500, 200]
    timings = [context.get_response_headers(index)["Server-Timing"] for index in range(3)]
    assert timings[0].startswith("handler;dur=")
    assert timings[2].startswith("queue;dur=")
    assert all('batch;desc="3/8"' in timing for timing in timings)


def test_server_timing_can_be_switched_off():
    handler = Echo()
    config = {"tsbatch": {"telemetry": {"server_timing": False}}}
    handler.load(ModelContext(model_dir=Path(), batch_size=8, config=config))
    _, context = handle(handler, ["a"])
    assert "Server-Timing" not in context.get_response_headers(0)


def test_python_looks_for_garbage_less_often_while_a_batch_is_worked_on(echo, monkeypatch):
    """And as usual before and after, also when nothing went right, and not at all where somebody switched it off."""
    seen, usual = [], gc.get_threshold()

    def process(*_):
        seen.append(gc.get_threshold())
        raise RuntimeError("a defect")

    monkeypatch.setattr("tsbatch.handler.process", process)
    handle(echo, ["a"])
    assert (seen, gc.get_threshold()) == ([(50_000, *usual[1:])], usual)
    gc.set_threshold(0, *usual[1:])
    try:
        handle(echo, ["a"])
        assert seen[-1] == gc.get_threshold() == (0, *usual[1:])
    finally:
        gc.set_threshold(*usual)


def test_an_empty_batch_is_an_empty_list(echo):
    assert handle(echo, [])[0] == []


@pytest.mark.parametrize("rows", [None, "text", {"a": 1}])
def test_rows_that_are_no_list(echo, rows):
    assert echo.handle(rows, ts_context()) == []


def test_a_defect_of_the_loop_itself_still_gives_everyone_an_answer(echo, monkeypatch, caplog):
    def broken(*_):
        raise RuntimeError("a defect")

    monkeypatch.setattr("tsbatch.handler.process", broken)
    answers, context = handle(echo, ["a", "b"])
    assert all(b"the batch loop raised RuntimeError" in answer for answer in answers)
    assert [context.get_response_status(index)[0] for index in range(2)] == [500, 500]
    assert "a bug in tsbatch" in caplog.text


def test_answers_that_were_ready_before_a_defect_are_kept(echo, monkeypatch):
    real = ContextSink.send
    count = []

    def breaks_once(self, index, reply):
        count.append(index)
        if count == [0, 1]:
            raise RuntimeError("a defect")
        real(self, index, reply)

    monkeypatch.setattr(ContextSink, "send", breaks_once)
    answers, _ = handle(echo, ["a", "b", "c"])
    assert answers[0] == b'"a"'
    assert b"batch loop raised" in answers[1]
    assert b"batch loop raised" in answers[2]


def test_metrics_that_cannot_be_emitted_cost_no_answer(echo, caplog):
    row, properties = json_row("a")
    context = ts_context([properties])
    context.metrics = None
    assert echo.handle([row], context) == [b'"a"']
    assert "could not be emitted" in caplog.text


def test_handler_time_carries_all_ids_as_torchserves_own_does(echo, caplog):
    caplog.set_level(logging.INFO, logger="ts.metrics.caching_metric")
    handle(echo, ["a", "b", "c"])
    lines = [line for text in caplog.messages for line in text.split("\n") if "HandlerTime.Milliseconds" in line]
    assert len(lines) == 1
    assert lines[0].endswith(",id-0,id-1,id-2")


def test_failures_are_counted_by_cause(echo, caplog):
    caplog.set_level(logging.INFO, logger="ts.metrics.caching_metric")
    handle(echo, ["bad", {"inputs": []}, {"inputs": []}, "a"])
    lines = [
        line.split("|#type")[0] for text in caplog.messages for line in text.split("\n") if "FailedRequests" in line
    ]
    assert sorted(lines) == [
        "[METRICS]FailedRequests.Count:1|#Cause:handler_failed,ModelName:m,Level:Model",
        "[METRICS]FailedRequests.Count:2|#Cause:bad_request,ModelName:m,Level:Model",
    ]


def test_the_next_batch_knows_when_the_worker_became_free(echo):
    handle(echo, ["a"])
    free = echo.free_since
    assert free == pytest.approx(time.time(), abs=0.5)
    arrival = free - 0.5
    _, context = handle(echo, ["a"], [{"X-Request-Start": f"t={arrival:.6f}"}])
    queue = float(context.get_response_headers(0)["Server-Timing"].split("queue;dur=")[1].split(",")[0])
    assert queue == pytest.approx(500, abs=1), "it waited from its arrival until the worker was free"


def test_the_worker_is_not_free_before_its_metrics_are_out(echo, monkeypatch):
    monkeypatch.setattr("tsbatch.worker.adapter.emit", lambda *_, **__: time.sleep(0.05))
    handle(echo, ["a"])
    assert time.time() - echo.free_since < 0.04


def test_the_connection_is_watched_once(echo, monkeypatch):
    watched = []
    monkeypatch.setattr(
        "tsbatch.worker.shutdown.close_on_hang_up", lambda connection, close, **_: watched.append(connection)
    )
    row, properties = json_row("a")
    for _ in range(3):
        context = ts_context([properties])
        context.cl_socket = "socket"
        echo.handle([row], context)
    assert watched == ["socket"]


def test_initialize_takes_torchserves_context(tmp_path):
    handler = Echo()
    context = ts.context.Context("m", str(tmp_path), MANIFEST, 4, None, "0.12.0", metrics=metrics())
    handler.initialize(context)
    assert handler.initialized
    assert handler.context is context
    assert handler.manifest is MANIFEST
    assert (handler.batch_size, handler.identity.version, handler.model_dir) == (4, "2.5", tmp_path)
