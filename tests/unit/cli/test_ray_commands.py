"""The verbs of ``tsbatch ray``, without a cluster: what they are told, what they say."""

from __future__ import annotations

import json
import os
import re
import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from tests.unit.ray.replica_side import handler_archive
from tsbatch.cli.program import main
from tsbatch.errors import LoadFailed, ServerError, UsageError
from tsbatch.ray.deploy import applications, cluster, local_cluster
from tsbatch.ray.deploy.applications import Deployed, HttpOptions, reason_in
from tsbatch.ray.deploy.cluster import Cluster
from tsbatch.ray.deployment_options import RaySettings

APPLICATION = {
    "status": "RUNNING",
    "message": "",
    "route_prefix": "/",
    "last_deployed_time_s": 0.0,
    "deployments": {
        "m": {
            "status": "HEALTHY",
            "message": "",
            "target_num_replicas": 2,
            "replicas": [
                {"replica_id": "a", "state": "RUNNING", "node_id": "n" * 40},
                {"replica_id": "b", "state": "STARTING"},
            ],
        }
    },
}
DETAILS = {"http_options": {"host": "0.0.0.0", "port": 8000}, "applications": {"m": APPLICATION}, "proxies": {}}
NODE = {"id": "n" * 12, "address": "127.0.0.1", "alive": True, "cpus": 4.0, "gpus": 0.0}


class Connected:
    """Stands in for ``connected``; notes how it was called."""

    def __init__(self, started=False):
        self.started, self.asked = started, []

    def __call__(self, address, **options):
        self.asked.append((address, options))
        return self

    def __enter__(self):
        return Cluster("127.0.0.1:6379", self.started)

    def __exit__(self, *_):
        pass


@pytest.fixture
def connected(monkeypatch):
    found = Connected()
    monkeypatch.setattr(cluster, "connected", found)
    monkeypatch.setattr(cluster, "nodes", lambda: [NODE])
    monkeypatch.setattr(applications, "_details", lambda: DETAILS)
    return found


@pytest.mark.parametrize("words", [["deploy", "m.mar"], ["status"], ["undeploy", "m"]])
def test_without_ray_it_says_what_to_install(words, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "ray", None)
    assert main(["ray", *words]) == 2
    assert capsys.readouterr().err == 'tsbatch: Ray Serve is not installed: pip install "tsbatch[ray]"\n'


def test_the_module_says_it_too(monkeypatch):
    import tsbatch.ray

    assert callable(tsbatch.ray.deployment)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r"pip install \"tsbatch\[ray\]\""):
        tsbatch.ray.deployment  # noqa: B018
    with pytest.raises(AttributeError, match="nothing"):
        tsbatch.ray.nothing  # noqa: B018


@pytest.mark.parametrize(
    "words, says",
    [
        (["nowhere.mar"], "no such archive here"),
        (["MAR", "--autoscale", "3"], "--autoscale is '3'; expected MIN:MAX"),
        (["MAR", "--autoscale", "3:1"], "--autoscale is 3:1"),
        (["MAR", "--replicas", "2", "--autoscale", "1:2"], "--replicas and --autoscale"),
        (["MAR", "--surge", "500"], "--surge is 500"),
        (["MAR", "--batch-size", "0"], "--batch-size"),
        (["MAR", "--name", "a/b"], "--name 'a/b': a model's name has letters"),
        (["MAR", "--port", "70000"], "--port"),
    ],
)
def test_wrong_usage_is_said_before_anything_is_connected(words, says, tmp_path, capsys, connected):
    archive = str(handler_archive(tmp_path))
    assert main(["ray", "deploy", *(archive if word == "MAR" else word for word in words)]) == 2
    assert says in capsys.readouterr().err
    assert connected.asked == []


