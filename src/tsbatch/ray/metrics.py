"""The batch metrics under the names they have on TorchServe, through Ray's own endpoint.

Ray's Prometheus endpoint writes ``ray_`` before each name and all of it in small letters, since OpenTelemetry does
(opentelemetry/sdk/metrics/_internal/instrument.py), and adds the labels application, deployment and replica; Level is
always Model, as on TorchServe. Sums are counters, so that means over any interval are exact.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tsbatch.worker.telemetry import COUNTERS, GAUGES

TAGS: Any = ("ModelName", "Level")  # Ray declares a tuple of one name, and takes any number


class RayMetrics:
    """A metric sink that Ray exports; one for each replica.

    Args:
        model: the model's name.
    """

    knows_ours = True

    def __init__(self, model: str) -> None:
        from ray.serve.metrics import Counter, Gauge

        self._counters: dict[str, Any] = {}
        for name, meaning in COUNTERS.items():
            tags = (*TAGS, "Cause") if name == "FailedRequests" else TAGS
            self._counters[name] = Counter(name, description=meaning, tag_keys=tags)
        self._gauges: dict[str, Any] = {
            name: Gauge(name, description=meaning, tag_keys=TAGS) for name, meaning in GAUGES.items()
        }
        for metric in (*self._counters.values(), *self._gauges.values()):
            metric.set_default_tags(
                {"ModelName": model, "Level": "Model"}
            )  # a new one for each: Ray adds its own to it

    def count(self, name: str, value: float, dimensions: Mapping[str, str]) -> None:
        """Add ``value`` to the counter ``name``."""
        if value > 0:  # Ray refuses to add nothing
            self._counters[name].inc(value, tags=dict(dimensions))

    def gauge(self, name: str, value: float, unit: str) -> None:  # noqa: ARG002  the name tells it
        """Set the gauge ``name``."""
        self._gauges[name].set(value)
