"""model-config.yaml in Ray Serve's words. docs/ray.md has the table; nothing here imports Ray."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
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
"""What TorchServe takes where model-config.yaml is silent (ModelConfig.java, ConfigManager.java); workers apart, which
would be as many as the machine has cores."""
MAX_REQUEST_SIZE: Final = 6_553_500
"""TorchServe's default max_request_size, in bytes."""
RETRY_AFTER: Final = 1
"""Seconds that a client is told to wait after a 503."""
SECONDS_BETWEEN_CHECKS: Final = 5.0
"""Between two health checks; Ray replaces a replica that has failed three of them."""
SECONDS_TO_END: Final = 10.0
"""Added to responseTimeout: what a replica may take from being told to end, to its requests' answers, to its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RaySettings:
    """How a model runs on Ray Serve.

    Attributes:
        name: the name it is served under.
        replicas: how many, or the bounds between which Ray scales.
        cpus, gpus: what each replica reserves; ``cpus`` are its torch threads too.
        batch_size: requests in a batch, at most.
        batch_delay: seconds to wait for a batch to fill.
        queue_size: requests that wait at each of Ray's proxies, at most; one more is answered 503.
        response_timeout: seconds that a batch may take.
        startup_timeout: seconds that a replica may take to load and warm up.
        request_bytes: of one request's body, at most.
        surge: percent of the replicas that an update starts before it ends the old ones.
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

    @property
    def ongoing(self) -> int:
        """Requests in a replica: the batch that is computed, and the one that gathers meanwhile."""
        return 2 * self.batch_size

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return asdict(self)

    def deployment_options(self) -> dict[str, Any]:
        """Arguments of ``ray.serve.deployment``."""
        resources = {"num_cpus": self.cpus, **({"num_gpus": self.gpus} if self.gpus else {})}
        if isinstance(self.replicas, int):
            scale: dict[str, Any] = {"num_replicas": self.replicas}
        else:
            least, most = self.replicas
            # A replica is busy with one full batch; what waits beside it is work for another one.
            target = float(self.batch_size)
            scale = {
                "autoscaling_config": {"min_replicas": least, "max_replicas": most, "target_ongoing_requests": target}
            }
        return {
            "name": self.name,
            **scale,
            "ray_actor_options": resources,
            "max_ongoing_requests": self.ongoing,
            "max_queued_requests": self.queue_size,
            "backpressure_config": {"status_code": 503, "retry_after_s": RETRY_AFTER},
            "health_check_period_s": SECONDS_BETWEEN_CHECKS,
            "graceful_shutdown_timeout_s": self.response_timeout + SECONDS_TO_END,
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
    """What a model-config.yaml means on Ray Serve; options win over it.

    Raises:
        UsageError: an option, or a setting of the archive, that cannot be.
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
    """The number that TorchServe would take: the default where it drops what stands there."""
    value = config.get(key)
    return value if type(value) is int and value > 0 else default


def _check(
    replicas: int | None, autoscale: tuple[int, int] | None, amounts: Mapping[str, float | None], surge: int
) -> None:
    if replicas is not None and autoscale is not None:
        raise UsageError("--replicas and --autoscale contradict each other; give one of them")
    if replicas is not None and replicas < 1:
        raise UsageError(f"--replicas is {replicas}; expected 1 or more")
    if autoscale is not None and not 0 <= autoscale[0] <= autoscale[1] >= 1:
        raise UsageError(f"--autoscale is {autoscale[0]}:{autoscale[1]}; expected MIN:MAX with 0 <= MIN <= MAX")
    for option, amount in amounts.items():
        if amount is not None and not 0 <= amount < math.inf:
            raise UsageError(f"{option} is {amount:g}; expected 0 or more")
    if not 0 <= surge <= 100:
        raise UsageError(f"--surge is {surge}; expected a percentage from 0 to 100")
