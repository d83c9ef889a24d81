"""Decide when a pod has started, gets requests, is restarted, and how it stops.

TorchServe's ``/ping`` says Healthy while workers still load, and for 300 s if they cannot (http/.../ApiUtils.java).
Only the management API says which workers are READY, in the body of its answer, so two of the probes run a few lines
of Python in the pod. They use 127.0.0.1, the only address at which the management API listens.
"""

from __future__ import annotations

import math
from typing import Any

from tsbatch.kserve.archive_facts import Facts
from tsbatch.kserve.server_config import INFERENCE_PORT, MANAGEMENT_PORT

READY = """\
import http.client, json, sys
server = http.client.HTTPConnection("127.0.0.1", {port}, timeout={timeout})
server.request("GET", "/models/{model}")
workers = json.load(server.getresponse())[0]["workers"]
sys.exit(sum(worker["status"] == "READY" for worker in workers) < {count})
"""
"""Exits with 0 if that many workers are READY; with another code if not, or if TorchServe does not answer."""

INTERVAL = 5
"""Seconds between two probes, and their timeout in the pod; a pod short of CPU needs a second to start Python."""

SECONDS_TO_START = 150
"""Seconds for Java, and the 120 s that TorchServe gives each worker's Python to start (WorkerLifeCycle.java)."""

SECONDS_TO_INSTALL = 600
"""Additional seconds if TorchServe installs requirements before it opens its ports."""

MIN_DRAIN = 15
"""Seconds, so that load balancers know that the pod is stopping before its ports are closed."""

SECONDS_TO_STOP = 15
"""Seconds after that until Kubernetes may kill the pod."""


def probes(facts: Facts) -> dict[str, Any]:
    """Return ``startupProbe``, ``readinessProbe`` and ``livenessProbe`` of the container.

    Started: all workers are READY. Ready: at least one is. Alive: TorchServe's ping succeeds; it fails once the workers
    could not be restarted for maxRetryTimeoutInSec.
    """
    seconds = facts.startup_timeout + SECONDS_TO_START + (SECONDS_TO_INSTALL if facts.requirements else 0)
    timing = {"periodSeconds": INTERVAL, "timeoutSeconds": 2 * INTERVAL}
    return {
        "startupProbe": {
            "exec": {"command": ready_command(facts.name, count=facts.workers)},
            **timing,
            "failureThreshold": math.ceil(seconds / INTERVAL),
        },
        "readinessProbe": {"exec": {"command": ready_command(facts.name, count=1)}, **timing, "failureThreshold": 2},
        "livenessProbe": {
            "httpGet": {"path": "/ping", "port": INFERENCE_PORT},
            "periodSeconds": 2 * INTERVAL,
            "timeoutSeconds": 2 * INTERVAL,
            "failureThreshold": 3,
        },
    }


def ready_command(model: str, *, count: int) -> list[str]:
    """Return the command that exits with 0 if at least ``count`` workers of the model are READY."""
    return ["python", "-c", READY.format(port=MANAGEMENT_PORT, timeout=INTERVAL, model=model, count=count)]


def drain(facts: Facts) -> int:
    """Return the seconds for which a stopping pod keeps answering: two of the slowest batches, at least 15."""
    return max(MIN_DRAIN, math.ceil(2 * facts.slowest))


def lifecycle(facts: Facts) -> dict[str, Any]:
    """Return the container's ``lifecycle``: keep answering until no more requests arrive, then stop TorchServe."""
    command = f"sleep {drain(facts)}; torchserve --stop"
    return {"preStop": {"exec": {"command": ["sh", "-c", command]}}}
