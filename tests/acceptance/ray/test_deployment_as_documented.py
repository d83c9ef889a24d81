"""What docs/ray.md says of a deployment, tried on one."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from tests.acceptance.ray_side import ENVIRONMENT, SLEEPER, ray_here, sleeper, wait_until
from tests.e2e.support import at_once
from tsbatch.archive.model_config import ModelConfig
from tsbatch.packaging.builder import package
from tsbatch.ray.deploy import local_cluster
from tsbatch.system.processes import marked
from tsbatch.worker.telemetry import COUNTERS

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "ray.md"
PATH = "/predictions/sleeper"


@pytest.fixture(scope="module")
def ray():
    with ray_here() as running:
        yield running


def handler_of(folder, source, **config):
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "some_handler.py"
    file.write_text(source, encoding="utf-8")
    numbers = ModelConfig(**{"workers": 1, "batch_size": 4, "max_batch_delay": 5, "threads": 1, **config})
    return package(name="some", handler=file, config=numbers, output_dir=folder, force=True)


def program(*words, code=0):
    """A command in the environment of a person, who has set none of Ray's variables."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    command = [sys.executable, "-m", "tsbatch", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=ROOT, timeout=200)
    assert done.returncode == code, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def test_line_1_load_tests_and_diagnosis(ray, tmp_path, record_property):
    """``bench``, ``diagnose`` and ``plan`` work on a Ray deployment, and tell of it as of any other."""
    data = tmp_path / "numbers.jsonl"
    data.write_text("".join(f"{number}\n" for number in range(64)), encoding="utf-8")
    found = tmp_path / "ray.json"
    with ray.serving(sleeper(tmp_path, fixed=100, delay=60), "sleeper"):
        load = ("--concurrency", "2", "--duration", "6", "--warm-up", "2", "--output", found, "--json")
        told = program("bench", ray.url + PATH, "--server", ray.url, "--data", data, *load)
    result = json.loads(told.stdout)
    assert result["target"]["engine"] == "ray"
    assert result["target"]["settings"]["batchSize"] == 8
    assert result["target"]["settings"]["workers"] == 1
    (step,) = result["summary"]
    assert step["failed"] == 0
    diagnosis = json.loads(program("diagnose", found, "--json").stdout)
    assert diagnosis["regime"]
    assert diagnosis["advice"]["command"] == "tsbatch ray deploy ARCHIVE --name sleeper --max-batch-delay 1"
    (plan,) = json.loads(
        program("plan", "--service", found, "--rate", "40", "--p99", "400", "--replicas", "--json").stdout
    )["plans"]
    assert plan["unit"] == "replica"
    record_property("line1_diagnosis", f"{diagnosis['regime']}; {plan['machines']} replicas for 40 requests/s")


def test_line_1_overload_and_deadlines(ray, tmp_path, record_property):
    with ray.serving(sleeper(tmp_path, fixed=1000, batch_size=1), "sleeper", "--queue", "4"):
        answers = at_once([lambda: ray.post(PATH, 1)] * 16)
        refused = [answer for answer in answers if answer.status == 503]
        assert {answer.status for answer in answers} == {200, 503}
        assert all(answer.headers["retry-after"] == "1" for answer in refused)
        record_property("line1_overload", f"{len(refused)} of 16 at once refused")
        # One a second: who comes first is in time, who comes last is not, and nobody is refused.
        late = {"X-Request-Deadline": f"{time.time() + 2:.3f}"}
        waiting = at_once([lambda: ray.post(PATH, 1, late)] * 4)
        assert {answer.status for answer in waiting} == {200, 504}
        told = next(answer for answer in waiting if answer.status == 504).json()["error"]
        assert told["code"] == "deadline_exceeded"


def test_line_1_metrics_have_their_names(ray, tmp_path, record_property):
    # A name of its own: Ray goes on exporting the figures of replicas that have ended.
    with ray.serving(sleeper(tmp_path, fixed=500), "metered"):
        path = "/predictions/metered"

        def after(seconds):
            time.sleep(seconds)
            return ray.post(path, 1, {"X-Request-Start": str(time.time())})

        # Those that come later wait until the handler is free again.
        answers = at_once([lambda seconds=seconds: after(seconds) for seconds in (0, 0.2, 0.2, 0.2, 0.2)])
        assert {answer.status for answer in answers} == {200}
        assert ray.post(path, []).status == 400
        address = f"http://127.0.0.1:{metrics_port()}/metrics"

        def exported():
            text = httpx.get(address, trust_env=False, timeout=20).text
            found = dict(re.findall(r'^(ray_\w+)\{[^}]*ModelName="metered"[^}]*\} (\S+)', text, re.MULTILINE))
            whole = float(found.get("ray_batchrequests_total", 0)) == 6 and "ray_failedrequests_total" in found
            return found if whole else None

        found = wait_until(exported, 60)
    assert {f"ray_{name.lower()}_total" for name in COUNTERS} <= found.keys()
    assert float(found["ray_timedrequests_total"]) == 5
    assert float(found["ray_failedrequests_total"]) == 1
    assert float(found["ray_queuewaittime_total"]) > 100
    assert "ray_handlertime" in found
    record_property("line1_metrics", ", ".join(sorted(found)))


def metrics_port():
    """Where the node exports its metrics, as it was started."""
    found = local_cluster.running()
    arguments = " ".join(psutil_arguments(found))
    return int(re.search(r"--metrics-export-port=(\d+)", arguments)[1])


def psutil_arguments(found):
    import psutil

    return psutil.Process(found.process.pid).cmdline()


