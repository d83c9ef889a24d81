"""What the manifests say, done on a real TorchServe as a pod would run it.

There is no cluster here. What a container would run is run: the packages of requirements.txt and nothing else, the
runtime's command with the manifest's arguments, the environment that KServe sets, the probes, the end. Prometheus is
Debian's, and answers the query of the autoscaler.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import quote
from urllib.request import urlopen

import pytest

from tests.acceptance.kserve_models import deploy, post
from tests.acceptance.pod import pod_of
from tests.dashboards import names_in
from tests.e2e.support import at_once, request
from tsbatch.system.ports import free_ports

PATIENCE = 120.0
WINDOW = 20
MEBI = 1 << 20


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory):
    """The program: the one that is installed, or out of Debian's package, which is not installed."""
    if found := shutil.which("prometheus"):
        return found
    folder = tmp_path_factory.mktemp("prometheus")
    if shutil.which("apt-get"):
        fetch = ["apt-get", "download", "-qq", "prometheus"]
        subprocess.run(fetch, cwd=folder, check=False, capture_output=True, timeout=300)
    packages = list(folder.glob("prometheus_*.deb"))
    if not packages:
        pytest.skip("no Prometheus on this machine, and Debian's package cannot be had")
    subprocess.run(["dpkg", "-x", packages[0], folder / "x"], check=True)
    return folder / "x" / "usr" / "bin" / "prometheus"


def healthy(pod):
    try:
        return request(pod.address, "GET", "/ping", timeout=5).json()["status"] == "Healthy"
    except OSError:
        return False


def wait_until_started(pod):
    """Wait for the startup probe; whether TorchServe called itself healthy before that."""
    deadline, too_early = time.monotonic() + PATIENCE, False
    while not pod.probe("startupProbe"):
        assert time.monotonic() < deadline, pod.last_words()
        assert pod.process.poll() is None, pod.last_words()
        too_early = too_early or (healthy(pod) and not pod.probe("startupProbe"))
    return too_early


def query_of(deployed):
    [metric] = deployed.manifest["spec"]["predictor"]["autoScaling"]["metrics"]
    return metric["external"]


def open_inference(body):
    """The same value as a v2 tensor."""
    [value] = body["instances"]
    numbers = isinstance(value, list)
    return {
        "id": "1",
        "inputs": [
            {
                "name": "input",
                "datatype": "FP32" if numbers else "BYTES",
                "shape": [1, len(value)] if numbers else [1],
                "data": value if numbers else [value],
            }
        ],
    }


@pytest.mark.parametrize("what", ["embedding", "images", "own"])
def test_a_pod(what, tmp_path, record_property):
    deployed = deploy(what, tmp_path / "model")
    bodies = deployed.bodies
    with pod_of(deployed, tmp_path / "pod") as pod:
        too_early = wait_until_started(pod)
        assert pod.probe("readinessProbe")
        assert healthy(pod)
        path = f"/v1/models/{deployed.name}:predict"
        alone = [post(pod.address, path, body) for body in bodies]
        assert {answer.status for answer in alone} == {200}, alone[0].body
        assert len({answer.body for answer in alone}) > 1
        together = at_once([lambda body=body: post(pod.address, path, body) for body in bodies])
        batches = {answer.headers["server-timing"].rpartition('desc="')[2] for answer in together}
        assert any(not batch.startswith("1/") for batch in batches), batches
        for one, other in zip(alone, together, strict=True):
            assert _close(one.json(), other.json())
        if what != "images":
            infer = f"/v2/models/{deployed.name}/infer"
            v2 = at_once([lambda body=body: post(pod.address, infer, open_inference(body)) for body in bodies])
            assert {answer.status for answer in v2} == {200}, v2[0].body
            assert all(answer.json()["outputs"] for answer in v2)
        emitted = request(pod.metrics, "GET", "/metrics").body.decode()
        for name in names_in(query_of(deployed)["metric"]["query"]):
            assert f'{name}{{ModelName="{deployed.name}"' in emitted, name
        held, asked = pod.memory(), int(deployed.container["resources"]["limits"]["memory"].removesuffix("Mi")) * MEBI
        assert held < asked
        record_property(f"{deployed.name}: memory held and asked for, MiB", f"{held / MEBI:.0f} of {asked / MEBI:.0f}")
        if what == "own":
            assert too_early, "TorchServe calls itself healthy while workers load"
            _end(pod, deployed, path)
            record_property("healthy before it was loaded", too_early)


def _close(one, other):
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_close(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(_close, one, other))
    return one == pytest.approx(other, abs=1e-5) if isinstance(one, float) else one == other


def _end(pod, deployed, path):
    """What is asked when the pod must end is answered, and nothing of it is left."""
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(post, pod.address, path, {"instances": [[2000.0, 1.0]]})
        time.sleep(0.3)
        stop = deployed.container["lifecycle"]["preStop"]["exec"]["command"]
        assert "sleep 15;" in stop[-1]
        assert pod.run(stop, **{"sleep 15": "sleep 3"}) == 0
        assert slow.result().json() == {"predictions": [[4000.0, 2.0]]}
    assert pod.wait_gone(15)


def test_prometheus_answers_the_autoscalers_query(prometheus, tmp_path, record_property):
    deployed = deploy("own", tmp_path / "model")
    asked = query_of(deployed)
    with pod_of(deployed, tmp_path / "pod") as pod:
        wait_until_started(pod)
        host = pod.metrics.removeprefix("http://")
        port = free_ports(1)[0]
        config = tmp_path / "prometheus.yml"
        scrape = {"job_name": "pods", "static_configs": [{"targets": [host], "labels": {"namespace": "ml"}}]}
        config.write_text(json.dumps({"global": {"scrape_interval": "1s"}, "scrape_configs": [scrape]}))
        words = [
            f"--config.file={config}",
            f"--web.listen-address=127.0.0.1:{port}",
            f"--storage.tsdb.path={tmp_path / 'd'}",
        ]
        server = subprocess.Popen([prometheus, *words], stderr=subprocess.DEVNULL)
        try:
            # A shorter window, so that the test need not fill one of two minutes.
            query = asked["metric"]["query"].replace("[2m]", f"[{WINDOW}s]")
            busy = _busy_while_asked(pod, deployed, f"http://127.0.0.1:{port}", query)
        finally:
            server.terminate()
            server.wait(20)
    # Two workers, of which one client at a time keeps one in its handler nearly all the time.
    assert 0.5 < busy <= 1.1
    assert asked["target"]["value"] == "1.4"
    record_property("busy workers that Prometheus tells, of one asked without a pause", busy)


def _busy_while_asked(pod, deployed, prometheus, query):
    ended = threading.Event()

    def ask():
        while not ended.is_set():
            post(pod.address, f"/v1/models/{deployed.name}:predict", {"instances": [[2000.0, 1.0]]})

    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(ask)
        try:
            time.sleep(1.3 * WINDOW)
            with urlopen(f"{prometheus}/api/v1/query?query={quote(query)}", timeout=10) as answer:
                [result] = json.load(answer)["data"]["result"]
        finally:
            ended.set()
        asking.result()
    return float(result["value"][1])
