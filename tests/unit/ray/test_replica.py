"""One replica in this process: Ray's library, no cluster."""

from __future__ import annotations

import asyncio
import tempfile
import time

import pytest

from tests.unit.ray.replica_side import DOUBLES, call, handler_archive
from tsbatch.errors import LoadError
from tsbatch.ray.archive_cache import describe
from tsbatch.ray.deployment_options import ray_settings

pytest.importorskip("ray.serve")  # keeps its warnings to itself

from tsbatch.ray import deployment, replica

CLOSES = DOUBLES.replace(
    "return lambda", "self.on_close(lambda: open('../closed', 'a').close())\n        return lambda"
)


@pytest.fixture(autouse=True)
def without_rays_batching(monkeypatch, tmp_path):
    """It works in a replica's process alone; requests are gathered one by one."""
    monkeypatch.setattr(replica, "_gathered_by_ray", lambda batches: lambda ticket: batches.enqueue([ticket]))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def started(folder, source=DOUBLES, **config):
    described = describe(handler_archive(folder, source=source, **config))
    return replica.Replica(described, ray_settings(described.config, name="m"))


def test_it_answers_by_address_and_by_handle(tmp_path):
    one = started(tmp_path)

    async def ask():
        app = one.__serve_build_asgi_app__()
        http = await call(app, "POST", "/predictions/m", b"[1, 2]", {"content-type": "application/json"})
        return http.json(), await one.predict([3, 4])

    assert asyncio.run(ask()) == ([2, 4], [6, 8])
    assert one.check_health() is None
    one._close()


def test_an_error_reaches_who_holds_the_handle(tmp_path):
    one = started(tmp_path)
    with pytest.raises(replica.RequestFailed, match=r"400: .*no item"):
        asyncio.run(one.predict([]))
    one._close()


def test_a_replica_whose_batch_hangs_is_not_healthy(tmp_path):
    one = started(tmp_path)
    one._batches.overdue = True
    with pytest.raises(RuntimeError, match="longer than responseTimeout"):
        one.check_health()
    one._close()


def test_the_end_closes_the_handler_and_gives_the_folder_back(tmp_path):
    one = started(tmp_path, CLOSES)
    folder = one._batches.handler.model_dir
    assert folder.is_dir()
    one._close()
    assert (folder.parent / "closed").exists()
    assert not folder.exists()


def test_a_close_that_fails_still_gives_the_folder_back(tmp_path, caplog):
    one = started(tmp_path)
    one._batches.handler.on_close(lambda: 1 / 0)
    one._close()
    assert "closing failed" in caplog.text
    assert not one._batches.handler.model_dir.exists()


def test_a_load_that_takes_too_long(tmp_path):
    slow = DOUBLES.replace("return lambda", "import time; time.sleep(1.5)\n        return lambda")
    begun = time.monotonic()
    with pytest.raises(LoadError, match=r"double\.mar: not loaded within startupTimeout \(1 s\)"):
        started(tmp_path, slow, startup_timeout=1)
    assert time.monotonic() - begun < 1.4


def test_the_application_has_the_archives_settings(tmp_path):
    application = deployment(handler_archive(tmp_path), replicas=2, cpus=0.5, health_check_period_s=7)
    options = application._bound_deployment
    assert (options.name, options.num_replicas, options.max_ongoing_requests) == ("double", 2, 8)
    assert options.ray_actor_options["num_cpus"] == 0.5
    assert options._deployment_config.health_check_period_s == 7


def test_metrics_have_torchserves_names():
    sink = replica.RayMetrics("m")
    sink.count("BatchRequests", 3, {})
    sink.count("FailedRequests", 1, {"Cause": "bad_request"})
    sink.count("PreprocessTime", 0.0, {})
    sink.gauge("PaddingWaste", 12.5, "percent")
    assert sink._counters["FailedRequests"].info["tag_keys"][:3] == ("ModelName", "Level", "Cause")
