# ruff: noqa: E501 - the lines of a log are as long as they are
from __future__ import annotations

import pytest

from tsbatch.serving import worker_log
from tsbatch.serving.worker_log import MAX_LENGTH, Reason, Tail, WorkerLog, errors_in, reason_in

# Lines of a real TorchServe 0.12.0.
SERVER = """\
2026-11-29T17:55:00,853 [WARN ] main org.pytorch.serve.ModelServer - Failed to load model: nix.mar
org.pytorch.serve.archive.model.ModelNotFoundException: Model not found at: nix.mar
\tat org.pytorch.serve.archive.model.ModelArchive.downloadModel(ModelArchive.java:118) ~[model-server.jar:?]
2026-11-29T17:55:06,367 [INFO ] W-9001-bad_1.0-stdout MODEL_LOG - Backend worker process died.
2026-11-29T17:55:06,382 [DEBUG] W-9001-bad_1.0 org.pytorch.serve.wlm.WorkerThread - System state is : WORKER_STARTED
2026-11-29T17:55:06,385 [WARN ] W-9001-bad_1.0 org.pytorch.serve.wlm.BatchAggregator - Load model failed: bad, error: Worker died.
2026-11-29T17:55:06,385 [DEBUG] W-9001-bad_1.0 org.pytorch.serve.wlm.WorkerThread - W-9001-bad_1.0 State change WORKER_STARTED -> WORKER_STOPPED
2026-11-29T17:55:06,400 [DEBUG] W-9000-ok_1.0 org.pytorch.serve.wlm.WorkerThread - W-9000-ok_1.0 State change WORKER_SCALED_DOWN -> WORKER_STOPPED
"""
MODEL = """\
2026-11-29T17:55:05,961 [INFO ] W-9001-bad_1.0-stdout MODEL_LOG - s_name_part0=/tmp/x/.ts.sock, s_name_part1=9001, pid=5918
2026-11-29T17:55:06,367 [INFO ] W-9001-bad_1.0-stdout MODEL_LOG - Backend worker process died.
2026-11-29T17:55:06,368 [INFO ] W-9001-bad_1.0-stdout MODEL_LOG - Traceback (most recent call last):
2026-11-29T17:55:06,368 [INFO ] W-9000-ok_1.0-stdout MODEL_LOG - a line of another worker in between
2026-11-29T17:55:06,369 [INFO ] W-9001-bad_1.0-stdout MODEL_LOG -   File "/tmp/x/models/8000c1c1/bad.py", line 4, in initialize
2026-11-29T17:55:06,369 [INFO ] W-9001-bad_1.0-stdout MODEL_LOG -     raise ValueError("the weights are wrong")
2026-11-29T17:55:06,373 [INFO ] W-9001-bad_1.0-stdout MODEL_LOG - ValueError: the weights are wrong
2026-11-29T17:55:09,655 [INFO ] W-9001-bad_1.0-stdout MODEL_LOG - s_name_part0=/tmp/x/.ts.sock, s_name_part1=9001, pid=6088
"""
TIMED_OUT = """\
2026-11-29T18:17:01,000 [ERROR] W-9002-slow_1.0 org.pytorch.serve.wlm.WorkerThread - Backend worker error
org.pytorch.serve.wlm.WorkerInitializationException: Backend worker did not respond in given time
\tat org.pytorch.serve.wlm.WorkerThread.run(WorkerThread.java:275) [model-server.jar:?]
"""


@pytest.fixture
def logs(tmp_path):
    def write(server="", model=""):
        for name, text in (("ts_log.log", server), ("model_log.log", model)):
            with (tmp_path / name).open("a") as file:
                file.write(text)

    write()
    return tmp_path, write


def test_a_death_and_its_reason(logs):
    folder, write = logs
    log = WorkerLog(folder)
    assert not log.died("bad", "1.0")
    write(SERVER, MODEL)
    assert log.died("bad", "1.0")
    assert log.reason("bad", "1.0") == Reason("ValueError: the weights are wrong (bad.py:4)")
    assert log.rejected() == {"nix.mar": "Model not found at: nix.mar"}


def test_scaling_down_is_no_death_and_other_versions_are_others(logs):
    folder, write = logs
    write(SERVER, MODEL)
    log = WorkerLog(folder)
    assert not log.died("ok", "1.0")
    assert not log.died("bad", "1.1")
    assert not log.died("ba", "d_1.0")


def test_workers_of_an_earlier_registration_can_be_left_out(logs):
    folder, write = logs
    write(SERVER, MODEL)
    log = WorkerLog(folder)
    assert log.died("bad", "1.0", {"9001"})
    assert not log.died("bad", "1.0", {"9002", "900"})
    assert log.reason("bad", "1.0", {"9001"}).text.startswith("ValueError")
    assert not log.reason("bad", "1.0", {"9002"}).certain


def test_what_was_there_before_can_be_left_out(logs):
    folder, write = logs
    write(SERVER, MODEL)
    log = WorkerLog(folder, from_now=True)
    assert not log.died("bad", "1.0")
    write(SERVER)
    assert log.died("bad", "1.0")


def test_a_worker_that_loads_too_long(logs):
    folder, write = logs
    write(TIMED_OUT)
    log = WorkerLog(folder)
    assert log.died("slow", "1.0")
    assert log.reason("slow", "1.0").timed_out


