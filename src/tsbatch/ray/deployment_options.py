"""Map model-config.yaml to Ray Serve's options (docs/ray.md has the table). Does not import Ray."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from tsbatch.archive.manifest import NAME_RULE
from tsbatch.errors import SettingsError, UsageError
from tsbatch.settings import load_settings

TORCHSERVE_DEFAULTS: Final = {
    "minWorkers": 1,
    "batchSize": 1,
    "maxBatchDelay": 100,
    "responseTimeout": 120,
    "startupTimeout": 120,
    "jobQueueSize": 100,
}
"""TorchServe's defaults for settings that model-config.yaml lacks (ModelConfig.java, ConfigManager.java), except
minWorkers, whose default there is the number of cores."""
MAX_REQUEST_SIZE: Final = 6_553_500
"""TorchServe's default max_request_size, in bytes."""
RETRY_AFTER: Final = 1
"""Seconds in the header Retry-After of a 503."""
HEALTH_CHECK_PERIOD: Final = 5.0
"""Seconds between two health checks; Ray replaces a replica that fails three of them."""
SHUTDOWN_SECONDS: Final = 10.0
"""Added to responseTimeout for the time in which a replica must answer its requests and stop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RaySettings:
    """How a model runs on Ray Serve.

    Attributes:
        name: the name it is served under.
        replicas: the number of replicas, or the minimum and maximum for Ray's autoscaling.
        cpus, gpus: what each replica reserves; ``cpus`` is also the number of its torch threads.
        batch_size: maximum requests in a batch.
        batch_delay: seconds to wait for a batch to fill.
        queue_size: maximum requests that wait at each of Ray's proxies; further ones get a 503.
        response_timeout: seconds that a batch may take.
        startup_timeout: seconds that a replica may take to load and warm up.
        request_bytes: maximum bytes of a request's body.
        surge: percentage of the replicas that an update starts before it stops the old ones.
    """

    name: str
    replicas: int | tuple[int, int] = 1
    cpus: float = 1.0
    gpus: float = 0.0
    batch_size: int = 1
    batch_delay: float = 0.1
    queue_size: int = 100
    response_timeout: float = 120.0
    startup_timeout: float = 120.0
    request_bytes: int = MAX_REQUEST_SIZE
    surge: int = 100

    @property
    def threads(self) -> int:
        """Torch threads of a replica."""
        return max(1, math.floor(self.cpus))

    def deployment_options(self) -> dict[str, Any]:
        """Return the arguments of ``ray.serve.deployment``."""
        resources = {"num_cpus": self.cpus, **({"num_gpus": self.gpus} if self.gpus else {})}
        if isinstance(self.replicas, int):
            scale: dict[str, Any] = {"num_replicas": self.replicas}
        else:
            low, high = self.replicas
            # One full batch keeps a replica busy; requests beyond that are work for another replica.
            target = float(self.batch_size)
            scale = {
                "autoscaling_config": {"min_replicas": low, "max_replicas": high, "target_ongoing_requests": target}
            }
        return {
            "name": self.name,
            **scale,
            "ray_actor_options": resources,
            # The batch that is computed, and the one that is gathered meanwhile.
            "max_ongoing_requests": 2 * self.batch_size,
            "max_queued_requests": self.queue_size,
            "backpressure_config": {"status_code": 503, "retry_after_s": RETRY_AFTER},
            "health_check_period_s": HEALTH_CHECK_PERIOD,
            "graceful_shutdown_timeout_s": self.response_timeout + SHUTDOWN_SECONDS,
            "graceful_shutdown_wait_loop_s": 0.5,
            "max_surge_percent": self.surge,
        }


def ray_settings(
    config: Mapping[str, Any],
    *,
    name: str,
    replicas: int | None = None,
    autoscale: tuple[int, int] | None = None,
    cpus: float | None = None,
    gpus: float | None = None,
    batch_size: int | None = None,
    max_batch_delay: int | None = None,
    queue_size: int | None = None,
    surge: int = 100,
) -> RaySettings:
    """Convert a model-config.yaml to settings for Ray Serve; the options take precedence.

    Raises:
        UsageError: an option or a setting of the archive is invalid.
    """
    if not NAME_RULE.fullmatch(name):
        raise UsageError(f"--name {name!r}: a model's name has letters, digits, '_', '-' and '.', as on TorchServe")
    try:
        own = load_settings(config)
    except SettingsError as error:
        raise UsageError(f"{name}: {error}") from None
    numbers = {key: _whole(config, key, default) for key, default in TORCHSERVE_DEFAULTS.items()}
    _check(replicas, autoscale, {"--cpus": cpus, "--gpus": gpus, "--max-batch-delay": max_batch_delay}, surge)
    if batch_size is not None and batch_size < 1:
        raise UsageError(f"--batch-size is {batch_size}; expected 1 or more")
    threads = own.threads if isinstance(own.threads, int) else 1
    on_gpu = own.device.startswith("cuda") or config.get("deviceType") == "gpu"
    return RaySettings(
        name=name,
        replicas=autoscale or replicas or numbers["minWorkers"],
        cpus=float(threads) if cpus is None else cpus,
        gpus=float(on_gpu) if gpus is None else gpus,
        batch_size=numbers["batchSize"] if batch_size is None else batch_size,
        batch_delay=(numbers["maxBatchDelay"] if max_batch_delay is None else max_batch_delay) / 1000,
        queue_size=numbers["jobQueueSize"] if queue_size is None else queue_size,
        response_timeout=float(numbers["responseTimeout"]),
        startup_timeout=float(numbers["startupTimeout"]),
        surge=surge,
    )


def _whole(config: Mapping[str, Any], key: str, default: int) -> int:
    """Return the number that TorchServe would use: the default for an invalid value."""
    value = config.get(key)
    return value if type(value) is int and value > 0 else default


def _check(
    replicas: int | None, autoscale: tuple[int, int] | None, amounts: Mapping[str, float | None], surge: int
) -> None:
    if replicas is not None and autoscale is not None:
        raise UsageError("--replicas and --autoscale exclude each other; give only one of them")
    if replicas is not None and replicas < 1:
        raise UsageError(f"--replicas is {replicas}; expected 1 or more")
    if autoscale is not None and not 0 <= autoscale[0] <= autoscale[1] >= 1:
        raise UsageError(f"--autoscale is {autoscale[0]}:{autoscale[1]}; expected MIN:MAX with 0 <= MIN <= MAX")
    for option, amount in amounts.items():
        if amount is not None and not 0 <= amount < math.inf:
            raise UsageError(f"{option} is {amount:g}; expected 0 or more")
    if not 0 <= surge <= 100:
        raise UsageError(f"--surge is {surge}; expected a percentage from 0 to 100")
