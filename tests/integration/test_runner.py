"""The runner with handlers that know nothing of tsbatch, through TorchServe's own Python code."""

from __future__ import annotations

import gc
import json
import logging
import os
import signal
import sys
import tempfile
import threading
import zipfile
from pathlib import Path

import pytest
import torch

from tsbatch import BatchHandler, LoadError
from tsbatch.emulation.runner import Call, HandlerRunner, WorkerDied
from tsbatch.testing.invariance import assert_batch_invariant

ECHO = """
class Echo:
    def initialize(self, context):
        self.context = context

    def handle(self, data, context):
        return [repr(sorted(row.items())) for row in data]
"""


class Handler:
    """Answers with what ``answer(row, context, index)`` says."""

    answer = staticmethod(lambda row, *_: row.get("body"))

    def initialize(self, context):
        self.initialized_in = str(Path.cwd())
        self.properties = context.system_properties
        self.manifest, self.config = context.manifest, context.model_yaml_config

    def handle(self, data, context):
        return [type(self).answer(row, context, index) for index, row in enumerate(data)]


def handler(answer):
    return type("Own", (Handler,), {"answer": staticmethod(answer)})


@pytest.fixture
def process(tmp_path, monkeypatch):
    """What a runner must leave as it was, asserted afterwards."""

    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))

    def state():
        return (
            str(Path.cwd()),
            sys.path[:],
            sys.dont_write_bytecode,
            sorted(name for name in sys.modules if name in {"handler", "helper", "package", "package.part"}),
            [path for path in sys.path_importer_cache if path.startswith(str(temporary))],
            [type(handler) for handler in logging.getLogger().handlers],
            logging.getLogger("ts.metrics.caching_metric").__dict__["level"],
            logging.getLogger("ts.metrics.caching_metric").handlers[:],
            logging.getLogger("ts.metrics.caching_metric").propagate,
            signal.getsignal(signal.SIGTERM),
            torch.get_num_threads(),
            {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"},
            list(temporary.iterdir()),
        )

    before = state()
    yield
    assert state() == before


# ---- what the handler is given ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "request_,row",
    [
        ("grüße", [("body", "grüße")]),
        (b"\x00raw", [("body", bytearray(b"\x00raw"))]),
        ({"a": [1, None]}, [("body", {"a": [1, None]})]),
        (0, [("body", 0)]),
        (None, [("body", None)]),
        (Call(b'{"a": 1}', "application/json; charset=utf-8"), [("body", {"a": 1})]),
        (Call(b"{broken", "application/json"), [("body", bytearray(b"{broken"))]),
        (Call("text", ""), [("body", bytearray(b"text"))]),
        (Call(b"\xff", "text/plain"), [("body", bytearray(b"\xff"))]),
        (Call("a=1&b=", "application/x-www-form-urlencoded"), [("a", bytearray(b"1")), ("b", bytearray())]),
        (
            Call(fields={"data": b"x", "file": ("y", "text/csv"), "json": {"q": 1}}),
            [("data", bytearray(b"x")), ("file", "y"), ("json", {"q": 1})],
        ),
    ],
)
def test_torchserve_decodes_the_request(request_, row, make_mar):
    with HandlerRunner.from_mar(make_mar(ECHO)) as runner:
        assert runner.predict_one(request_).text == repr(row)


def test_headers_and_content_types_reach_the_context(tmp_path):
    cls = handler(lambda _, context, index: context.get_all_request_header(index))
    with HandlerRunner.from_class(cls, tmp_path) as runner:
        answers = runner.predict([Call("x", headers={"X-A": "ü"}), Call(fields={"f": ("y", "image/png")})])
    assert answers[0].json() == {
        "body": {"content-type": "text/plain"},
        "Content-Type": "text/plain",
        "Content-Length": "1",
        "X-A": "ü",
        "explain": "False",
    }
    assert answers[1].json()["f"] == {"content-type": "image/png"}


def test_describe_and_explain_carry_the_frontends_headers(tmp_path):
    def answer(row, context, index):
        return {"row": row, **{name: context.get_request_header(index, name) for name in ("describe", "explain")}}

    with HandlerRunner.from_class(handler(answer), tmp_path) as runner:
        assert runner.describe().json() == {"row": {}, "describe": "True", "explain": None}
        first, second = runner.explain(["a", Call("b", headers={"explain": "No"})])
        assert first.json() == {"row": {"body": "a"}, "describe": None, "explain": "True"}
        assert second.json()["explain"] == "True"
        # The frontend's word counts, not the client's.
        assert runner.predict_one(Call("a", headers={"explain": "True"})).json()["explain"] == "False"