def test_what_is_deployed_is_told(tmp_path, capsys, connected, monkeypatch):
    asked = {}

    def deploy(source, settings, **options):
        asked.update(options, source=source, settings=settings)
        return Deployed(name=settings.name, version=source.version, url="http://x/predictions/d", settings=settings)

    monkeypatch.setattr(applications, "deploy", deploy)
    words = [
        "--name",
        "d",
        "--replicas",
        "3",
        "--cpus",
        "2",
        "--queue",
        "9",
        "--port",
        "8001",
        "--max-batch-delay",
        "7",
    ]
    connected.started = True
    archive = str(handler_archive(tmp_path))
    assert main(["ray", "deploy", archive, *words, "--local"]) == 0
    said = capsys.readouterr()
    assert said.out == "d 1.5: http://x/predictions/d\n"
    assert "started Ray on this machine" in said.err
    assert "replicas: 3 (2 cores each), batches of up to 4 within 7 ms, up to 9 waiting" in said.err
    assert connected.asked == [("auto", {"start_here": True, "haproxy": False})]
    assert (asked["route"], asked["http"], asked["surge"]) == (None, HttpOptions("127.0.0.1", 8001), None)
    assert main(["ray", "deploy", archive, "--autoscale", "1:4", "--gpus", "0.5", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["schema"], told["settings"]["replicas"], told["settings"]["gpus"]) == (1, [1, 4], 0.5)


def test_status(capsys, connected, monkeypatch):
    assert main(["ray", "status", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    (application,) = told["applications"]
    assert application["url"] == "http://127.0.0.1:8000/predictions/m"
    assert application["deployments"]["m"]["wanted"] == 2
    assert told["nodes"] == [NODE]
    assert main(["ray", "status"]) == 0
    assert "1 of 2" in capsys.readouterr().out
    failed = {**APPLICATION, "status": "DEPLOY_FAILED", "message": "x\ntsbatch.errors.LoadError: no weights\n"}
    monkeypatch.setattr(applications, "_details", lambda: {**DETAILS, "applications": {"m": failed}})
    assert main(["ray", "status"]) == 1
    assert "m: no weights" in capsys.readouterr().err


def test_undeploy_names_what_is_there(capsys, connected):
    assert main(["ray", "undeploy", "other"]) == 2
    assert "no application named 'other' is deployed; deployed: m" in capsys.readouterr().err


def test_undeploy_ends_the_local_ray_with_the_last_application(capsys, connected, monkeypatch):
    mine = local_cluster.LocalRay("127.0.0.1:6379", "/nowhere", local_cluster.ProcessRef(1, 0))
    ended = []
    monkeypatch.setattr(local_cluster, "running", lambda: mine)
    monkeypatch.setattr(local_cluster, "end", ended.append)
    for left, wanted in ((["other"], []), ([], [mine])):
        monkeypatch.setattr(applications, "undeploy", lambda _, left=left: left)
        assert main(["ray", "undeploy", "m", "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
        assert (told["left"], told["ended_ray"], ended) == (left, bool(wanted), wanted)


def test_without_a_verb_it_shows_the_verbs_and_nothing_else(capsys):
    assert main(["ray"]) == 2
    said = capsys.readouterr()
    assert "undeploy" in said.out + said.err
    assert "tsbatch:" not in said.err


@pytest.mark.parametrize(
    "address, says",
    [
        ("127.0.0.1:1", "no Ray cluster answers there"),
        ("127.0.0.1:99999999", "no Ray cluster answers there"),
        ("nonsense", "not the address of a Ray cluster; expected HOST:PORT"),
    ],
)
def test_an_address_where_nobody_answers_is_said_at_once(address, says, capsys):
    assert main(["ray", "status", "--address", address]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"tsbatch: --address {address}: {says}")


def test_why_ray_lets_nobody_in(monkeypatch):
    ray = pytest.importorskip("ray")
    monkeypatch.setattr(cluster, "_unreachable", lambda _: "")
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    for said, told in {
        "Version mismatch: The cluster\n  has: Ray: 2.9": "Version mismatch: The cluster has: Ray: 2.9",
        "Failed to connect": f"Failed to connect; {cluster.ACCESS_HINT}",
        "": f"RuntimeError; {cluster.ACCESS_HINT}",
    }.items():
        monkeypatch.setattr(ray, "init", Mock(side_effect=RuntimeError(said)))
        assert cluster._reach("h:1") == told


@pytest.mark.parametrize(
    "why, variable, says",
    [
        (cluster.NONE_HERE, None, "no Ray cluster runs here, and RAY_ADDRESS is not set: give --address HOST:PORT, or"),
        ("Version mismatch", None, "the Ray that runs here refuses the connection: Version mismatch"),
        ("Version mismatch", "h:1", "RAY_ADDRESS=h:1: no Ray cluster answers there: Version mismatch"),
    ],
)
def test_no_cluster_that_lets_it_in(why, variable, says, capsys, monkeypatch):
    monkeypatch.setattr(cluster, "_reach", lambda _: why)
    monkeypatch.setattr(local_cluster, "running", lambda: None)
    monkeypatch.setenv(cluster.VARIABLE, variable or "")
    assert main(["ray", "status"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"tsbatch: {says}")


@pytest.fixture
def fresh(monkeypatch):
    """A Ray that can be started here; which ones have ended."""
    one = local_cluster.LocalRay("127.0.0.1:6379", "/nowhere", local_cluster.ProcessRef(1, 0))
    ended = []
    monkeypatch.delenv(cluster.VARIABLE, raising=False)
    monkeypatch.setattr(local_cluster, "running", lambda: None)
    monkeypatch.setattr(local_cluster, "start", lambda **_: one)
    monkeypatch.setattr(local_cluster, "end", ended.append)
    return one, ended


def test_who_connects_to_the_local_ray_asks_for_the_one_address_it_has():
    """Ray would ask another address of the machine, where nobody listens."""
    own = local_cluster.LocalRay("127.0.0.1:6379", "/nowhere", local_cluster.ProcessRef(1, 0)).environment
    assert own.items() >= local_cluster.ENVIRONMENT.items()
    assert own["RAY_AUTH_TOKEN_PATH"] == "/nowhere/token"


def test_haproxy_is_for_a_ray_that_local_starts(monkeypatch):
    started = []
    monkeypatch.delenv(cluster.VARIABLE, raising=False)
    monkeypatch.setattr(local_cluster, "running", lambda: None)
    monkeypatch.setattr(local_cluster, "start", lambda **options: started.append(options))
    for address, here in (("auto", False), ("10.0.0.1:6379", True)):
        with (
            pytest.raises(UsageError, match="--haproxy is for a Ray that --local starts"),
            cluster.connected(address, start_here=here, haproxy=True),
        ):
            pass
    assert started == []


def test_a_ray_that_runs_without_haproxy_is_not_changed(fresh, monkeypatch):
    one, ended = fresh
    monkeypatch.setattr(local_cluster, "running", lambda: one)
    with (
        pytest.raises(UsageError, match="runs without it, which cannot change while it runs"),
        cluster.connected("auto", start_here=True, haproxy=True),
    ):
        pass
    assert ended == []


def test_with_haproxy_who_deploys_knows_it_too():
    own = local_cluster.LocalRay("127.0.0.1:6379", "/nowhere", local_cluster.ProcessRef(1, 0), haproxy=True).environment
    assert own["RAY_SERVE_ENABLE_HA_PROXY"] == "1"
    assert own["RAY_SERVE_HAPROXY_SOCKET_PATH"].startswith("/nowhere/")


def test_what_was_started_here_ends_where_nothing_comes_of_it(fresh, monkeypatch):
    one, ended = fresh
    monkeypatch.setattr(cluster, "_reach", lambda _: "")
    ray = pytest.importorskip("ray")
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    monkeypatch.setattr(ray, "get_runtime_context", lambda: SimpleNamespace(gcs_address=one.address))

    def nothing_comes_of_it():
        with cluster.connected("auto", start_here=True) as found:
            assert (found, ended) == (Cluster(one.address, started=True), [])
            raise UsageError("no room")

    with pytest.raises(UsageError, match="no room"):
        nothing_comes_of_it()
    assert ended == [one]


def test_what_was_started_here_and_does_not_answer_ends(fresh, monkeypatch):
    one, ended = fresh
    monkeypatch.setattr(cluster, "_reach", lambda _: "timed out")
    with pytest.raises(ServerError, match="does not answer: timed out"), cluster.connected("auto", start_here=True):
        pass
    assert ended == [one]


@pytest.mark.parametrize("there", [True, False])
def test_an_application_keeps_its_route(there, tmp_path, monkeypatch):
    pytest.importorskip("ray.serve")  # keeps its warnings to itself
    details = {**DETAILS, "applications": {"m": {**APPLICATION, "route_prefix": "/own"}} if there else {}}
    asked = []
    monkeypatch.setattr(applications, "_details", lambda: details)
    monkeypatch.setattr(applications, "_check_capacity", lambda _: None)
    monkeypatch.setattr(applications, "_check_route", lambda _, name, route: asked.append((name, route)) or 1 / 0)
    with pytest.raises(ZeroDivisionError):
        applications.deploy(
            None, RaySettings(name="m"), route=None, http=HttpOptions(), on_progress=print, surge=None
        )  # nothing is started before it is known to fit
    assert asked == [("m", "/own" if there else "/")]


def test_a_port_that_somebody_has(monkeypatch):
    monkeypatch.setattr(cluster, "nodes", lambda: [NODE])
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(UsageError, match=f"127.0.0.1:{port} is in use"):
            applications._check_port(HttpOptions(port=port))
        monkeypatch.setattr(cluster, "nodes", lambda: [{**NODE, "address": "192.0.2.1"}])
        applications._check_port(HttpOptions(port=port))  # of a cluster elsewhere it says nothing


def test_addresses_that_others_can_use(monkeypatch):
    everywhere = {"http_options": {"host": "0.0.0.0", "port": 8000}, "proxies": {"n": {"node_ip": "10.0.0.2"}}}
    assert applications._address(everywhere) == "http://10.0.0.2:8000"
    here = {"http_options": {"host": "::1", "port": 8000}, "proxies": {}}
    assert applications._address(here) == "http://[::1]:8000"
    monkeypatch.setattr(cluster, "nodes", lambda: [NODE])
    assert list(applications._remarks(here, one_by_one=False)) == []
    monkeypatch.setattr(cluster, "nodes", lambda: [NODE, {**NODE, "address": "192.0.2.1"}])
    assert list(applications._remarks(everywhere, one_by_one=False)) == []
    one, other = applications._remarks(here, one_by_one=True)
    assert "no room for old and new replicas at once" in one
    assert "--host 0.0.0.0 in the first deployment" in other


def test_removing_waits_as_long_as_requests_may_take(monkeypatch):
    serve = pytest.importorskip("ray.serve")
    config = {"deployment_config": {"graceful_shutdown_timeout_s": 130.0}}
    slow = {**APPLICATION, "deployments": {"m": {**APPLICATION["deployments"]["m"], **config}}}
    clock, gone_at = [0.0], 150.0
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(time, "sleep", lambda seconds: clock.__setitem__(0, clock[0] + 10))
    monkeypatch.setattr(serve, "delete", lambda name, _blocking: None)
    there = lambda: {"m": slow} if clock[0] < gone_at else {}  # noqa: E731
    monkeypatch.setattr(applications, "_details", lambda: {**DETAILS, "applications": there()})
    assert applications.undeploy("m") == []
    clock[0], gone_at = 0.0, 1e9
    with pytest.raises(ServerError, match="m: not removed after 190 s"):
        applications.undeploy("m")


def test_nothing_reaches_stderr_while_connecting(capfd):
    with cluster._silent_stderr():
        os.write(2, b"gcs_client.cc: tried again\n")
    os.write(2, b"after\n")
    assert capfd.readouterr().err == "after\n"


def test_somebody_listens():
    grpc = pytest.importorskip("grpc")
    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        assert cluster._unreachable(f"127.0.0.1:{port}") == ""
        assert cluster._unreachable(f"ray://127.0.0.1:{port}") == ""
    finally:
        server.stop(None).wait()


def test_somebody_else_listens(monkeypatch):
    """Ray would go on trying for minutes."""
    pytest.importorskip("grpc")
    monkeypatch.setattr(cluster, "SECONDS_TO_CONNECT", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert cluster._unreachable(f"127.0.0.1:{server.getsockname()[1]}") == "what listens there is not Ray"


def test_a_ray_that_was_killed_is_none(monkeypatch):
    services = pytest.importorskip("ray._private.services")
    monkeypatch.setattr(services, "get_ray_address_from_environment", lambda *_: "127.0.0.1:1")
    assert cluster._local_address() == ""
    assert cluster._reach("auto") == cluster.NONE_HERE


@pytest.mark.parametrize("address", ["local", "http://127.0.0.1:8265", "127.0.0.1", ":1", "ray://h", "h:port"])
def test_what_is_no_address_of_a_cluster(address):
    assert cluster._unreachable(address) == cluster.EXPECTED


def test_only_a_cluster_of_this_machine_keeps_its_replicas_to_it():
    assert cluster._replica_environment("127.0.0.1:6379")["worker_process_setup_hook"]
    assert cluster._replica_environment("10.0.0.1:6379") == {}


@pytest.mark.parametrize(
    "message, wanted",
    [
        (
            "a\nTraceback\n  File x\ntsbatch.errors.LoadError: m.mar: no weights; pack it again\n",
            "m.mar: no weights; pack it again",
        ),
        (
            "first\nThe deployment failed to start 3 times in a row.\n",
            "The deployment failed to start 3 times in a row.",
        ),
        ("", "Ray gives no reason"),
    ],
)
def test_the_reason_in_rays_message(message, wanted):
    assert reason_in(message) == wanted


def test_a_deployment_that_fails_is_a_load_that_failed(monkeypatch):
    failed = {**APPLICATION, "status": "DEPLOY_FAILED", "message": "tsbatch.errors.LoadError: no weights"}
    monkeypatch.setattr(applications, "_details", lambda: {**DETAILS, "applications": {"m": failed}})
    with pytest.raises(LoadFailed, match="the model m cannot load: no weights"):
        applications._wait(RaySettings(name="m"), lambda _: None)


def test_how_it_goes_is_told(monkeypatch):
    """An update too, of which Ray tells the time of the first deployment."""
    deploying = {**APPLICATION, "status": "DEPLOYING"}
    states = iter([deploying, deploying, APPLICATION])
    monkeypatch.setattr(applications, "_details", lambda: {**DETAILS, "applications": {"m": next(states)}})
    monkeypatch.setattr(applications.time, "sleep", lambda _: None)
    said = []
    applications._wait(RaySettings(name="m"), said.append)
    assert said == ["m: 1 of 2 replicas answer"] * 2


@pytest.mark.parametrize(
    "route, says",
    [
        *((route, f"--route is {route!r}") for route in ("x", "/x/", "//", "/{name}", "/a b", "/x?y")),
        ("/", "already answers at /"),
    ],
)
def test_a_route_that_cannot_be(route, says):
    with pytest.raises(UsageError, match=re.escape(says)):
        applications._check_route(DETAILS, "other", route)
    applications._check_route(DETAILS, "m", "/")
    applications._check_route(DETAILS, "other", "/other")


def test_room_on_some_node(connected):
    applications._check_capacity(RaySettings(name="m", cpus=4))
    with pytest.raises(
        UsageError, match="reserves 5 cores and 0 GPUs, but the largest of the cluster's 1 nodes has 4 and 0"
    ):
        applications._check_capacity(RaySettings(name="m", cpus=5))
