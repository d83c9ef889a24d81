"""When a pod is started, when it may get requests, when it must be started again, and how it ends.

TorchServe's ``/ping`` says Healthy while workers still load, and for 300 s while they cannot (http/.../ApiUtils.java).
Only the management API tells which workers are READY, in the body of its answer, so two of the probes run a few lines
of Python in the pod. They speak to 127.0.0.1: the management API is open to nobody else.
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
sys.exit(sum(worker["status"] == "READY" for worker in workers) < {least})
"""
"""Ends with 0 when that many workers are READY; with anything else when not, or when TorchServe does not answer."""

SECONDS = 5
"""Between two looks, and for each; a pod short of CPU needs a second to start Python."""

TO_START = 150
"""Seconds for Java, and the 120 s that TorchServe gives each worker's Python to come up (WorkerLifeCycle.java)."""

TO_INSTALL = 600
"""Seconds more where TorchServe installs requirements before it opens its ports."""

LEAST_DRAIN = 15
"""Seconds, so that load balancers have heard of the pod's end before its ports are closed."""

TO_END = 15
"""Seconds from then until Kubernetes may kill."""


def probes(facts: Facts) -> dict[str, Any]:
    """``startupProbe``, ``readinessProbe`` and ``livenessProbe`` of the container.

    Started: all workers are READY. Ready: one is. Alive: TorchServe says so, which it stops doing when the workers
    could not be started again for maxRetryTimeoutInSec.
    """
    seconds = facts.startup_timeout + TO_START + (TO_INSTALL if facts.requirements else 0)
    timing = {"periodSeconds": SECONDS, "timeoutSeconds": 2 * SECONDS}
    return {
        "startupProbe": {
            "exec": {"command": ready(facts.name, least=facts.workers)},
            **timing,
            "failureThreshold": math.ceil(seconds / SECONDS),
        },
        "readinessProbe": {"exec": {"command": ready(facts.name, least=1)}, **timing, "failureThreshold": 2},
        "livenessProbe": {
            "httpGet": {"path": "/ping", "port": INFERENCE_PORT},
            "periodSeconds": 2 * SECONDS,
            "timeoutSeconds": 2 * SECONDS,
            "failureThreshold": 3,
        },
    }


def ready(model: str, *, least: int) -> list[str]:
    """The command that ends with 0 when at least so many workers of the model are READY."""
    return ["python", "-c", READY.format(port=MANAGEMENT_PORT, timeout=SECONDS, model=model, least=least)]


def drain(facts: Facts) -> int:
    """Seconds in which a pod that ends answers what it has: two of the slowest batches, and at least 15."""
    return max(LEAST_DRAIN, math.ceil(2 * facts.slowest))


def ending(facts: Facts) -> dict[str, Any]:
    """``lifecycle`` of the container: go on answering while no new requests come, then stop TorchServe."""
    command = f"sleep {drain(facts)}; torchserve --stop"
    return {"preStop": {"exec": {"command": ["sh", "-c", command]}}}
