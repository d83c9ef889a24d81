"""The verbs ``bench`` and ``compare``, against a small server in a thread."""

from __future__ import annotations

import http.server
import json
import signal
import subprocess
import sys
import threading

import psutil
import pytest

from tests.unit.bench.pairs import pair
from tsbatch.bench.result_file import BenchResult
from tsbatch.cli.bench_commands import make_plan
from tsbatch.cli.program import main
from tsbatch.errors import UsageError

OPTIONS = {
    "concurrency": None,
    "rate": None,
    "arrivals": None,
    "trace": None,
    "steps": None,
    "duration": None,
    "requests": None,
    "warm_up": None,
    "repeat": 1,
    "limit": None,
    "timeout": 30.0,
    "connections": 1000,
    "header": [],
    "seed": 0,
}


def plan(**options):
    return make_plan(**{**OPTIONS, **options})


def test_a_closed_loop_is_what_there_is_without_options():
    made = plan()
    assert (made.clients, made.rates, made.seconds, made.requests, made.warm_up) == ([8], [], 10, None, 5)


def test_every_way_to_say_a_load(tmp_path):
    trace = tmp_path / "times"
    trace.write_text("0\n1\n")
    assert plan(concurrency=3, requests=7).clients == [3]
    assert plan(concurrency=3, requests=7).seconds is None
    assert plan(rate=2.5).rates == [2.5]
    assert plan(rate=2.5).arrivals == "poisson"
    assert plan(rate=2.5).clients == []
    assert plan(steps="1,2,4").clients == [1, 2, 4]
    ramp = plan(steps="1.5,2", arrivals="uniform")
    assert (ramp.clients, ramp.rates, ramp.arrivals) == ([], [1.5, 2], "uniform")
    traced = plan(trace=trace)
    assert (traced.clients, traced.rates, traced.seconds, traced.warm_up) == ([], [], None, 0)
    assert list(traced.trace) == [0, 1]
    assert plan(trace=trace, duration=5.0).seconds == 5
    assert plan(header=["A: b: c"]).headers == {"A": "b: c"}


