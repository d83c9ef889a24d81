from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import parse_qsl, urlsplit

import pytest

from tsbatch.errors import ServerError, UsageError
from tsbatch.operations import registration
from tsbatch.serving import management_client as module
from tsbatch.serving.management_client import Management, ModelNotFound, ModelVersion, models_of, path_of, summary
from tsbatch.serving.tokens import FixedToken
from tsbatch.serving.worker_log import Reason, WorkerLog

TOKEN_ERROR = (400, {"code": 400, "type": "InvalidKeyException", "message": "Token Authorization failed."})


def described(name="m", version="1.0", *, ready=1, wanted=1, **settings):
    workers = [
        {"id": str(9000 + number), "status": "READY" if number < ready else "UNLOADING"} for number in range(wanted)
    ]
    values = {"batchSize": 4, "maxBatchDelay": 50, "responseTimeout": 60, "startupTimeout": 60, **settings}
    return {"modelName": name, "modelVersion": version, "minWorkers": wanted, "workers": workers, **values}


class Fake:
    """A server that answers with what a test puts in, and remembers what it was asked."""

    def __init__(self):
        self.answers = {}
        self.calls = []

    def answer(self, method, path, *answers):
        self.answers[method, path] = list(answers)

    def take(self, method, target, headers, body):
        split = urlsplit(target)
        self.calls.append((method, split.path, dict(parse_qsl(split.query)), headers.get("Authorization"), body))
        left = self.answers.get((method, split.path), [(404, {"message": f"Model not found: {split.path}"})])
        return left.pop(0) if len(left) > 1 else left[0]


