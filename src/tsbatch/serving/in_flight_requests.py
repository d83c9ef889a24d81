"""Drain a model's version: wait for its queue and for the batches that its workers are computing.

The management API counts a request only while it is in the queue (``jobQueueStatus``). When a worker has taken it, the
log is the only source: it has one line when a batch is sent to a worker's process and another when the result is back
(frontend/server/.../wlm/WorkerThread.java).
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection
from pathlib import Path

from tsbatch.errors import ServerError
from tsbatch.serving.management_client import Management, ModelVersion
from tsbatch.serving.worker_log import LINE, SERVER_LOG, WORKER, Tail

SENT = "Flushing req.cmd "
RECEIVED = "Backend response time:"
ACCESS_LOG = "access_log.log"
SECONDS_BETWEEN_LOOKS = 0.1
SECONDS_IDLE = 1.0
"""How long, beyond maxBatchDelay, a version must be idle to count as drained: a request routed just before the default
version changed may not have reached the queue, and one that waits for its batch to fill is neither in the queue nor in
the log."""

SECONDS_OVER_TIMEOUT = 30
"""Time for the last batch beyond responseTimeout, at which TorchServe aborts it."""


class InFlight:
    """The workers of one version that are computing a batch.

    Args:
        log_dir: the server's log folder.
        model: the model's version.
    """

    def __init__(self, log_dir: Path, model: ModelVersion) -> None:
        self._tail = Tail(log_dir / SERVER_LOG)
        self._name = f"{model.name}_{model.version}"
        self._busy: dict[str, bool] = {}

    def busy(self, ids: Collection[str] | None = None) -> int | None:
        """Count the workers that are computing; None if the log does not show it, as with a raised log level.

        Args:
            ids: ids of the existing workers, as in the server's description, because the log never reports the end of a
                killed worker's batch; None for all workers in the log.
        """
        for line in self._tail.lines():
            match = LINE.match(line)
            worker = WORKER.fullmatch(match["thread"]) if match else None
            if match is None or worker is None or worker["model"] != self._name:
                continue
            if match["text"].startswith((SENT, RECEIVED)):
                self._busy[worker["worker"]] = match["text"].startswith(SENT)
        existing = None if ids is None else {f"W-{id_}-{self._name}" for id_ in ids}
        computing = sum(busy for worker, busy in self._busy.items() if existing is None or worker in existing)
        return computing if self._busy else None


def drain(management: Management, version: ModelVersion, log_dir: Path, tell: Callable[[str], None]) -> None:
    """Wait until a version that gets no new requests has answered the ones it has.

    Raises:
        ServerError: a batch takes longer than responseTimeout allows.
    """
    in_flight = InFlight(log_dir, version)
    last, changed = None, time.monotonic()
    while True:
        model = management.describe(version.name, version.version)
        waiting = int(model["jobQueueStatus"]["pendingRequests"])
        busy = in_flight.busy([worker["id"] for worker in model["workers"]])
        state = f"{waiting} requests waiting, {'?' if busy is None else busy} batches computing"
        if state != last:
            last, changed = state, time.monotonic()
            tell(f"draining {version}: {state}")
        idle, limit = time.monotonic() - changed, model["responseTimeout"] + SECONDS_OVER_TIMEOUT
        if not model["workers"] or ((waiting, busy) == (0, 0) and idle > SECONDS_IDLE + model["maxBatchDelay"] / 1000):
            return
        if (waiting, busy) == (0, None) and idle > model["responseTimeout"]:
            return  # any batch in flight has been answered or aborted by now
        if idle > limit:
            raise ServerError(f"{version} does not finish its requests: {state}, no progress for {limit} s")
        time.sleep(SECONDS_BETWEEN_LOOKS)


def pinned(log_dir: Path, version: ModelVersion) -> int:
    """Count the requests in the current access log that name this version."""
    path = re.escape(f"{version.name}/{version.version}")
    named = re.compile(rf'"\w+ /(?:predictions|explanations|v1/models|v2/models)/{path}[/:? "]')
    return sum(named.search(line) is not None for line in Tail(log_dir / ACCESS_LOG).lines())
