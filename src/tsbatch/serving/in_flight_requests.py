"""What a model's workers are computing right now, from TorchServe's log.

A request is in its version's queue until a worker takes it, and ``jobQueueStatus`` counts it; from then on nothing in
the management API does. The log has a line when a batch goes to a worker's process and another when the answer is back
(frontend/server/.../wlm/WorkerThread.java).
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from tsbatch.errors import ServerError
from tsbatch.serving.management_client import Management, ModelVersion
from tsbatch.serving.worker_log import LINE, SERVER_LOG, WORKER, Tail

SENT = "Flushing req.cmd "
BACK = "Backend response time:"
ACCESS_LOG = "access_log.log"
SECONDS_BETWEEN_LOOKS = 0.1
SECONDS_STILL = 1.0
"""How long nothing may move, beyond maxBatchDelay, before a version counts as drained: a request that found its version
an instant before the default changed has not reached the queue yet, and one that waits for its batch to fill is neither
in the queue nor in the log."""

SECONDS_BEYOND = 30
"""Given to the last batch beyond responseTimeout, at which TorchServe ends it itself."""


class InFlight:
    """Which workers of one version are computing.

    Args:
        log_dir: the server's log folder.
        who: the model's version.
    """

    def __init__(self, log_dir: Path, who: ModelVersion) -> None:
        self._tail = Tail(log_dir / SERVER_LOG)
        self._name = f"{who.name}_{who.version}"
        self._busy: dict[str, bool] = {}

    def busy(self, ids: Collection[str] | None = None) -> int | None:
        """How many are computing; None where the log does not say, as when its level was raised.

        Args:
            ids: of the workers that there are, as the server tells them: one that was killed and is gone since never
                says that it is done. All that the log knows when left out.
        """
        for line in self._tail.lines():
            match = LINE.match(line)
            worker = WORKER.match(match["thread"]) if match else None
            if match is None or worker is None or worker["model"] != self._name:
                continue
            if match["text"].startswith((SENT, BACK)):
                self._busy[worker["worker"]] = match["text"].startswith(SENT)
        there = None if ids is None else {f"W-{one}-{self._name}" for one in ids}
        computing = sum(busy for worker, busy in self._busy.items() if there is None or worker in there)
        return computing if self._busy else None


def drain(management: Management, who: ModelVersion, log_dir: Path, tell: Callable[[str], None]) -> None:
    """Wait until a version that gets no new requests has answered all it had.

    Raises:
        ServerError: one batch takes longer than responseTimeout lets it.
    """
    flight = InFlight(log_dir, who)
    last, moved = None, time.monotonic()
    while True:
        model = management.describe(who.name, who.version)
        state = (waiting(model), flight.busy([worker["id"] for worker in model["workers"]]))
        if state != last:
            last, moved = state, time.monotonic()
            tell(f"draining {who}: {state[0]} waiting, {'?' if state[1] is None else state[1]} batches computing")
        still, patience = time.monotonic() - moved, model["responseTimeout"] + SECONDS_BEYOND
        if not model["workers"] or (state == (0, 0) and still > SECONDS_STILL + model["maxBatchDelay"] / 1000):
            return
        if state == (0, None) and still > model["responseTimeout"]:
            return  # whatever was computing has been answered or ended by now
        if still > patience:
            left = f"{last[0]} requests waiting, {'?' if last[1] is None else last[1]} batches computing"
            raise ServerError(f"{who} does not get done: {left}, nothing moved for {patience} s")
        time.sleep(SECONDS_BETWEEN_LOOKS)


def waiting(model: Mapping[str, Any]) -> int:
    """Requests in a described version's queue."""
    return int(model["jobQueueStatus"]["pendingRequests"])


def pinned(log_dir: Path, who: ModelVersion) -> int:
    """How many requests of the access log's present file named this version."""
    path = re.escape(f"{who.name}/{who.version}")
    asked = re.compile(rf'"\w+ /(?:predictions|explanations|v1/models|v2/models)/{path}[/:? "]')
    return sum(asked.search(line) is not None for line in Tail(log_dir / ACCESS_LOG).lines())