def test_a_raw_multipart_body_is_refused(make_mar):
    with HandlerRunner.from_mar(make_mar(ECHO)) as runner, pytest.raises(ValueError, match="Call\\(fields="):
        runner.predict_one(Call(b"--x", "multipart/form-data; boundary=x"))


# ---- what comes back -------------------------------------------------------------------------------------------


def test_each_request_has_its_own_status_headers_and_bytes(tmp_path):
    def answer(row, context, index):
        context.set_response_content_type(index, "text/x-own")
        if row["body"] == "bad":
            context.set_response_status(422, "Unprocessable Entity", index)
        context.set_response_header(index, "X-Place", str(index))
        return row["body"].upper()

    with HandlerRunner.from_class(handler(answer), tmp_path) as runner:
        good, bad = runner.predict(["good", "bad"])
    assert (good.status, good.text, good.content_type, good.headers["x-place"]) == (200, "GOOD", "text/x-own", "0")
    assert (bad.status, bad.phrase, bad.text, bad.headers["X-Place"]) == (422, "Unprocessable Entity", "BAD", "1")
    assert not bad.failed_whole_batch
    assert good.request_id != bad.request_id


def raise_(error):
    raise error


def prediction_exception():
    from ts.utils.util import PredictionException

    return PredictionException("not today", 418)


@pytest.mark.parametrize(
    "answer,status,message",
    [
        (lambda *_: raise_(ValueError("no")), 503, "Prediction failed"),
        (lambda *_: raise_(MemoryError), 507, "Out of resources"),
        (lambda *_: raise_(RuntimeError("CUDA is out")), 507, "Out of resources"),
        (lambda *_: raise_(prediction_exception()), 418, "not today"),
        (lambda *_: {1, 2}, 503, "Unsupported model output data type."),
    ],
    ids=["error", "memory", "cuda", "own code", "no json"],
)
def test_what_fails_a_whole_batch(answer, status, message, tmp_path):
    with HandlerRunner.from_class(handler(answer), tmp_path) as runner:
        answers = runner.predict(["a", "b", "c"])
    assert [(one.status, one.failed_whole_batch) for one in answers] == [(status, True)] * 3
    assert answers[2].json() == {"code": status, "type": "InternalServerException", "message": message}


@pytest.mark.parametrize("result", [("a",), [], None, ["a", "b"]])
def test_a_wrong_shape_fails_the_batch(result, tmp_path):
    cls = type("Own", (Handler,), {"handle": lambda *_: result})
    with HandlerRunner.from_class(cls, tmp_path) as runner:
        assert runner.predict_one("x").failed_whole_batch


def circular():
    value = []
    value.append(value)
    return value


@pytest.mark.parametrize(
    "answer,said",
    [
        (lambda *_: "\ud800", "UnicodeEncodeError"),
        (lambda *_: circular(), "ValueError: Circular"),
        (lambda _, context, index: context.set_response_header(index, "X-A", 1) or "", "AttributeError"),
        (lambda _, context, index: context.set_response_header(index, "X-A", "1\r\nB: 2") or "", "header X-A"),
        (lambda _, context, index: context.set_response_status(400, "Ungültig", index) or "", "not ASCII"),
        (lambda *_: b"x" * 6_553_501, "max_response_size"),
        (lambda *_: sys.exit(3), "SystemExit: 3"),
    ],
    ids=["surrogate", "circular", "number header", "line break", "phrase", "too large", "exit"],
)
def test_what_ends_a_worker(answer, said, tmp_path):
    with HandlerRunner.from_class(handler(answer), tmp_path) as runner, pytest.raises(WorkerDied, match=said):
        runner.predict(["x"])


def test_a_stream_is_one_body(tmp_path):
    class Stream(Handler):
        def handle(self, data, context):
            from ts.handler_utils.utils import send_intermediate_predict_response

            for part in ("one ", "two "):
                send_intermediate_predict_response([part], context.request_ids, "", 200, context)
            return ["three"]

    with HandlerRunner.from_class(Stream, tmp_path) as runner:
        assert runner.predict_one("x").text == "one two three"


