from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from tsbatch.check import page
from tsbatch.check.advice import workers
from tsbatch.check.findings import Failure, Phase, Report
from tsbatch.system.process_memory import Memory

MB = 10**6
ABOUT = {"handler": "H", "batch_size": 4, "workers": 2, "startup_timeout": 120, "response_timeout": 120}


def report(**more):
    return Report(
        archive=Path("m.mar"),
        name="m",
        version="1.0",
        about=dict(ABOUT),
        phases=[
            Phase("unpack", 5.0),
            Phase("python", 2.0, 90 * MB, 90 * MB),
            Phase("weights", 3.0, 100 * MB, 200 * MB),
        ],
        **more,
    )


def shown(report, capsys):
    page.show(report)
    return capsys.readouterr().out.splitlines()


def test_the_verdict_is_the_first_line(capsys):
    fine = report()
    fine.conclude(cores=2)
    assert shown(fine, capsys)[0] == "m 1.0 loads in 3.0 s, peak 200 MB; no findings (H, batches of up to 4)"


def test_a_failure_is_the_first_line_and_what_to_do_the_second(capsys):
    failed = report(
        failure=Failure("KeyError: 'x' (handler.py:3)", "put x there", "weights", ["Traceback", "KeyError"])
    )
    lines = shown(failed, capsys)
    assert lines[:2] == ["KeyError: 'x' (handler.py:3)", "remedy: put x there"]
    assert "failed in the phase weights" in lines[2]
    assert any("weights" in line for line in lines[3:])
    unknown = report(failure=Failure("KeyError", None, ""))
    assert not any(line.startswith("remedy") for line in shown(unknown, capsys))


@pytest.mark.parametrize(
    "more, finding",
    [
        (
            {"samples": [{"name": "line 1", "status": 400, "reason": "no text", "seconds": 1}]},
            "line 1 was answered with",
        ),
        ({"invariance": {"holds": False, "compared": 3, "why": "request 1 differs"}}, "not batch invariant: request 1"),
        ({"isolation": [{"broken": "x", "holds": False, "status": 503, "why": "3 of 3"}]}, "no isolation: among valid"),
        (
            {"service": [{"batch": 4, "seconds": 1, "slowest": 200.0, "per_item": 1, "repeats": 3}]},
            "responseTimeout is 120, but it took 200.0 s here: set it to at least 2000",
        ),
    ],
)
def test_findings(capsys, more, finding):
    found = report(**more)
    found.conclude(cores=2)
    assert [finding in one for one in found.findings] == [True]
    lines = shown(found, capsys)
    assert "1 finding " in lines[0]
    assert finding in lines[1]


def test_a_load_over_its_own_time_out_is_a_finding():
    slow = report()
    slow.phases.append(Phase("warm-up", 130.0))
    slow.conclude(cores=2)
    assert slow.findings == ["startupTimeout is 120, but it took 133.0 s here: set it to at least 200"]


def test_good_answers_are_no_finding(capsys):
    fine = report(
        samples=[{"name": "a", "status": 200, "reason": None, "seconds": 0.1}],
        invariance={"holds": None, "compared": 1, "why": "one alone"},
        isolation=[{"broken": "x", "holds": True, "status": 400, "why": None}],
        service=[{"batch": 1, "seconds": 0.1, "slowest": 0.2, "per_item": 0.1, "repeats": 3}],
        memory=[Memory(300 * MB, 100 * MB, 500 * MB), Memory(20 * MB, 380 * MB, 500 * MB)],
        gpu=[{"free": 5 * MB, "total": 9 * MB, "reserved": MB}],
        unable=["isolation: why not"],
        notes=["a note"],
    )
    fine.conclude(cores=2)
    fine.workers = workers(*fine.memory, available=10**10, cores=2)
    text = "\n".join(shown(fine, capsys))
    assert fine.findings == []
    for words in (
        "second worker: 20 MB private, 380 MB shared",
        "GPU after the worker: 5 of 9 MB free",
        "startupTimeout: 30",
        "responseTimeout: 30",
        "workers: up to 2",
        "batch invariance: not tested: one alone",
        "isolation, x: holds (it got 400)",
        "samples: 1 of 1 answered",
        "not tested: isolation: why not",
        "note: a note",
    ):
        assert words in text


def test_only_so_many_failed_samples_are_shown(capsys):
    many = report(samples=[{"name": f"line {n}", "status": 400, "reason": "no", "seconds": 0} for n in range(13)])
    assert "  and 3 more; --json shows all" in shown(many, capsys)


def test_as_json_everything_is_there():
    whole = report(failure=Failure("x", None, "import"))
    values = orjson.loads(orjson.dumps(whole.as_json()))
    assert (values["schema"], values["loads"], values["failure"]["cause"]) == (1, False, "x")
    assert values["load_seconds"] == 3.0
    assert values["peak_bytes"] == 200 * MB
