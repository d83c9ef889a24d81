"""The file of a load test."""

from __future__ import annotations

import json
import math

import pytest

from tsbatch.bench.request_table import Samples
from tsbatch.bench.result_file import BenchResult, Run
from tsbatch.errors import UsageError


def make_run(step, sent):
    samples = Samples(sent=sent, latency=[10.0] * len(sent), status=[200] * len(sent), queue=[math.nan] * len(sent))
    return Run(
        started="2026-01-02T03:04:05+00:00",
        step=step,
        seconds=2.0,
        answered=len(sent),
        answered_items=len(sent),
        samples=samples,
        errors=[{"status": 503, "reason": "busy", "count": 1}],
    )


@pytest.fixture
def result():
    return BenchResult(
        target={"address": "http://127.0.0.1:8080/predictions/m", "model": "m"},
        plan={"loop": "closed", "steps": [1, 2]},
        environment={"cores": 2},
        runs=[make_run(1, [1.0, 2.0]), make_run(2, [3.0]), make_run(1, [4.0])],
    )


def test_what_is_saved_is_read_again(result, tmp_path):
    path = tmp_path / "a.json"
    result.save(path)
    again = BenchResult.load(path)
    assert again.plan == result.plan
    assert again.samples.sent.tolist() == [1, 2, 3, 4]
    assert again.runs[0].errors == [{"status": 503, "reason": "busy", "count": 1}]
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]
    file = json.loads(path.read_text())
    assert (file["schema"], file["kind"], file["load"]["loop"]) == (1, "bench", "closed")
    assert "queue" not in file["runs"][0]["samples"], "nothing is known of it"


def test_repeats_belong_to_their_step(result):
    assert {step: len(runs) for step, runs in result.steps().items()} == {1: 2, 2: 1}


def test_a_later_versions_additions_are_left_out(result, tmp_path):
    path = tmp_path / "a.json"
    file = json.loads(json.dumps(result.to_json()))
    file["runs"][0]["colour"] = "blue"
    path.write_text(json.dumps(file))
    assert len(BenchResult.load(path).runs) == 3


@pytest.mark.parametrize(
    "text, message",
    [
        ("{", "is not JSON"),
        ("[]", "is not a load test result"),
        ('{"kind": "other"}', "is not a load test result"),
        ('{"kind": "bench", "schema": 2}', "has schema 2; this tsbatch reads schema 1"),
        ('{"kind": "bench", "schema": 1}', "is damaged: KeyError"),
        (
            '{"kind": "bench", "schema": 1, "target": {}, "load": {}, "environment": {}, "summary": [], "runs": [1]}',
            "is damaged: TypeError",
        ),
    ],
)
def test_what_is_no_result_is_refused_with_the_reason(tmp_path, text, message):
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=message):
        BenchResult.load(path)


def test_nothing_is_left_when_it_cannot_be_written(result, tmp_path):
    (tmp_path / "a.json").mkdir()
    with pytest.raises(OSError, match=r"a\.json"):
        result.save(tmp_path / "a.json")
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]