def test_a_worker_that_was_killed_for_memory(logs, monkeypatch):
    folder, write = logs
    log = WorkerLog(folder)
    write(SERVER)
    assert not log.reason("bad", "1.0").certain
    monkeypatch.setattr(worker_log, "kills", lambda: 1_000_000)
    assert log.reason("bad", "1.0") == Reason("the worker was killed while loading because memory ran out")
    write(model=MODEL)
    assert log.reason("bad", "1.0").text.startswith("ValueError")


def test_no_logs_at_all(tmp_path):
    log = WorkerLog(tmp_path, from_now=True)
    assert not log.died("m", "1.0")
    assert not log.reason("m", "1.0").certain


def test_a_growing_file_is_read_by_whole_lines_and_followed_when_it_is_rolled_over(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(b"one\ntw")
    tail = Tail(path)
    assert list(tail.lines()) == ["one"]
    with path.open("ab") as file:
        file.write("o é\n".encode())
    assert list(tail.lines()) == ["two é"]
    path.write_bytes(b"new\n")
    assert list(tail.lines()) == ["new"]


FRAME = '  File "/x/h.py", line 3, in initialize'
ENTRY = "Traceback (most recent call last):"


@pytest.mark.parametrize(
    "lines, reason",
    [
        ([ENTRY, FRAME, "tsbatch.errors.SettingsError: batchSize: not a number"], "batchSize: not a number"),
        (
            # The user's own ImportError, and what TorchServe's second attempt made of it.
            [
                *(ENTRY, FRAME, "ImportError: no libfoo", ""),
                *("During handling of the above exception, another exception occurred:", ""),
                *(ENTRY, '  File "/ts/model_loader.py", line 9, in x'),
                "ModuleNotFoundError: No module named 'ts.torch_handler.h'",
            ],
            "ImportError: no libfoo (h.py:3)",
        ),
        (
            [ENTRY, FRAME, "RuntimeError: no kernel", ENTRY, FRAME, "RuntimeError: 500 - Unknown exception"],
            "RuntimeError: no kernel (h.py:3)",
        ),
        ([ENTRY, FRAME, "zlib.error: Error -3"], "zlib.error: Error -3 (h.py:3)"),
        ([ENTRY, FRAME, "AssertionError"], "AssertionError (h.py:3)"),
        (
            [ENTRY, FRAME, "pydantic.ValidationError:", "  1 field is wrong"],
            "pydantic.ValidationError: 1 field is wrong (h.py:3)",
        ),
        (
            # The last frame inside the archive is the one that people can do something about.
            [
                *(ENTRY, '  File "/tmp/x/models/0a1b2c3d4e5f/net.py", line 5, in build', FRAME),
                "OSError: no weights",
            ],
            "OSError: no weights (net.py:5)",
        ),
        (
            [ENTRY, r'  File "C:\T\models\0a1b2c3d\lib\net.py", line 5, in build', "OSError: no weights"],
            "OSError: no weights (lib/net.py:5)",
        ),
        (
            [ENTRY, FRAME, '  File "/tmp/x/models/0a1b2c3d/handler.py", line 7', "    def f(:", "SyntaxError: bad"],
            "SyntaxError: bad (handler.py:7)",
        ),
        (
            [ENTRY, FRAME, "RuntimeError: Error(s) in loading state_dict for Net:", "\tsize mismatch for a: 3 and 5"],
            "RuntimeError: Error(s) in loading state_dict for Net: size mismatch for a: 3 and 5 (h.py:3)",
        ),
        (
            # An error of ours that says what a handler raised: the one that was raised has a place.
            [
                *(ENTRY, FRAME, "json.decoder.JSONDecodeError: Expecting value: line 1", ""),
                *("The above exception was the direct cause of the following exception:", ""),
                *(ENTRY, '  File "/site-packages/tsbatch/handler.py", line 300, in _step'),
                "tsbatch.errors.LoadError: H.load_model raised JSONDecodeError: Expecting value: line 1",
            ],
            "json.decoder.JSONDecodeError: Expecting value: line 1 (h.py:3)",
        ),
        (
            # One of ours that says it better than what it came from.
            [
                *(ENTRY, FRAME, "OSError: no such thing", ""),
                *("The above exception was the direct cause of the following exception:", ""),
                *(ENTRY, FRAME, "tsbatch.errors.LoadError: the tokenizer cannot be loaded from the archive"),
            ],
            "the tokenizer cannot be loaded from the archive",
        ),
        (["Torch worker started.", "cannot go on", ""], "the worker ended; its last output: cannot go on"),
        (
            ["Torch worker started.", "[METRICS]x"],
            "the worker ended without output; out of memory, or sys.exit in the handler",
        ),
    ],
)
def test_the_decisive_line(lines, reason):
    assert reason_in(lines) == Reason(reason, certain=not reason.startswith("the worker ended"))


def test_a_certain_reason_goes_before_an_uncertain_one(logs):
    folder, write = logs
    write(SERVER.replace("W-9001", "W-9000"))
    write(SERVER, MODEL)
    assert WorkerLog(folder).reason("bad", "1.0").certain


def test_an_exception_cut_off_at_the_end():
    assert [error.text for error in errors_in([ENTRY, FRAME, "KeyError:"])] == ["KeyError:"]


def test_a_librarys_warning_is_no_last_word():
    warning = "/x/backend.py:53: FutureWarning: this is deprecated", "  if hasattr(torch, 'x'):"
    assert "ended without output" in str(reason_in([*warning]))
    assert str(reason_in(["giving up", *warning])) == "the worker ended; its last output: giving up"


def test_a_reason_has_an_end():
    assert len(str(reason_in([ENTRY, FRAME, f"RuntimeError: {'key ' * 1000}"]))) == MAX_LENGTH