@pytest.mark.parametrize("size", [0, -1])
def test_a_batch_size_that_is_none(size, make_mar, process):
    with pytest.raises(ValueError, match=f"batch_size is {size}"):
        HandlerRunner.from_mar(make_mar(ECHO), batch_size=size)


def test_more_requests_than_a_batch_holds_travel_in_several(tmp_path):
    class Sizes(Handler):
        def handle(self, data, context):
            return [len(data)] * len(data)

    with HandlerRunner.from_class(Sizes, tmp_path, batch_size=3) as runner:
        assert [one.json() for one in runner.predict("abcdefgh")] == [3, 3, 3, 3, 3, 3, 2, 2]
        assert len([metric for metric in runner.metrics if metric.name == "PredictionTime"]) == 3
        with pytest.raises(ValueError, match="at least one request"):
            runner.predict([])


class Halved(BatchHandler):
    """A handler of ours, in the same runner."""

    def load_model(self):
        return torch.nn.Identity()

    def postprocess(self, outputs, items):
        return (outputs / 2).tolist()


def test_a_handler_of_ours_keeps_one_bad_request_to_itself(tmp_path, process):
    with HandlerRunner.from_class(Halved, tmp_path, batch_size=4) as runner:
        good, bad, more = runner.predict([1.0, Call("{broken", "application/json"), [3.0, 5.0]])
        assert (good.json(), bad.status, more.json()) == (0.5, 400, [1.5, 2.5])
        assert not bad.failed_whole_batch
        assert {metric.name for metric in runner.metrics} >= {"HandlerTime", "PredictionTime", "FailedRequests"}
        assert_batch_invariant(runner, [1.0, [3.0, 5.0], Call("{", "application/json"), [7.0]])


# ---- metrics ---------------------------------------------------------------------------------------------------


class Measured(Handler):
    def handle(self, data, context):
        context.metrics.add_time("HandlerTime", 12.5)
        context.metrics.add_counter("Seen", 2, idx=1)
        context.metrics.add_counter("Huge", float("inf"))
        return ["x"] * len(data)


def test_metrics_of_the_last_predict(tmp_path):
    with HandlerRunner.from_class(Measured, tmp_path, name="tall") as runner:
        runner.predict(["a"])
        answers = runner.predict(["a", "b"])
        ids = tuple(answer.request_id for answer in answers)
        time, seen, prediction = runner.metrics
        assert (time.name, time.unit, time.value, time.type) == ("HandlerTime", "Milliseconds", 12.5, "GAUGE")
        assert time.dimensions == {"ModelName": "tall", "Level": "Model"}
        assert time.request_ids == prediction.request_ids == ids
        assert (seen.name, seen.unit, seen.value, seen.request_ids) == ("Seen", "Count", 2, ids[1:])
        (dropped,) = runner.dropped_metrics
        assert dropped.startswith("[METRICS]Huge.Count:inf")


def test_two_models_keep_their_names_out_of_each_others_metrics(tmp_path):
    with (
        HandlerRunner.from_class(Measured, tmp_path, name="one") as one,
        HandlerRunner.from_class(Measured, tmp_path, name="two") as two,
    ):
        for runner in (one, two, one):
            runner.predict(["a", "b"])
            assert {metric.dimensions["ModelName"] for metric in runner.metrics} == {runner.model_name}


def test_what_others_left_in_torchserves_default_arguments_is_not_seen_and_stays(tmp_path):
    from ts.metrics.dimension import Dimension
    from ts.metrics.metric_cache_abstract import MetricCacheAbstract

    shared = next(value for value in MetricCacheAbstract.add_time.__defaults__ if isinstance(value, list))
    left = [Dimension("ModelName", "somebody's"), Dimension("Level", "Model")]
    shared[:] = left
    try:
        with HandlerRunner.from_class(Measured, tmp_path, name="own") as runner:
            runner.predict(["a", "b"])
            assert {metric.dimensions["ModelName"] for metric in runner.metrics} == {"own"}
        assert shared == left
    finally:
        shared.clear()


@pytest.mark.parametrize("level,seen", [(logging.WARNING, 0), (logging.INFO, 4)])
def test_the_callers_logging_shows_what_it_showed(level, seen, tmp_path, caplog, process):
    with caplog.at_level(level), HandlerRunner.from_class(Measured, tmp_path) as runner:
        caplog.clear()
        runner.predict(["a", "b"])
        assert len([line for line in caplog.messages if line.startswith("[METRICS]")]) == seen
        assert len(runner.metrics) == 3


