"""What the runner says a client gets, against what a client of a real TorchServe gets: one archive, the same calls."""

from __future__ import annotations

import time

import pytest
from support import Answer, get, make_archive, post, worker_pids

from tsbatch.emulation.runner import Call, HandlerRunner, WorkerDied

CONFIG = "minWorkers: 1\nmaxWorkers: 1\nbatchSize: 4\nmaxBatchDelay: 1\nresponseTimeout: 5\nstartupTimeout: 100\n"
HANDLER = '''
from ts.utils.util import PredictionException


def circular():
    value = []
    value.append(value)
    return value


def sent(context, index):
    """The headers as far as a client decides them; a field's content type stands among them."""
    known = ("Content-Type", "X-Own", "explain", "describe", "body", "data", "file", "a", "b")
    return sorted((name, value) for name, value in context.get_all_request_header(index).items() if name in known)


class Parity:
    def initialize(self, context):
        self.model_dir = context.system_properties["model_dir"]

    def handle(self, data, context):
        if "whole" in context.get_all_request_header(0):
            return getattr(self, context.get_request_header(0, "whole"))(data)
        return [self.answer(row, context, index) for index, row in enumerate(data)]

    def answer(self, row, context, index):
        wanted = context.get_request_header(index, "wanted")
        if wanted:
            return getattr(self, wanted)(context, index)
        return {"row": repr(sorted(row.items())), "headers": sent(context, index)}

    def status(self, context, index):
        context.set_response_status(422, "Unprocessable Entity", index)
        context.set_response_content_type(index, "application/problem+json")
        return {"why": "because"}

    def status_without_phrase(self, context, index):
        context.set_response_status(429, "", index)
        return "slowly"

    def unknown_status(self, context, index):
        context.set_response_status(799, "Odd", index)
        return b""

    def headers(self, context, index):
        context.set_response_header(index, "X-Latin", "na\\u00efve \\u20ac")
        context.set_response_header(index, "X-Tab", "a\\tb \\x01 c")
        context.set_response_header(index, "Content-Type", "image/png")
        return b"\\x89PNG"

    def nan(self, context, index):
        return [float("nan"), 1.0]

    def falsy(self, context, index):
        return 0

    def number_header(self, context, index):
        context.set_response_header(index, "X-Number", 1)
        return "x"

    def line_break(self, context, index):
        context.set_response_header(index, "X-Break", "a\\r\\nB: c")
        return "x"

    def empty_name(self, context, index):
        context.set_response_header(index, "", "a")
        return "x"

    def space_in_name(self, context, index):
        context.set_response_header(index, "X Y", "a")
        return "x"

    def phrase(self, context, index):
        context.set_response_status(400, "Ung\\u00fcltig", index)
        return "x"

    def phrase_with_break(self, context, index):
        context.set_response_status(400, "Bad\\nRequest", index)
        return "x"

    def surrogate(self, context, index):
        return "\\ud800"

    def circular(self, context, index):
        return circular()

    def too_large(self, context, index):
        return b"x" * 6553501

    def exits(self, context, index):
        raise SystemExit(3)

    def largest(self, context, index):
        return b"x" * 6553500

    def raises(self, data):
        raise ValueError("no <b>'markup'</b> & = here")

    def memory(self, data):
        raise MemoryError

    def own_code(self, data):
        raise PredictionException("no <b>'markup'</b> & = h\\u00ebre", 413)

    def a_tuple(self, data):
        return tuple("x" for _ in data)

    def too_many(self, data):
        return ["x", "y"]

    def no_json(self, data):
        return [{1, 2}]
'''

BOUNDARY = "gL7"
FORM = (
    f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="data"\r\n\r\nplain\r\n'
    f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n'
    f"Content-Type: text/csv\r\n\r\na,b\r\n--{BOUNDARY}--\r\n"
)

CALLS = {
    "json": Call({"a": [1, "ü", None]}),
    "json with charset": Call('{"a": 1}', "application/json; charset=utf-8"),
    "broken json": Call("{broken", "application/json"),
    "json in capitals": Call("{}", "Application/JSON"),
    "text": Call("grüße", "text/plain; charset=utf-8"),
    "text of latin bytes": Call(b"\xfc", "text/plain"),
    "bytes": Call(b"\x00\xff"),
    "no content type": Call("hello", ""),
    "nothing": Call(b"", ""),
    "empty json": Call("", "application/json"),
    "own header": Call("x", headers={"X-Own": "1"}),
    "form": Call("a=1&b=x%20y+z&a=2", "application/x-www-form-urlencoded"),
    "explained by the client": Call("x", headers={"explain": "True"}),
    **{
        name: Call("x", headers={"wanted": name})
        for name in ("status", "status_without_phrase", "unknown_status", "headers", "nan", "falsy", "largest")
    },
    **{
        name: Call("x", headers={"whole": name})
        for name in ("raises", "memory", "own_code", "a_tuple", "too_many", "no_json")
    },
}
DEATHS = (
    "number_header",
    "line_break",
    "empty_name",
    "space_in_name",
    "phrase",
    "phrase_with_break",
    "surrogate",
    "circular",
    "too_large",
    "exits",
)


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    return make_archive(tmp_path_factory.mktemp("parity"), "parity", HANDLER, config=CONFIG)


@pytest.fixture(scope="module")
def server(server_factory, archive):
    server = server_factory(models=[archive])
    yield server
    server.stop()


@pytest.fixture(scope="module")
def runner(archive):
    with HandlerRunner.from_mar(archive) as runner:
        yield runner


def served(server, call: Call, path: str | None = None) -> Answer:
    wire = call.to_wire("")
    body = b"".join(part.value for part in wire.parts) if "urlencoded" not in str(call.content_type) else call.body
    headers = {name: value for name, value in wire.headers.items() if name != "Content-Length"}
    return post(server, "parity", body, headers, path=path)


def assert_same(expected, real: Answer):
    assert (expected.status, expected.phrase, expected.body) == (real.status, real.reason, real.body)
    assert expected.content_type == real.headers.get("content-type", "")
    for name, value in expected.headers.items():
        assert real.headers[name] == value


@pytest.mark.parametrize("name", CALLS)
def test_the_same_answer(name, server, runner):
    assert_same(runner.predict_one(CALLS[name]), served(server, CALLS[name]))


def test_the_same_form(server, runner):
    real = post(server, "parity", FORM, {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"})
    expected = runner.predict_one(Call(fields={"data": "plain", "file": ("a,b", "text/csv")}))
    assert real.body.decode().replace(f"boundary={BOUNDARY}", "boundary=-") == expected.text


def test_the_same_explanation_and_description(server, runner):
    assert_same(runner.explain(["x"])[0], served(server, Call("x"), "/explanations/parity"))
    described = get(server, "/models/parity?customized=true", management=True).json()
    assert described[0]["customizedMetadata"] == runner.describe().json()


@pytest.mark.parametrize("name", DEATHS)
def test_the_same_death(name, server, runner):
    call = Call("x", headers={"wanted": name})
    with pytest.raises(WorkerDied):
        runner.predict_one(call)
    (before,) = worker_pids(server, "parity")
    real = served(server, call)
    assert (real.status, real.json()["message"]) == (500, "Worker died.")
    deadline = time.monotonic() + 60
    while not (after := worker_pids(server, "parity")) or after == [before]:
        assert time.monotonic() < deadline, "the worker was not replaced"
        time.sleep(0.2)
