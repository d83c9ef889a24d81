"""``tsbatch run``: a file through an archive, in this process and as a command."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress

import pytest

from tsbatch.cli.program import main
from tsbatch.cli.run_command import _progress

HANDLER = """
    import json, sys

    class Own:
        def initialize(self, context):
            print("printed while loading")
            self.batches = 0

        def handle(self, data, context):
            print("printed while working")
            self.batches += 1
            return [self.answer(row["body"], context, index) for index, row in enumerate(data)]

        def answer(self, body, context, index):
            if isinstance(body, bytearray):
                context.set_response_status(400, "Bad Request", index)
                context.set_response_content_type(index, "application/json")
                return '{"error": "no JSON"}'
            if body == "kill":
                return "\\ud800"
            if body == "fail":
                raise ValueError("why")
            if body == "interrupt":
                raise KeyboardInterrupt
            if body == "bytes":
                return b"\\xff\\x00"
            if body == "text":
                context.set_response_content_type(index, "text/plain")
                return "12"
            if body == "digits":
                return b'{"v": 0.10000000149011612, "n": 123456789012345678901234567890}'
            return {"got": body, "batch": self.batches}
"""


@pytest.fixture
def mar(make_mar):
    return make_mar(HANDLER, config="batchSize: 3\n")


@pytest.fixture
def run(mar, tmp_path, capfdbinary, monkeypatch):
    """Run the command over ``lines``: its exit code, the answers and what it said."""

    def run(lines, *options, data="data.jsonl"):
        (tmp_path / "data.jsonl").write_bytes(lines)
        monkeypatch.chdir(tmp_path)
        code = main(["run", str(mar), "--data", data, *options])
        out, err = capfdbinary.readouterr()
        return code, out, err.decode()

    return run


def answers(out):
    return [json.loads(line) for line in out.splitlines()]


def test_a_line_in_a_line_out_in_order(run):
    code, out, err = run(b'{"a": 1}\n"x"\n0\n[]\n')
    assert code == 0
    assert answers(out) == [
        {"index": 0, "status": 200, "body": {"got": {"a": 1}, "batch": 1}},
        {"index": 1, "status": 200, "body": {"got": "x", "batch": 1}},
        {"index": 2, "status": 200, "body": {"got": 0, "batch": 1}},
        {"index": 3, "status": 200, "body": {"got": [], "batch": 2}},
    ]
    assert "4 requests in 2 batches, 4 ok, 0 failed;" in err
    assert "requests/s" in err
    assert "printed while" in err


def test_bad_lines_get_what_a_served_request_gets_and_stop_nobody(run):
    code, out, err = run(b'1\r\n{broken\r\n\r\n"last"')
    assert code == 1
    assert [(line["index"], line["status"]) for line in answers(out)] == [(0, 200), (1, 400), (2, 400), (3, 200)]
    assert answers(out)[1]["body"] == {"error": "no JSON"}
    assert "2 ok, failed: 2 x 400" in err
    assert "Traceback" not in err


def test_lines_of_text(run):
    code, out, _ = run("grüße\n{broken\n\n".encode(), "--text")
    assert code == 0
    assert [line["body"]["got"] for line in answers(out)] == ["grüße", "{broken", ""]


def test_bodies_that_are_not_json_and_json_to_the_last_digit(run):
    code, out, _ = run(b'"bytes"\n"text"\n"digits"\n')
    assert code == 0
    assert [line["body"] for line in answers(out)[:2]] == [{"b64": "/wA="}, "12"]
    assert b'"body":{"v": 0.10000000149011612, "n": 123456789012345678901234567890}}' in out


def test_the_batch_size_is_the_one_asked_for(run):
    _, out, err = run(b"1\n" * 5, "--batch-size", "2")
    assert [line["body"]["batch"] for line in answers(out)] == [1, 1, 2, 2, 3]
    assert "5 requests in 3 batches" in err


def test_a_batch_that_fails_and_one_that_ends_the_worker(run):
    code, out, err = run(b'"fail"\n1\n2\n"kill"\n3\n4\n"kill"\n', "--json")
    assert code == 1
    assert [line["status"] for line in answers(out)] == [503, 503, 503, 500, 500, 500, 500]
    assert answers(out)[4]["body"] == {"code": 500, "type": "InternalServerException", "message": "Worker died."}
    assert err.count("the worker would have died: the worker exited with UnicodeEncodeError") == 1
    assert err.count("ValueError: why") == 1
    summary = json.loads(err.splitlines()[-1])
    assert summary["failed"] == {"500": 4, "503": 3}
    assert len(summary["worker_died"]) == 1


def test_into_a_file_with_the_summary_as_json(run, tmp_path):
    code, out, _ = run(b"1\n{broken\n", "-o", "out.jsonl", "--json")
    summary = json.loads(out)
    assert code == 1
    assert len(answers((tmp_path / "out.jsonl").read_bytes())) == 2
    assert summary.pop("seconds") > 0
    assert summary.pop("requests_per_second") > 0
    assert summary == {
        "schema": 1,
        "model": "m",
        "requests": 2,
        "ok": 1,
        "failed": {"400": 1},
        "batches": 1,
        "worker_died": [],
        "stopped": False,
        "output": "out.jsonl",
    }


def test_an_empty_file(run):
    code, out, err = run(b"", "--json")
    assert (code, out) == (0, b"")
    assert json.loads(err.splitlines()[-1])["requests_per_second"] == 0


def test_ctrl_c_keeps_what_is_done(run, tmp_path):
    code, _, err = run(b'1\n2\n3\n"interrupt"\n4\n', "-o", "out.jsonl")
    assert code == 130
    assert [line["index"] for line in answers((tmp_path / "out.jsonl").read_bytes())] == [0, 1, 2]
    assert "stopped: 3 requests in 1 batches" in err


@pytest.mark.parametrize(
    "arguments,said",
    [
        (["absent.mar", "--data", "data.jsonl"], "absent.mar: no such archive"),
        (["m.mar", "--data", "absent.jsonl"], "absent.jsonl: no such file"),
        (["m.mar", "--data", "data.jsonl", "-o", "data.jsonl"], "the responses would overwrite the requests"),
        (["m.mar", "--data", "data.jsonl", "-o", "absent/out.jsonl"], "no such folder"),
        (["m.mar", "--data", "data.jsonl", "--batch-size", "0"], "batch-size"),
        (["m.mar"], "--data"),
    ],
)
def test_wrong_usage_is_one_line_and_2(arguments, said, mar, tmp_path, monkeypatch, capsys):
    (tmp_path / "data.jsonl").write_text("1\n")
    monkeypatch.chdir(tmp_path)
    assert main(["run", *arguments]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_a_model_that_does_not_load_is_one_line_and_3(make_mar, tmp_path, capsys):
    mar = make_mar("import not_installed_anywhere")
    (tmp_path / "data.jsonl").write_text("1\n")
    (tmp_path / "out.jsonl").write_text("of last time")
    code = main(["run", str(mar), "--data", str(tmp_path / "data.jsonl"), "-o", str(tmp_path / "out.jsonl")])
    assert code == 3
    assert "m.mar: ModuleNotFoundError: No module named 'not_installed_anywhere'\n" in capsys.readouterr().err
    assert (tmp_path / "out.jsonl").read_text() == "of last time"


def test_answers_on_a_terminal_move_without_a_bar(capsys):
    class Terminal(io.BytesIO):
        def isatty(self):
            return True

    with _progress("absent.jsonl", Terminal()) as step:
        step.advance(3)
    assert step.done == 3
    assert capsys.readouterr().err == ""


# ---- as a command of its own -----------------------------------------------------------------------------------


def command(mar, *options):
    return [sys.executable, "-m", "tsbatch", "run", str(mar), "--data", "-", *options]


def test_stdin_to_a_pipe_that_closes(mar):
    """One answer is read, then the reader goes, as ``| head -1`` does; and nothing but answers is on stdout."""
    process = subprocess.Popen(
        command(mar), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0
    )
    try:
        process.stdin.write(b"1\n2\n3\n")
        assert json.loads(process.stdout.readline())["index"] == 0
        process.stdout.close()
        with suppress(BrokenPipeError):
            process.stdin.write(b"1\n" * 1_000_000)
        error = process.stderr.read().decode()
        assert process.wait(30) == 0
        assert "Traceback" not in error
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stderr.close()


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGINT for one process")
def test_ctrl_c_from_outside(mar, tmp_path):
    out = tmp_path / "out.jsonl"
    process = subprocess.Popen(
        command(mar, "-o", str(out), "--json"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
    )
    try:
        process.stdin.write(b"1\n2\n3\n4\n")
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and not (out.exists() and out.read_bytes().count(b"\n") == 3):
            time.sleep(0.05)
        assert out.read_bytes().count(b"\n") == 3, "a full batch is in the file at once"
        process.send_signal(signal.SIGINT)
        summary = json.loads(process.stdout.read())
        assert process.wait(30) == 130
        assert (summary["requests"], summary["stopped"]) == (3, True)
        assert [line["index"] for line in answers(out.read_bytes())] == [0, 1, 2]
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()