@pytest.mark.parametrize(
    "options, message",
    [
        ({"concurrency": 1, "rate": 1.0}, "--concurrency and --rate are different loads"),
        ({"steps": "1", "rate": 1.0}, "--rate and --steps are different loads"),
        ({"arrivals": "uniform"}, "--arrivals needs"),
        ({"duration": 1.0, "requests": 1}, "--duration and --requests exclude each other"),
        ({"rate": -1.0}, "--rate is -1; expected a positive number"),
        ({"duration": 0.0}, "--duration is 0"),
        ({"limit": float("inf")}, "--limit is inf"),
        ({"timeout": float("nan")}, "--timeout is nan"),
        ({"warm_up": float("inf")}, "--warm-up is inf; expected a number"),
        ({"steps": "1,,2"}, "--steps is '1,,2'; expected positive numbers"),
        ({"steps": "0"}, "--steps is '0'"),
        ({"steps": "1.5"}, "must be whole"),
        ({"header": ["x"]}, "expected 'Name: value'"),
        ({"header": ["x: a\r\nb: c"]}, "expected 'Name: value'"),
    ],
)
def test_contradictions_and_nonsense(options, message):
    with pytest.raises(UsageError, match=message):
        plan(**options)


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers good requests, and those that say so with 503."""

    protocol_version = "HTTP/1.1"
    # Head and body leave apart, and the second would wait for the client's delayed acknowledgement.
    disable_nagle_algorithm = True

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        status = 503 if b"bad" in body else 200
        answer = b'{"type": "Busy", "message": "full"}' if status == 503 else b"{}"
        self.send_response(status)
        self.send_header("Content-Length", str(len(answer)))
        self.send_header("Server-Timing", 'queue;dur=1, assembly;dur=2, handler;dur=3, batch;desc="2/4"')
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *words):
        """Silence."""


@pytest.fixture(scope="module")
def address():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/predictions/m"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def data(tmp_path):
    path = tmp_path / "data.jsonl"
    path.write_text('{"inputs": ["a", "b"]}\n')
    return path


def test_figures_for_people(address, data, capsys):
    words = ["--data", str(data), "--concurrency", "2", "--duration", "0.8", "--warm-up", "0", "--limit", "1000"]
    assert main(["bench", address, *words]) == 0
    told = capsys.readouterr()
    assert "m: closed loop, 2 clients" in told.out
    for text in (
        "requests/s",
        "items/s",
        "goodput/s (<= 1000 ms: 100.00%)",
        "p99 ms",
        "assembly",
        "batches: 2.00",
        "2 connections opened",
    ):
        assert text in told.out
    assert "2 clients: done in" in told.err


def test_json_holds_every_request_and_so_does_the_file(address, data, tmp_path, capsys):
    file = tmp_path / "a.json"
    words = ["--data", str(data), "--requests", "50", "--warm-up", "0", "--output", str(file), "--json"]
    assert main(["bench", address, *words]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["schema"], told["kind"], told["load"]["loop"]) == (1, "bench", "closed")
    assert len(told["runs"][0]["samples"]["latency"]) == 50
    assert told["summary"][0]["batch"]["sizes"] == [{"size": 2, "requests": 50, "batches": 25.0}]
    assert BenchResult.load(file).to_json()["runs"][0]["samples"] == told["runs"][0]["samples"]


def test_a_page_to_pass_on(address, data, tmp_path, capsys):
    page = tmp_path / "report.html"
    words = ["bench", address, "--data", str(data), "--requests", "50", "--warm-up", "0", "--html"]
    assert main([*words, str(page)]) == 0
    text = page.read_text(encoding="utf-8")
    assert "Under 8 clients, m answered" in text
    assert "Latency by part, as a table" in text
    assert main([*words, str(tmp_path / "no" / "r.html")]) == 2
    assert "there is no such folder" in capsys.readouterr().err.splitlines()[-1]


def test_runs_are_added_to_a_file(address, data, tmp_path, capsys):
    file = tmp_path / "a.json"
    words = ["bench", address, "--data", str(data), "--requests", "20", "--warm-up", "0", "-o", str(file), "--append"]
    assert main(words) == 0
    assert main([*words, "--repeat", "2"]) == 0
    result = BenchResult.load(file)
    assert (len(result.runs), result.plan["repeat"], result.summary[0]["runs"]) == (3, 3, 3)
    assert main([*words, "--concurrency", "2"]) == 2
    assert "--append: the load was" in capsys.readouterr().err
    assert len(BenchResult.load(file).runs) == 3


def test_a_ramp_is_a_line_a_step(address, data, capsys):
    assert main(["bench", address, "--data", str(data), "--steps", "1,2", "--requests", "20", "--warm-up", "0"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:4]] == ["step", "1", "2"]


def test_failures_are_a_finding(address, tmp_path, capsys):
    path = tmp_path / "data.txt"
    path.write_text("good\nbad\n")
    assert main(["bench", address, "--data", str(path), "--requests", "40", "--warm-up", "0"]) == 1
    out = capsys.readouterr().out
    assert "503" in out
    assert "Busy: full" in out


@pytest.mark.parametrize(
    "words, message",
    [
        (["m"], "m needs data to send: give --data FILE"),
        (["m", "--data", "none.jsonl"], "none.jsonl: No such file"),
        (["m", "--data", __file__], "no server named 'default' is running"),
        (["m", "--data", __file__, "--server", "http://x:8081"], "give the whole URL instead of m"),
        (["http://x:99999/", "--data", __file__], "is not an address"),
        (["m", "--data", __file__, "--append"], "--append needs --output FILE"),
        (["m", "--data", __file__, "--output", "nowhere/a.json"], "--output nowhere/a.json: there is no such folder"),
        (["m", "--data", __file__, "--output", "/"], "--output /: is a folder"),
        (["m", "--data", __file__, "--output", __file__, "--append"], "is not JSON"),
        (["m", "--data", __file__, "--trace", "none"], "none: No such file"),
        (["m", "--data", __file__, "--requests", "0"], "--requests"),
    ],
)
def test_wrong_usage_is_one_line(words, message, capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("TSBATCH_STATE_DIR", str(tmp_path))
    assert main(["bench", *words]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_a_server_that_is_not_there(data, capsys):
    assert main(["bench", "http://127.0.0.1:9/predictions/m", "--data", str(data)]) == 3
    assert capsys.readouterr().err == "tsbatch: no answer from 127.0.0.1:9: connection refused\n"


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, getattr(signal, "SIGKILL", signal.SIGTERM)])
def test_a_load_ends_with_whoever_asked_for_it(address, data, how):
    words = ["bench", address, "--data", str(data), "--duration", "60", "--concurrency", "1"]
    with subprocess.Popen([sys.executable, "-m", "tsbatch", *words], stderr=subprocess.PIPE, text=True) as child:
        for line in child.stderr:
            if "requests/s" in line:
                break
        generators = psutil.Process(child.pid).children()
        child.send_signal(how)
        assert child.wait(10) == (130 if how != signal.SIGKILL else -signal.SIGKILL)
        assert "Traceback" not in child.stderr.read()
    assert len(generators) >= 1
    assert psutil.wait_procs(generators, timeout=5)[1] == []


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Two load tests of the same thing, one of a slower one, and a single run."""
    import numpy as np

    folder = tmp_path_factory.mktemp("results")
    random = np.random.default_rng(1)
    a, b = pair(random, 8)
    _, slow = pair(random, 8, 1.5)
    single, _ = pair(random, 1)
    for name, result in {"a": a, "b": b, "slow": slow, "single": single}.items():
        result.save(folder / f"{name}.json")
    return folder


@pytest.mark.parametrize(
    "one, other, code, text",
    [
        ("a", "b", 0, "B is within the noise of A (8 and 8 runs)"),
        ("a", "slow", 1, "B is worse than A (8 and 8 runs): requests/s -"),
        ("slow", "a", 0, "B is better than A (8 and 8 runs): requests/s +"),
        ("a", "single", 2, "cannot tell: A has 8 runs and B 1,"),
    ],
)
def test_compare_says_so_and_exits_so(files, capsys, one, other, code, text):
    words = ["compare", str(files / f"{one}.json"), str(files / f"{other}.json")]
    assert main(words) == code
    assert capsys.readouterr().out.startswith(text)
    assert main([*words, "--json"]) == code
    assert json.loads(capsys.readouterr().out)["kind"] == "comparison"


def test_compare_wants_results(files, tmp_path, capsys):
    other = tmp_path / "x.json"
    other.write_text("{}")
    assert main(["compare", str(files / "a.json"), str(other)]) == 2
    assert "is not a load test result" in capsys.readouterr().err
