"""Archives, results, logs and state files of an older version are read as they are (tests/surface/old/README.md)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import psutil
import pytest

from tests.surface.commands import main
from tests.surface.outputs import OLD
from tests.surface.saying import said

run = main()
TINY = ["--requests", "1500", "--max-workers", "2", "--max-batch-size", "2"]


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    """A copy of the files, which is the present folder; and a folder for state files."""
    shutil.copytree(OLD, tmp_path / "old")
    monkeypatch.chdir(tmp_path / "old")
    (tmp_path / "state").mkdir()
    monkeypatch.setenv("TSBATCH_STATE_DIR", str(tmp_path / "state"))
    return tmp_path


def told(*words, code=0):
    done = said(run, [*words, "--json"])
    assert done.code == code, done.err
    return json.loads(done.out)


# ---- archives ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "archive,name,version,handler",
    [
        ("rows.mar", "rows", "1.0", "tensor.py"),
        ("words.mar", "words", "1.0", "text_embedding.py"),
        ("doubling.mar", "doubling", "2.0", "doubling.py"),
        ("doubling.tar.gz", "doubling", "2.1", "doubling.py"),
        ("waiting.mar", "waiting", "1.0", "waiting.py"),
    ],
)
def test_an_archive_is_known_and_as_it_was_packed(archive, name, version, handler):
    found = told("inspect", archive)
    assert (found["name"], found["version"], found["handler"]) == (name, version, handler)
    assert found["tsbatch"] == "0.1.0"
    assert found["verified"]
    assert told("verify", archive)["ok"]
    findings = told("lint", archive, code=int(name == "waiting"))["findings"]
    assert [finding["rule"] for finding in findings] == ["handler-sleeps"] * (name == "waiting")


def test_its_hash_is_what_it_was():
    found = told("inspect", "rows.mar")
    assert found["sha256"] == "316fca81c595df8da0099e6010845cbba455514c1a06b88dba84b56605912fd7"
    assert found["config"]["tsbatch"]["limits"] == {"items": 8}
    assert found["config"]["handler"] == {"inputs": [{"name": "row", "shape": [4], "dtype": "float32"}]}


def test_what_engines_were_measured():
    rows = told("inspect", "words.mar")["engines"]["trials"]
    quickest = max(rows, key=lambda row: row["batched"] or 0)
    assert (quickest["engine"], quickest["dtype"]) == ("onnxruntime", "float32")
    assert quickest["batched"] == pytest.approx(4259.5, abs=0.1)
    assert len(rows) == 16


def test_versions_differ_as_they_did():
    found = told("diff", "doubling.mar", "doubling.tar.gz", code=1)
    assert not found["same"]
    assert "2.1" in json.dumps(found["differences"])


@pytest.mark.parametrize(
    "archive,requests,answers",
    [
        ("rows.mar", "[1, 2, 3, 4]\n[0.5, 0, -1, 2]\n", [[-2.6514, 1.3005, -0.8323], [-0.8040, 0.3754, -0.2738]]),
        ("doubling.mar", "1\n2.5\n", [2.0, 5.0]),
        ("doubling.tar.gz", "1\n2.5\n", [2.0, 5.0]),
        ("waiting.mar", "3\n", [6.0]),
    ],
)
def test_it_loads_and_answers(archive, requests, answers, tmp_path):
    (tmp_path / "requests.jsonl").write_text(requests)
    done = said(run, ["run", archive, "--data", tmp_path / "requests.jsonl"])
    assert done.code == 0, done.err
    found = [json.loads(line) for line in done.out.splitlines()]
    assert [answer["status"] for answer in found] == [200] * len(answers)
    for answer, expected in zip(found, answers, strict=True):
        assert answer["body"] == pytest.approx(expected, abs=1e-3)


def test_with_the_engine_that_was_chosen(tmp_path):
    pytest.importorskip("onnxruntime")
    (tmp_path / "requests.jsonl").write_text('{"inputs": "a cat sat"}\n')
    done = said(run, ["run", "words.mar", "--data", tmp_path / "requests.jsonl"])
    assert done.code == 0, done.err
    embedding = json.loads(done.out)["body"]["embedding"]
    assert embedding[:3] == pytest.approx([-0.1566, 0.1351, -0.6317], abs=1e-3)


def test_it_is_checked_and_what_was_noted_of_others_stays(own_folder):
    noted = own_folder / "state" / "load-times"
    shutil.copy(OLD / "load-times", noted)
    found = told("check", "doubling.mar", "--one-worker", "--limit", "120")
    assert found["loads"]
    assert [one["status"] for one in found["samples"]] == [200, 200]
    archives = json.loads(noted.read_text())["archives"]
    assert archives["/srv/models/waiting.mar 1701 1796095783996745581"]["startup_timeout"] == 30
    assert len(archives) == 2


def test_a_check_and_its_archive_become_pods(tmp_path):
    found = told("kserve", "waiting.mar", "--check", "check.json", "--output", tmp_path / "pods")
    predictor = found["inference_service"]["spec"]["predictor"]
    assert "waiting" in json.dumps(predictor)
    assert (tmp_path / "pods" / "storage" / "model-store" / "waiting.mar").read_bytes() == (
        OLD / "waiting.mar"
    ).read_bytes()


# ---- results ----------------------------------------------------------------------------------------------------


def test_load_tests_are_compared():
    found = told("compare", "bench-a.json", "bench-b.json")
    rate = next(change for change in found["changes"] if change["figure"] == "requests/s")
    assert (rate["before"], rate["after"]) == pytest.approx((365.544, 632.717), abs=0.001)
    assert rate["verdict"] == found["verdict"] == "within the noise"
    assert found["runs"] == [3, 3]


def test_a_load_test_is_diagnosed():
    found = told("diagnose", "bench-a.json")
    assert (found["model"], found["regime"], found["dominant"]) == ("rows", "assembly-bound", "assembly")
    assert found["evidence"]["requests"] == 120
    assert found["evidence"]["latency"] == pytest.approx(10.1608, abs=1e-3)


def test_logs_are_diagnosed():
    found = told("diagnose", "logs")
    assert (found["model"], found["regime"]) == ("waiting", "assembly-bound")
    assert found["evidence"]["requests"] == 49
    assert found["evidence"]["assembly"] == pytest.approx(59.946, abs=1e-3)
    assert found["advice"]["change"] == {"setting": "maxBatchDelay", "old": 62, "new": 1}


@pytest.mark.parametrize("service", ["bench-a.json", "check.json", "service.json"])
def test_service_times_are_simulated_and_planned_with(service):
    found = told("simulate", "--service", service, "--rate", "50", "--requests", "1000", "--batch-size", "4")
    assert found["summary"][0]["requests"] == 1000
    plan = told("plan", "--service", service, "--rate", "40", "--p99", "500ms", *TINY)["plans"][0]
    assert plan["machines"] == 1


def test_a_simulation_is_what_it_was():
    """The same seed, the same service time, the same settings: the same samples."""
    before = json.loads((OLD / "simulated.json").read_text())
    words = ["--service", "check.json", "--workers", "1", "--batch-size", "4", "--max-batch-delay", "5"]
    found = told("simulate", *words, "--rate", "100", "--requests", "60")
    assert found["runs"][0]["samples"] == before["runs"][0]["samples"]
    assert found["summary"][0]["latency"] == before["summary"][0]["latency"]


def test_recorded_arrivals_are_played_back():
    found = told("simulate", "--service", "10ms", "--trace", "bench-open.json")
    assert found["summary"][0]["requests"] == 40
    found = told("simulate", "--service", "10ms", "--trace", "logs")
    assert found["summary"][0]["requests"] == 49


def test_a_simulation_is_read_as_a_load_test(tmp_path):
    assert told("diagnose", "simulated.json")["evidence"]["requests"] == 60
    page = tmp_path / "page.html"
    assert said(run, ["diagnose", "bench-b.json", "--html", page]).code == 0
    assert "</html>" in page.read_text()


# ---- state files ------------------------------------------------------------------------------------------------


@pytest.fixture
def process(own_folder):
    """A process in place of the server that has ended long ago, and the state file that speaks of it."""
    work = own_folder / "tsbatch-work"
    work.mkdir()
    asleep = [sys.executable, "-c", "import time; time.sleep(600)"]
    found = subprocess.Popen(asleep, env={**os.environ, "TSBATCH_SERVER": str(work)})
    values = json.loads((OLD / "server.json").read_text())
    same = {"pid": found.pid, "created": psutil.Process(found.pid).create_time()}
    values |= {"process": same, "owner": same, "work_dir": str(work)}
    # A port where nobody listens.
    values |= {"management_address": "http://127.0.0.1:9"}
    (own_folder / "state" / "default.json").write_text(json.dumps(values))
    yield found
    found.kill()
    found.wait()


def test_a_state_file_leads_to_its_server(process):
    done = said(run, ["models", "--json"])
    assert done.code == 3
    assert "127.0.0.1:9" in done.err


def test_and_what_it_leads_to_is_stopped(process, own_folder):
    assert told("stop")["stopped"] == ["default"]
    assert process.wait(10) != 0
    assert list((own_folder / "state").iterdir()) == []
    assert not (own_folder / "tsbatch-work").exists()


def test_of_a_server_that_has_ended_nothing_stays(own_folder):
    state = own_folder / "state" / "default.json"
    shutil.copy(OLD / "server.json", state)
    assert said(run, ["models"]).code == 3
    assert not state.exists()