def test_line_1_what_cannot_load_is_said_in_one_line(ray, tmp_path):
    archive = handler_of(tmp_path, SLEEPER.replace("return None", "1 / 0"))
    done = ray.command("deploy", str(archive), "--name", "some", "--port", str(ray.port), code=3)
    try:
        last = done.stderr.splitlines()[-1]
        assert last.startswith("tsbatch: the model some cannot load: ")
        assert "load_model raised ZeroDivisionError" in last
        assert "Traceback" not in done.stderr
    finally:
        ray.command("undeploy", "some")


def test_line_1_a_load_that_takes_too_long(ray, tmp_path):
    archive = handler_of(tmp_path, SLEEPER.replace("return None", "time.sleep(60)"), startup_timeout=1)
    done = ray.command("deploy", str(archive), "--name", "some", "--port", str(ray.port), code=3)
    try:
        assert "not loaded within startupTimeout (1 s)" in done.stderr.splitlines()[-1]
    finally:
        ray.command("undeploy", "some")


def test_line_1_a_batch_that_hangs_costs_its_replica_and_the_handler_is_closed(ray, tmp_path):
    closed = tmp_path / "closed"
    source = SLEEPER.replace(
        "return None", f"self.on_close(lambda: open({str(closed)!r}, 'a').close())\n        return None"
    ).replace("time.sleep((", "time.sleep(3600 if 13 in tensors else (")
    archive = handler_of(tmp_path, source, response_timeout=2, base={"handler": {"fixed": 1, "each": 0, "tag": "a"}})
    path = "/predictions/some"
    with ray.serving(archive, "some"):
        pid = ray.post(path, 1).json()["pid"]
        answer = ray.post(path, 13)
        assert (answer.status, answer.json()["error"]["code"]) == (504, "response_timeout")
        assert wait_until(lambda: other_pid(ray, path, pid), 90) != pid
    assert wait_until(closed.exists, 30)


def other_pid(ray, path, pid):
    answer = ray.post(path, 1)
    found = answer.json().get("pid") if answer.status == 200 else None
    return found if found != pid else None


def test_line_1_two_models_need_two_routes(ray, tmp_path):
    archive = sleeper(tmp_path)
    with ray.serving(archive, "sleeper"):
        done = ray.command("deploy", str(archive), "--name", "other", "--port", str(ray.port), code=2)
        assert "the application sleeper already answers at /: give --route /other" in done.stderr
        with ray.serving(archive, "other", "--route", "/other") as told:
            assert told["url"] == f"{ray.url}/other/predictions/other"
            assert ray.post("/other/predictions/other", 3).json()["value"] == 3
            assert ray.post("/other/v2/models/nobody/infer", 3).status == 404
            assert {one["name"] for one in ray.status()["applications"]} == {"sleeper", "other"}
        assert ray.post(PATH, 4).json()["value"] == 4


def test_line_1_a_replica_that_no_node_can_hold(ray, tmp_path):
    done = ray.command("deploy", str(sleeper(tmp_path)), "--cpus", "5000", "--port", str(ray.port), code=2)
    assert "a replica reserves 5000 cores and 0 GPUs, but the largest" in done.stderr


def test_line_1_an_update_with_one_replica_loses_nothing(ray, tmp_path):
    from tests.acceptance.ray_side import Steady

    ray.deploy(sleeper(tmp_path / "1", fixed=50), "sleeper")
    try:
        with Steady(ray, PATH, rate=10) as load:
            wait_until(lambda: len(load.sent) > 20)
            ray.deploy(sleeper(tmp_path / "2", fixed=50, tag="second"), "sleeper")
            wait_until(lambda: all(one.answer.json()["tag"] == "second" for one in load.sent[-10:]))
        assert [one.answer for one in load.sent if not one.ok] == []
    finally:
        ray.undeploy("sleeper")


def test_line_1_the_pages_python_runs(ray, tmp_path):
    (block,) = re.findall(r"```py\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "model_store").mkdir()
    packed = sleeper(tmp_path)
    packed.rename(tmp_path / "model_store" / "embed.mar")
    found = local_cluster.running()
    code = f"import ray; ray.init({ray.address!r}, log_to_driver=False)\n{block}"
    environment = {**os.environ, **ENVIRONMENT, **found.environment, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    try:
        (application,) = ray.status()["applications"]
        assert (application["name"], application["status"]) == ("embed", "RUNNING")
    finally:
        ray.command("undeploy", "embed", code=None)


def test_line_1_local_starts_a_ray_and_undeploy_ends_it(tmp_path, monkeypatch):
    monkeypatch.setenv("TSBATCH_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    from tsbatch.system.ports import free_ports

    archive = sleeper(tmp_path)
    words = ("ray", "deploy", archive, "--local", "--port", free_ports(1)[0], "--json")
    try:
        told = json.loads(program(*words).stdout)
        assert told["started_ray"]
        folder = local_cluster.running().work_dir
        assert httpx.post(told["url"], json=5, trust_env=False, timeout=30).json()["value"] == 5
        ended = json.loads(program("ray", "undeploy", "sleeper", "--json").stdout)
        assert ended["ended_ray"]
        assert local_cluster.running() is None
        assert (marked(folder), Path(folder).exists()) == ([], False)
        failed = program(*words, "--cpus", "5000", code=2)
        assert "a replica reserves 5000 cores" in failed.stderr
        assert local_cluster.running() is None, "what was started for a deployment that cannot be has ended with it"
    finally:
        if (left := local_cluster.running()) is not None:
            local_cluster.end(left)