@pytest.fixture
def fake():
    it = Fake()

    class Answer(BaseHTTPRequestHandler):
        def handle_one(self):
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, answer = it.take(self.command, self.path, self.headers, body)
            data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_PUT = do_DELETE = handle_one  # noqa: N815 - named by http.server

        def log_message(self, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    it.address = f"http://127.0.0.1:{server.server_port}"
    yield it
    server.shutdown()
    server.server_close()


@pytest.fixture
def api(fake, monkeypatch):
    monkeypatch.setattr(module, "SECONDS_BETWEEN_LOOKS", 0.01)
    monkeypatch.setattr(module, "SECONDS_BEFORE_RETRY", 0.01)
    with Management(fake.address, FixedToken("secret")) as client:
        yield client


def test_registering_uses_query_parameters_only(fake, api):
    fake.answer("POST", "/models", (200, {"status": "ok"}))
    api.register("a b&c.mar", batch_size=4, initial_workers=0)
    asked = {"url": "a b&c.mar", "batch_size": "4", "initial_workers": "0", "synchronous": "true"}
    assert fake.calls == [("POST", "/models", asked, "Bearer secret", b"")]


def test_scaling_sets_both_ends(fake, api):
    fake.answer("PUT", "/models/m/2", (202, {"status": "…"}))
    api.scale("m", 3, "2", synchronous=False)
    assert fake.calls[0][2] == {"min_worker": "3", "max_worker": "3", "synchronous": "false"}


def test_a_model_may_keep_more_workers_than_it_has_to_have(fake, api):
    fake.answer("PUT", "/models/m", (202, {"status": "…"}))
    api.scale("m", 2, max_workers=4)
    assert (fake.calls[0][2]["min_worker"], fake.calls[0][2]["max_worker"]) == ("2", "4")


def test_names_with_any_characters():
    assert path_of("a/b ?", "1.0") == "/models/a%2Fb%20%3F/1.0"


def test_models_are_read_page_by_page(fake, api):
    pages = [
        (200, {"nextPageToken": "100", "models": [{"modelName": "a", "modelUrl": "a.mar"}]}),
        (200, {"models": [{"modelName": "b", "modelUrl": "b.mar"}]}),
    ]
    fake.answer("GET", "/models", *pages)
    assert api.models() == {"a": "a.mar", "b": "b.mar"}
    assert [call[2]["next_page_token"] for call in fake.calls] == ["0", "100"]


def test_a_token_renewed_in_between_is_tried_again(fake, api):
    fake.answer("GET", "/models/m", TOKEN_ERROR, (200, [described()]))
    assert api.describe("m")["modelName"] == "m"


@pytest.mark.parametrize(
    "answer, error, message",
    [
        (TOKEN_ERROR, UsageError, "rejects the management token; set TSBATCH_TOKEN"),
        ((404, {"message": "Model not found: m"}), ModelNotFound, "Model not found: m; the server has: a"),
        ((405, {"message": "not allowed"}), ServerError, "started without enable_model_api=true"),
        ((409, {"message": "Model version 1.0 is already\nregistered"}), UsageError, "1.0 is already registered$"),
        ((500, {"message": "Failed to start workers"}), ServerError, "Failed to start workers"),
        ((500, b"<html>"), ServerError, "<html>"),
        ((503, b""), ServerError, "the server answered with status 503"),
    ],
)
def test_errors_become_one_line(fake, api, answer, error, message):
    fake.answer("DELETE", "/models/m", answer)
    fake.answer("GET", "/models", (200, {"models": [{"modelName": "a", "modelUrl": ""}]}))
    with pytest.raises(error, match=message) as caught:
        api.unregister("m")
    assert "\n" not in str(caught.value)


def test_an_address_that_is_not_torchserves(fake, api):
    with pytest.raises(UsageError, match="is not TorchServe's management address: it has no /models"):
        api.models()


def test_a_name_that_torchserve_takes_for_its_token_api(fake, api):
    fake.answer("GET", "/models/tokenizer", TOKEN_ERROR)
    with pytest.raises(UsageError, match="a name that does not start with 'token'"):
        api.describe("tokenizer")


def test_such_a_model_is_not_registered_where_there_are_tokens(fake, api):
    instance = SimpleNamespace(token_lifetime=3600, model_store=Path("none"))
    with pytest.raises(UsageError, match="choose another --model-name"):
        registration.register(api, "http://host/m.mar", instance=instance, model_name="tokenizer")
    assert fake.calls == []


def test_a_server_that_is_not_there():
    with Management("http://127.0.0.1:9") as api, pytest.raises(ServerError, match=r"cannot reach the server"):
        api.models()


def test_waiting_looks_at_the_workers(fake, api):
    told = []
    looks = [(200, [described(ready=ready, wanted=2)]) for ready in (0, 1, 2)]
    fake.answer("GET", "/models/m/1.0", *looks)
    assert len(api.wait_ready("m", "1.0", on_progress=told.append)["workers"]) == 2
    assert told == [f"loading m 1.0: {ready} of 2 workers READY" for ready in (0, 1)] + ["m 1.0: 2 workers READY"]


def test_waiting_ends(fake, api):
    fake.answer("GET", "/models/m", (200, [described(ready=0)]))
    with pytest.raises(ServerError, match=r"m 1.0 has only 0 of 1 workers READY after 0 s"):
        api.wait_ready("m", timeout=0.05)


@pytest.mark.parametrize("ready, wanted, status", [(0, 0, "NO WORKERS"), (1, 2, "LOADING"), (2, 2, "READY")])
def test_a_summary_in_our_words(ready, wanted, status):
    told = summary(described(ready=ready, wanted=wanted))
    assert (told["workers"], told["wanted_workers"], told["status"], told["batch_size"]) == (ready, wanted, status, 4)


def test_every_version_of_every_model(fake, api):
    fake.answer("GET", "/models", (200, {"models": [{"modelName": "m", "modelUrl": "m.mar"}]}))
    fake.answer("GET", "/models/m/all", (200, [described(), described(version="2.0")]))
    assert [model["version"] for model in models_of(api)] == ["1.0", "2.0"]


class TestRegistration:
    def test_a_model_that_does_not_load_is_not_left_behind(self, fake, api, monkeypatch):
        nothing, one = (200, {"models": []}), (200, {"models": [{"modelName": "m", "modelUrl": "m.mar"}]})
        fake.answer("GET", "/models", nothing, one)
        fake.answer("GET", "/models/m/all", (200, [described(ready=0)]))
        fake.answer("GET", "/models/m/1.0", (200, [described(ready=0, startupTimeout=-130)]))
        fake.answer("POST", "/models", (202, {}))
        fake.answer("DELETE", "/models/m/1.0", (200, {}))
        with pytest.raises(ServerError, match=r"0 of 1 workers"):
            registration.register(api, "http://host/m.mar")
        assert fake.calls[-1][:2] == ("DELETE", "/models/m/1.0")

    @pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
    def test_what_the_server_registers_after_ctrl_c_is_not_left_behind(self, fake, api, monkeypatch, error):
        """It goes on unpacking although nobody waits for its answer any more."""

        def interrupted(*_arguments, **_options):
            raise error

        monkeypatch.setattr(api, "register", interrupted)
        monkeypatch.setattr(registration, "SECONDS_BETWEEN_LOOKS", 0.01)
        nothing, two = [], [{"modelName": name, "modelUrl": f"{name}.mar"} for name in ("m", "other")]
        fake.answer("GET", "/models", *((200, {"models": models}) for models in (nothing, nothing, nothing, two)))
        for name in ("m", "other"):
            fake.answer("GET", f"/models/{name}/all", (200, [described(name)]))
        fake.answer("DELETE", "/models/m/1.0", (200, {}))
        told = []
        with pytest.raises(error):
            registration.register(api, "http://host/m.mar", model_name="m", on_progress=told.append)
        assert [call[1] for call in fake.calls if call[0] == "DELETE"] == ["/models/m/1.0"]
        assert told[-1] == "interrupted; checking whether the server still registers m"

    def test_ctrl_c_while_the_new_version_is_looked_for_leaves_nothing_either(self, fake, api, monkeypatch):
        real, looks = registration.versions_of, []

        def versions_of(management):
            looks.append(1)
            if len(looks) == 2:
                raise KeyboardInterrupt
            if len(looks) == 3:
                raise ModelNotFound("another model, which goes meanwhile")
            return real(management)

        monkeypatch.setattr(registration, "versions_of", versions_of)
        monkeypatch.setattr(registration, "SECONDS_BETWEEN_LOOKS", 0)
        nothing, one = (200, {"models": []}), (200, {"models": [{"modelName": "m", "modelUrl": "m.mar"}]})
        fake.answer("GET", "/models", nothing, one)
        fake.answer("GET", "/models/m/all", (200, [described()]))
        fake.answer("POST", "/models", (202, {}))
        fake.answer("DELETE", "/models/m/1.0", (200, {}))
        with pytest.raises(KeyboardInterrupt):
            registration.register(api, "http://host/m.mar", model_name="m")
        assert [call[1] for call in fake.calls if call[0] == "DELETE"] == ["/models/m/1.0"]

    def test_what_never_appears_is_not_waited_for_for_ever(self, fake, api, monkeypatch, capsys):
        def interrupted(*_arguments, **_options):
            raise KeyboardInterrupt

        monkeypatch.setattr(api, "register", interrupted)
        monkeypatch.setattr(registration, "SECONDS_TO_APPEAR", 0.05)
        fake.answer("GET", "/models", (200, {"models": []}))
        with pytest.raises(KeyboardInterrupt):
            registration.register(api, "http://host/m.mar", model_name="m")
        assert "may still register this version of m; run tsbatch models to check" in capsys.readouterr().err
        looked = len(fake.calls)
        with pytest.raises(KeyboardInterrupt):
            registration.register(api, "http://host/m.mar")
        assert len(fake.calls) == looked + 1, "whose name nobody knows is not looked for"

    def test_differences_between_asked_and_effective(self):
        asked = {"batch_size": 4, "response_timeout": 55, "startup_timeout": 99}
        model = described(responseTimeout=120)
        del model["startupTimeout"]  # older servers do not tell it
        found = registration.differences(asked, model)
        assert [(one.setting, one.asked, one.effective) for one in found] == [("response_timeout", 55, 120)]
        assert str(found[0]).startswith("response_timeout is 120, not 55 as requested: the archive's model-config.yaml")

    def test_a_failed_scale_goes_back(self, fake, api):
        looks = [(200, [described()]), (200, [described(ready=1, wanted=2, startupTimeout=-130)])]
        fake.answer("GET", "/models/m", *looks)
        fake.answer("PUT", "/models/m", (202, {}))
        with pytest.raises(ServerError, match=r"1 of 2 workers"):
            registration.scale(api, "m", 2)
        assert [call[2]["min_worker"] for call in fake.calls if call[0] == "PUT"] == ["2", "1"]


def test_the_reason_is_waited_for_when_the_last_words_are_lost(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "SECONDS_BEFORE_RETRY", 0)
    reasons = [Reason("without output", certain=False), Reason("ValueError: x")]
    log = WorkerLog(tmp_path)
    monkeypatch.setattr(log, "reason", lambda *_: reasons.pop(0) if len(reasons) > 1 else reasons[0])
    assert module.cause_of_death(log, ModelVersion("m", "1.0")) == Reason("ValueError: x")


RACES = [
    (500, {"code": 500, "type": "ConcurrentModificationException"}),
    (500, {"type": "NullPointerException", "message": 'Cannot invoke "Job.isControlCmd()" because "job" is null'}),
]
"""Seen on a real server: a worker was killed while another call walked through the workers; one was just ended."""


@pytest.fixture(params=RACES, ids=["without a message", "with one"])
def race(request):
    return request.param


def test_a_race_of_torchserve_is_tried_again(fake, api, race):
    fake.answer("PUT", "/models/m", race, race, (200, {}))
    api.scale("m", 2)
    assert [call[2]["min_worker"] for call in fake.calls] == ["2", "2", "2"]
    fake.answer("GET", "/models/m", race, (200, [described()]))
    assert api.describe("m")["modelName"] == "m"
    fake.answer("PUT", "/models/m/1.0/set-default", race, (200, {}))
    api.set_default("m", "1.0")


@pytest.mark.parametrize("ended", [lambda api: api.unregister("m"), lambda api: api.scale("m", 0)])
def test_the_workers_but_one_are_ended_first(fake, api, ended):
    """TorchServe drops the list of workers before iterating over it, so an error leaves the rest running."""
    fake.answer("GET", "/models/m", (200, [described(wanted=3)]))
    fake.answer("GET", "/models/m/all", (200, [described(wanted=3)]))
    for method in ("PUT", "DELETE"):
        fake.answer(method, "/models/m", (200, {}))
    ended(api)
    calls = [call for call in fake.calls if call[0] != "GET"]
    assert calls[0][0] == "PUT"
    assert (calls[0][2]["min_worker"], calls[0][2]["max_worker"]) == ("1", "1")
    assert len(calls) == 2


def test_a_version_that_torchserve_refuses_to_drop_keeps_its_workers(fake, api):
    fake.answer("GET", "/models/m", (200, [described(wanted=3)]))
    fake.answer("GET", "/models/m/1.0", (200, [described(wanted=3)]))
    fake.answer("GET", "/models/m/all", (200, [described(wanted=3), described(version="2.0")]))
    for path in ("/models/m", "/models/m/1.0"):
        fake.answer("DELETE", path, (403, {"message": "Cannot remove default version for model m"}))
    for version in (None, "1.0"):
        with pytest.raises(UsageError, match="Cannot remove default version"):
            api.unregister("m", version)
    assert "PUT" not in {call[0] for call in fake.calls}


def test_a_race_while_unregistering_is_no_error_when_the_model_is_gone(fake, api, race):
    fake.answer("DELETE", "/models/m", race, (404, {"message": "Model not found: m"}))
    api.unregister("m")
    assert [call[0] for call in fake.calls].count("DELETE") == 2


def test_a_model_that_goes_while_it_is_scaled_is_told(fake, api, race):
    fake.answer("PUT", "/models/m", race, (404, {"message": "Model not found: m"}))
    fake.answer("GET", "/models", (200, {"models": []}))
    with pytest.raises(ModelNotFound):
        api.scale("m", 2)


def test_registering_is_never_tried_again(fake, api, race):
    fake.answer("POST", "/models", race)
    with pytest.raises(ServerError) as caught:
        api.register("m.mar")
    assert len(fake.calls) == 1
    assert "again" not in str(caught.value), "a version that is registered half would be refused"


def test_repeated_races_are_reported(fake, api):
    fake.answer("PUT", "/models/m", RACES[0])
    with pytest.raises(ServerError, match=r"failed while .* \(ConcurrentModificationException\); try again"):
        api.scale("m", 2)
    assert len(fake.calls) == module.TRIES


@pytest.mark.parametrize("answer", [b"busy", {"message": "busy"}, ["busy"]])
def test_an_answer_of_any_shape_is_no_race(fake, api, answer):
    fake.answer("PUT", "/models/m", (500, answer))
    with pytest.raises(ServerError, match="busy"):
        api.scale("m", 2)
    assert len(fake.calls) == 1


def test_any_other_failure_is_told(fake, api):
    fake.answer("PUT", "/models/m", (500, {"message": "out of memory"}))
    with pytest.raises(ServerError, match="out of memory"):
        api.scale("m", 2)
    assert len(fake.calls) == 1
