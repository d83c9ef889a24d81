"""A cluster of three nodes that loses one, gets one, and is updated, under load."""

from __future__ import annotations

import secrets
import tempfile
import time
from collections import Counter
from contextlib import ExitStack

import pytest

from tests.acceptance.ray_side import ENVIRONMENT, RayHere, Steady, sleeper, wait_until
from tsbatch.ray.proxy import CALLBACK, VARIABLE
from tsbatch.system.ports import free_ports
from tsbatch.system.processes import MARK, end_marked

pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's own, which is in this process here alone
RATE = 20.0
PATH = "/predictions/sleeper"
IN_HANDS = 16
"""Requests that a replica may have at a time: two batches."""


@pytest.fixture(scope="module")
def cluster():
    """Three nodes of one core each; Serve listens on the first, which stays. All of it is gone in the end."""
    with ExitStack() as ending:
        folder = ending.enter_context(tempfile.TemporaryDirectory(prefix="tsb-", ignore_cleanup_errors=True))
        ending.callback(end_marked, folder)
        environment = ending.enter_context(pytest.MonkeyPatch.context())
        token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        for name, value in {**ENVIRONMENT, **token, "RAY_TMPDIR": folder, MARK: folder}.items():
            environment.setenv(name, value)
        yield three_nodes(ending)


def three_nodes(ending):
    """A cluster, whose end is added to what happens in the end."""
    ray = pytest.importorskip("ray")
    from ray import serve
    from ray.cluster_utils import Cluster

    found = Cluster()
    ending.callback(found.shutdown)
    add_node(found, include_dashboard=False)
    found.nodes = [add_node(found) for _ in range(2)]
    hook = {"worker_process_setup_hook": "tsbatch.ray.loopback.listen_here_only"}
    ending.callback(ray.shutdown)
    ray.init(address=found.address, runtime_env=hook, log_to_driver=False)
    port = free_ports(1)[0]
    ending.callback(serve.shutdown)
    # Connections to a node that is gone would be cut; in front of a real cluster stands a balancer that tries another.
    serve.start(
        proxy_location="HeadOnly",
        http_options={"host": "127.0.0.1", "port": port},
        # And a proxy prefers the replicas of its own node, which would do all of this load alone.
        controller_options={
            "runtime_env": {"env_vars": {VARIABLE: CALLBACK, "RAY_SERVE_PROXY_PREFER_LOCAL_NODE_ROUTING": "0"}}
        },
    )
    found.running = RayHere(found.address, port, ENVIRONMENT)
    return found


def add_node(cluster, **more):
    return cluster.add_node(num_cpus=1, node_ip_address="127.0.0.1", object_store_memory=100_000_000, **more)


def where(running):
    """The nodes with a replica that answers, and how many replicas there are."""
    (application,) = running.status()["applications"]
    replicas = application["deployments"]["sleeper"]["replicas"]
    return [replica["node"] for replica in replicas if replica["state"] == "RUNNING"]


def pids(sent):
    return {one.answer.json()["pid"] for one in list(sent) if one.ok}


def tags(sent):
    return Counter(one.answer.json()["tag"] for one in sent if one.ok)


def test_line_2_a_node_lost_a_node_won_and_an_update(cluster, tmp_path, record_property):
    running = cluster.running
    first = sleeper(tmp_path / "1", fixed=150)
    told = running.deploy(first, "sleeper", "--replicas", "3")
    assert told["url"].endswith(PATH)
    assert len(set(where(running))) == 3, "replicas on all three nodes"
    with Steady(running, PATH, rate=RATE) as load:
        wait_until(lambda: len(load.sent) >= 60)
        assert all(one.ok for one in load.sent)
        assert len(pids(load.sent)) == 3, "all three answer"

        lost_at = time.monotonic()
        cluster.remove_node(cluster.nodes.pop(), allow_graceful=False)
        time.sleep(10)
        failed = [one for one in load.sent if not one.ok]
        statuses = dict(Counter(one.answer.status if one.answer else "no answer" for one in failed))
        record_property("line2_lost", f"{len(failed)} failed: {statuses}")
        assert len(failed) <= IN_HANDS, "at most what was in flight on the node"
        assert all(abs(one.at - lost_at) < 2 for one in failed), "and nothing later"
        for one in failed:
            assert one.answer, "each is told something"
            assert one.answer.status == 503
            assert one.answer.headers["retry-after"] == "1"
            assert "replica" in one.answer.json()["message"]
        back = max((one.at + one.took for one in failed), default=lost_at) - lost_at
        good = [one for one in load.since(lost_at + back) if one.ok]
        rate = len(good) / (max(one.at for one in good) - lost_at - back)
        record_property("line2_back", f"{rate:.1f} requests/s again after {back:.1f} s")
        assert rate >= 0.9 * RATE
        wait_until(lambda: len(where(running)) == 2)

        left = pids(load.since(lost_at + back))
        assert len(left) == 2, "the two that are left answer"
        won_at = time.monotonic()
        cluster.nodes.append(add_node(cluster))
        wait_until(lambda: pids(load.since(won_at)) - left, 120)
        record_property("line2_won", f"the new node answers after {time.monotonic() - won_at:.1f} s")
        wait_until(lambda: len(set(where(running))) == 3)

        updated_at = time.monotonic()
        running.deploy(sleeper(tmp_path / "2", fixed=150, tag="second"), "sleeper", "--replicas", "3")
        wait_until(lambda: tags(load.sent[-20:]) == {"second": 20}, 60)
        record_property("line2_updated", f"updated in {time.monotonic() - updated_at:.1f} s")
    bad = [one for one in load.since(won_at) if not one.ok]
    record_property("line2_update", f"{len(load.since(updated_at))} requests, {len(bad)} failed")
    assert bad == []
    running.undeploy("sleeper")
    assert running.status()["applications"] == []
