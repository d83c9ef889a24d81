"""What model-config.yaml means on Ray Serve."""

from __future__ import annotations

import pytest

from tsbatch.errors import UsageError
from tsbatch.ray.deployment_options import ray_settings

WHOLE = {
    "minWorkers": 3,
    "maxWorkers": 3,
    "batchSize": 8,
    "maxBatchDelay": 20,
    "responseTimeout": 30,
    "startupTimeout": 600,
    "jobQueueSize": 50,
    "tsbatch": {"schema": 1, "threads": 2},
}


def test_every_setting_that_has_a_counterpart_is_mapped():
    options = ray_settings(WHOLE, name="m").deployment_options()
    assert options == {
        "name": "m",
        "num_replicas": 3,
        "ray_actor_options": {"num_cpus": 2.0},
        "max_ongoing_requests": 16,
        "max_queued_requests": 50,
        "backpressure_config": {"status_code": 503, "retry_after_s": 1},
        "health_check_period_s": 5.0,
        "graceful_shutdown_timeout_s": 40.0,
        "graceful_shutdown_wait_loop_s": 0.5,
        "max_surge_percent": 100,
    }
    settings = ray_settings(WHOLE, name="m")
    assert (settings.batch_size, settings.batch_delay, settings.startup_timeout, settings.threads) == (8, 0.02, 600, 2)


def test_ray_takes_all_of_it():
    serve = pytest.importorskip("ray.serve")

    class Anything:
        pass

    made = serve.deployment(**ray_settings(WHOLE, name="m").deployment_options())(Anything)
    assert (made.num_replicas, made.max_ongoing_requests, made.max_queued_requests) == (3, 16, 50)
    assert made.backpressure_config.retry_after_s == 1
    scaled = serve.deployment(**ray_settings(WHOLE, name="m", autoscale=(0, 4)).deployment_options())(Anything)
    assert scaled._deployment_config.autoscaling_config.max_replicas == 4
    assert scaled._deployment_config.autoscaling_config.target_ongoing_requests == 8


def test_a_silent_file_means_what_it_means_to_torchserve():
    settings = ray_settings({}, name="m")
    assert (settings.batch_size, settings.batch_delay, settings.replicas, settings.queue_size) == (1, 0.1, 1, 100)
    assert (settings.response_timeout, settings.startup_timeout, settings.cpus, settings.gpus) == (120, 120, 1, 0)


def test_torchserve_drops_what_is_no_number_and_so_does_this():
    odd = {"batchSize": "8", "maxBatchDelay": 0, "responseTimeout": -1, "jobQueueSize": True, "minWorkers": 2.0}
    assert ray_settings(odd, name="m") == ray_settings({}, name="m")


def test_options_win():
    settings = ray_settings(WHOLE, name="m", replicas=5, cpus=0.5, gpus=0.25, queue_size=7, surge=0)
    assert (settings.replicas, settings.cpus, settings.gpus, settings.queue_size) == (5, 0.5, 0.25, 7)
    assert settings.threads == 1
    assert settings.deployment_options()["ray_actor_options"] == {"num_cpus": 0.5, "num_gpus": 0.25}


@pytest.mark.parametrize("config", [{"deviceType": "gpu"}, {"tsbatch": {"schema": 1, "device": "cuda"}}])
def test_a_model_for_a_gpu_reserves_one(config):
    assert ray_settings(config, name="m").gpus == 1


def test_replicas_between_bounds():
    options = ray_settings(WHOLE, name="m", autoscale=(1, 4)).deployment_options()
    assert "num_replicas" not in options
    assert options["autoscaling_config"] == {"min_replicas": 1, "max_replicas": 4, "target_ongoing_requests": 8.0}


@pytest.mark.parametrize(
    "options, says",
    [
        ({"replicas": 2, "autoscale": (1, 2)}, "--replicas and --autoscale"),
        ({"replicas": 0}, "--replicas is 0"),
        ({"autoscale": (3, 2)}, "--autoscale is 3:2"),
        ({"autoscale": (0, 0)}, "--autoscale is 0:0"),
        ({"cpus": -1.0}, "--cpus is -1"),
        ({"gpus": float("inf")}, "--gpus is inf"),
        ({"surge": 101}, "--surge is 101"),
    ],
)
def test_invalid_options_are_refused(options, says):
    with pytest.raises(UsageError, match=says):
        ray_settings(WHOLE, name="m", **options)


@pytest.mark.parametrize("config", [{"tsbatch": {"threds": 1}}, {"sequenceBatching": True}])
def test_a_setting_that_a_handler_would_refuse_is_refused_before_anything_starts(config):
    with pytest.raises(UsageError, match=r"m: model-config\.yaml"):
        ray_settings(config, name="m")
