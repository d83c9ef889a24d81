"""An archive as a Ray Serve application."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tsbatch.ray.archive_cache import Source, describe
from tsbatch.ray.deployment_options import RaySettings, ray_settings


def deployment(
    mar: str | Path,
    *,
    name: str | None = None,
    replicas: int | None = None,
    autoscale: tuple[int, int] | None = None,
    cpus: float | None = None,
    gpus: float | None = None,
    batch_size: int | None = None,
    max_batch_delay: int | None = None,
    queue_size: int | None = None,
    surge: int = 100,
    **options: Any,
) -> Any:
    """Return the archive as a Ray Serve application, for ``ray.serve.run`` or to bind into another deployment.

    Args:
        mar: the archive: a path, ``file://``, ``http(s)://``, or what smart_open reads (``s3://``, ``gs://``).
        name: the name to serve it under; by default the archive's own.
        replicas: the number of replicas; by default ``minWorkers`` of model-config.yaml.
        autoscale: the minimum and maximum number of replicas, instead of ``replicas``.
        cpus: cores that each replica reserves, and its torch threads; by default ``tsbatch.threads``, or 1.
        gpus: GPUs that each replica reserves, possibly a fraction; by default 1 if model-config.yaml asks for a GPU.
        batch_size: maximum requests in a batch; by default ``batchSize``.
        max_batch_delay: milliseconds to wait for a batch to fill; by default ``maxBatchDelay``.
        queue_size: maximum requests that wait at each proxy; by default ``jobQueueSize``.
        surge: percentage of the replicas that an update starts before it stops the old ones.
        options: further arguments of ``ray.serve.deployment``; they take precedence.

    Returns:
        A ``ray.serve.Application``.

    Raises:
        UsageError: the archive cannot be read or differs from what was packed, or a setting is invalid.
    """
    source = describe(mar)
    settings = ray_settings(
        source.config,
        name=name or source.name,
        replicas=replicas,
        autoscale=autoscale,
        cpus=cpus,
        gpus=gpus,
        batch_size=batch_size,
        max_batch_delay=max_batch_delay,
        queue_size=queue_size,
        surge=surge,
    )
    return application(source, settings, options)


def application(source: Source, settings: RaySettings, options: dict[str, Any] | None = None) -> Any:
    """Return the application of a described archive."""
    from ray import serve

    from tsbatch.ray.replica import ReplicaApp

    return serve.deployment(**{**settings.deployment_options(), **(options or {})})(ReplicaApp).bind(source, settings)