def test_a_root_logger_without_handlers_gets_none(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    with HandlerRunner.from_class(handler(lambda *_: raise_(ValueError("why"))), tmp_path) as runner:
        runner.predict(["x"])
    assert logging.getLogger().handlers == []
    assert "ValueError: why" in capsys.readouterr().err


def test_a_warning_of_torchserve_is_still_seen(tmp_path, caplog):
    with HandlerRunner.from_class(handler(lambda *_: raise_(ValueError("why"))), tmp_path) as runner:
        runner.predict(["x"])
    assert "Invoking custom service failed." in caplog.messages
    assert "ValueError: why" in caplog.text


# ---- loading ---------------------------------------------------------------------------------------------------


def test_from_class_gives_context_and_writes_nothing(tmp_path, process):
    model = tmp_path / "model"
    model.mkdir()
    (model / "helper.py").write_text("VALUE = 7")

    class Own(Handler):
        def initialize(self, context):
            super().initialize(context)
            import helper

            self.value = helper.VALUE

    config = {"batchSize": 5, "handler": {"top": 3}}
    with HandlerRunner.from_class(Own, model, settings=config, name="n", version="2.1", gpu_id=1) as runner:
        own = runner.handler
        assert type(own) is Own
        assert (own.value, own.initialized_in, own.config) == (7, str(model), config)
        assert own.manifest["model"]["modelName"] == "n"
        assert own.manifest["model"]["modelVersion"] == "2.1"
        assert own.properties["model_dir"] == str(model)
        assert (own.properties["batch_size"], own.properties["gpu_id"]) == (5, 1)
        assert runner.batch_size == 5
    assert [path.name for path in model.rglob("*")] == ["helper.py"]


def test_settings_from_a_file(tmp_path):
    (tmp_path / "conf.yaml").write_text("batchSize: 6\nhandler: {a: 1}\n")
    with HandlerRunner.from_class(Handler, tmp_path, settings=tmp_path / "conf.yaml", batch_size=2) as runner:
        assert runner.handler.config == {"batchSize": 6, "handler": {"a": 1}}
        assert (runner.batch_size, runner.handler.properties["batch_size"]) == (2, 2)


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
def test_torchserves_own_handlers_load_from_their_manifest_entries(tmp_path):
    torch.jit.save(torch.jit.trace(torch.nn.Linear(2, 1), torch.zeros(1, 2)), tmp_path / "model.pt")
    from ts.torch_handler.base_handler import BaseHandler

    class Tensors(BaseHandler):
        def preprocess(self, data):
            return torch.tensor([row["body"] for row in data])

    with HandlerRunner.from_class(Tensors, tmp_path, manifest={"serializedFile": "model.pt"}) as runner:
        alone = runner.predict_one([1.0, 2.0]).json()
        assert runner.predict([[1.0, 2.0], [3.0, 4.0]])[0].json() == pytest.approx(alone)
        assert {metric.name for metric in runner.metrics} == {"HandlerTime", "PredictionTime"}


def test_an_archive_works_in_its_own_folder_and_leaves_nothing(make_mar, process):
    source = """
        import os, sys
        import helper

        class Own:
            def initialize(self, context):
                self.at_load = os.getcwd(), helper.NAME, context.system_properties["model_dir"]
                sys.path.append("later")

            def handle(self, data, context):
                import package.part
                import added
                return [[*self.at_load, os.getcwd(), package.part.NAME, added.NAME] for _ in data]
    """
    files = {
        "helper.py": "NAME = 'h'",
        "package/__init__.py": "",
        "package/part.py": "NAME = 'p'",
        "later/added.py": "NAME = 'a'",
    }
    with HandlerRunner.from_mar(make_mar(source, files=files)) as runner:
        for _ in range(2):
            at_load, helper, folder, now, part, added = runner.predict_one("x").json()
            assert (helper, part, added) == ("h", "p", "a")
            assert at_load == now == folder != str(Path.cwd())
            assert Path(folder).stat().st_mode & 0o77 == 0
        assert not {"handler", "helper", "package", "added"} & sys.modules.keys()
    assert not Path(folder).exists()


def test_a_runner_that_nobody_closes_leaves_no_folder(make_mar):
    runner = HandlerRunner.from_mar(make_mar(ECHO))
    folder = runner._environment.folder
    assert folder.exists()
    del runner
    gc.collect()
    assert not folder.exists()


def test_two_archives_with_the_same_module_names_do_not_meet(make_mar, process):
    source = "import helper\n" + ECHO.replace("repr(sorted(row.items()))", "helper.NAME")
    one = make_mar(source, name="one", files={"helper.py": "NAME = 'one'"})
    two = make_mar(source, name="two", files={"helper.py": "NAME = 'two'"})
    with (
        HandlerRunner.from_mar(one) as first,
        HandlerRunner.from_mar(two) as second,
        HandlerRunner.from_mar(one) as third,
    ):
        assert [runner.predict_one("x").text for runner in (first, second, third, first)] == [
            "one",
            "two",
            "one",
            "one",
        ]
        assert type(first.handler) is not type(third.handler)


def test_a_module_of_the_caller_with_the_handlers_name_is_put_aside_and_back(make_mar, monkeypatch):
    mine = type(sys)("handler")
    monkeypatch.setitem(sys.modules, "handler", mine)
    with HandlerRunner.from_mar(make_mar(ECHO)) as runner:
        assert runner.predict_one("x").ok
        assert sys.modules["handler"] is mine
    assert sys.modules["handler"] is mine


def test_runners_used_from_threads_work_one_at_a_time(make_mar, process):
    source = """
        import os

        class Own:
            def initialize(self, context):
                self.folder = context.system_properties["model_dir"]

            def handle(self, data, context):
                return [os.getcwd() == self.folder for _ in data]
    """
    answers = []
    with (
        HandlerRunner.from_mar(make_mar(source, name="a")) as one,
        HandlerRunner.from_mar(make_mar(source, name="b")) as two,
    ):
        work = [
            threading.Thread(target=lambda r=runner: answers.extend(r.predict_one("x").json() for _ in range(50)))
            for runner in (one, two)
        ]
        for thread in work:
            thread.start()
        for thread in work:
            thread.join()
    assert answers == [True] * 100


def test_the_model_folder_may_go_after_loading(make_mar):
    with HandlerRunner.from_mar(make_mar(ECHO)) as runner:
        folder = Path(runner.handler.context.system_properties["model_dir"])
        for path in sorted(folder.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        folder.rmdir()
        assert runner.predict_one("x").ok


def test_function_handlers_and_handlers_in_folders(make_mar):
    source = """
        def entry(data, context):
            return None if data is None else ["from a function" for _ in data]
    """
    mar = make_mar(source, entry="sub/service.py", names="sub/service.py:entry")
    with HandlerRunner.from_mar(mar) as runner:
        assert runner.predict_one("x").text == "from a function"
        assert callable(runner.handler)


def test_an_unpacked_archive_is_used_where_it_lies(make_mar, tmp_path):
    folder = tmp_path / "unpacked"
    with zipfile.ZipFile(make_mar(ECHO, config="batchSize: 3\n")) as archive:
        archive.extractall(folder)
    with HandlerRunner.from_mar(folder) as runner:
        assert runner.batch_size == 3
        assert runner.handler.context.system_properties["model_dir"] == str(folder)
    assert not list(folder.rglob("__pycache__"))


def test_what_loading_changed_in_the_process_is_undone(make_mar, process):
    source = """
        import os, signal, torch

        class Own:
            def initialize(self, context):
                torch.set_num_threads(1 + torch.get_num_threads())
                os.environ["OWN_VARIABLE"] = "1"
                os.environ["PATH"] = "own"
                signal.signal(signal.SIGTERM, lambda *_: None)

            def handle(self, data, context):
                return [[torch.get_num_threads(), os.environ["OWN_VARIABLE"]] for _ in data]
    """
    threads, before = torch.get_num_threads(), signal.getsignal(signal.SIGTERM)
    with HandlerRunner.from_mar(make_mar(source)) as runner:
        assert runner.predict_one("x").json() == [threads + 1, "1"]
        assert signal.getsignal(signal.SIGTERM) is before


def test_close_closes_the_handler_once(tmp_path):
    closed = []
    cls = type("Own", (Handler,), {"close": lambda _: closed.append(str(Path.cwd()))})
    with HandlerRunner.from_class(cls, tmp_path) as runner:
        pass
    runner.close()
    assert closed == [str(tmp_path)]
    with pytest.raises(RuntimeError, match="closed"):
        runner.predict(["x"])


# ---- what does not load ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "source,said",
    [
        (
            "import not_installed_anywhere\n" + ECHO,
            "m.mar: ModuleNotFoundError: No module named 'not_installed_anywhere'",
        ),
        ("from os import nothing_like_it\n" + ECHO, "m.mar: ImportError: cannot import name 'nothing_like_it'"),
        ("class A: pass\nclass B: pass\n", "m.mar: ValueError: Expected only one class"),
        (
            ECHO.replace("self.context = context", "raise OSError('weights.bin is gone')"),
            "OSError: weights.bin is gone",
        ),
        (ECHO.replace("self.context = context", "raise SystemExit('enough')"), "SystemExit: enough"),
        ("def broken(:", "SyntaxError"),
    ],
)
def test_a_handler_that_does_not_load(source, said, make_mar, process):
    with pytest.raises(LoadError) as caught:
        HandlerRunner.from_mar(make_mar(source))
    assert said in str(caught.value)


def test_a_load_error_of_the_handler_is_passed_on_as_it_is(tmp_path):
    cls = type("Own", (Handler,), {"initialize": lambda *_: raise_(LoadError("weights: missing; pack them"))})
    with pytest.raises(LoadError, match=r"^weights: missing; pack them$"):
        HandlerRunner.from_class(cls, tmp_path)


@pytest.mark.parametrize(
    "name", ["../escaped.py", "/tmp/escaped.py", "a/../../escaped.py", "..\\escaped.py", "C:\\x.py"]
)
def test_an_archive_that_reaches_outside_is_refused(name, make_mar, tmp_path, process):
    mar = make_mar(ECHO)
    with zipfile.ZipFile(mar, "a") as archive:
        archive.writestr(name, "print('owned')")
    with pytest.raises(LoadError, match="would lie outside the folder"):
        HandlerRunner.from_mar(mar)


def test_an_archive_with_a_link_is_refused(make_mar, process):
    mar = make_mar(ECHO)
    entry = zipfile.ZipInfo("weights.bin")
    entry.external_attr = 0o120777 << 16
    with zipfile.ZipFile(mar, "a") as archive:
        archive.writestr(entry, "/etc/passwd")
    with pytest.raises(LoadError, match=r"'weights\.bin' is a link"):
        HandlerRunner.from_mar(mar)


def test_archives_that_are_none(make_mar, tmp_path, process):
    broken = make_mar(ECHO, name="cut")
    broken.write_bytes(broken.read_bytes()[:-40])
    with pytest.raises(LoadError, match=r"cut\.mar: not a readable model archive"):
        HandlerRunner.from_mar(broken)
    with pytest.raises(LoadError, match="no such archive"):
        HandlerRunner.from_mar(tmp_path / "absent.mar")
    with zipfile.ZipFile(tmp_path / "empty.mar", "w") as archive:
        archive.writestr("a.txt", "")
    with pytest.raises(LoadError, match=r"empty\.mar: no MAR-INF/MANIFEST\.json in it"):
        HandlerRunner.from_mar(tmp_path / "empty.mar")
    with zipfile.ZipFile(tmp_path / "odd.mar", "w") as archive:
        archive.writestr("MAR-INF/MANIFEST.json", json.dumps({"model": {}}))
    with pytest.raises(LoadError, match=r"odd\.mar: .*is no manifest of a model .KeyError: 'handler'"):
        HandlerRunner.from_mar(tmp_path / "odd.mar")


@pytest.mark.parametrize(
    "text,said", [("- a\n- b\n", "expected keys and values, got list"), ("a: [", "cannot be read")]
)
def test_a_wrong_model_config(text, said, make_mar, tmp_path):
    with pytest.raises(LoadError, match=said):
        HandlerRunner.from_mar(make_mar(ECHO, config=text))
    with pytest.raises(LoadError, match="no such model folder"):
        HandlerRunner.from_class(Handler, tmp_path / "absent")


def test_without_torchserve_the_line_says_what_to_install(make_mar, monkeypatch):
    monkeypatch.setitem(sys.modules, "ts", None)
    with pytest.raises(LoadError, match=r'pip install "tsbatch\[serve\]"'):
        HandlerRunner.from_mar(make_mar(ECHO))
