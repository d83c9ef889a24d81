"""TorchServe's batching once more, event by event, as its threads would do it: the oracle of the simulator.

Each worker is a thread that wants the lock, waits for its first request, waits for more, or is busy. Nothing here is
clever, so that it can be read beside wlm/Model.java and wlm/WorkerThread.java.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field


@dataclass
class Worker:
    state: str = "wants lock"
    until: float = 0.0
    batch: list[int] = field(default_factory=list)
    begun: float = 0.0
    left: float = 0.0
    tick: int = 0
    deadline: float = math.inf


@dataclass
class Outcome:
    batches: list[tuple[list[int], float, float]] = field(default_factory=list)
    refused: list[int] = field(default_factory=list)


def serve(settings, arrivals, took, overhead):
    """Members, begin and hand-over of each batch, and who was refused; times in ms."""
    outcome, queue = Outcome(), []
    workers = [Worker() for _ in range(settings.workers)]
    pending = list(enumerate(arrivals))
    now = 0.0
    while True:
        while pending and pending[0][1] <= now:
            number, _ = pending.pop(0)
            if len(queue) >= settings.queue_size:
                outcome.refused.append(number)
            else:
                queue.append(number)
                step(settings, workers, queue, now, outcome, took, overhead)
        step(settings, workers, queue, now, outcome, took, overhead)
        events = [time for _, time in pending[:1]]
        events += [one.until for one in workers if one.state == "busy"]
        events += [one.deadline for one in workers if one.state == "waits for more"]
        if not pending and not queue and all(one.state in ("wants lock", "waits for first") for one in workers):
            return outcome
        now = min(events)


def step(settings, workers, queue, now, outcome, took, overhead):
    """Let every thread do all that it can do now."""
    moved = True
    while moved:
        moved = False
        for worker in workers:
            if worker.state == "busy" and worker.until <= now:
                worker.state = "wants lock"
                moved = True
        held = any(worker.state.startswith("waits") for worker in workers)
        for worker in workers:
            if worker.state == "wants lock" and not held:
                worker.state, held, moved = "waits for first", True, True
            if worker.state == "waits for first" and queue:
                worker.batch, worker.begun = [queue.pop(0)], now
                worker.left, worker.tick = max(0, settings.max_batch_delay), math.floor(now)
                worker.deadline = now + worker.left
                worker.state, moved = "waits for more", True
            if worker.state == "waits for more":
                moved = more(settings, worker, queue, now, outcome, took, overhead) or moved


def more(settings, worker, queue, now, outcome, took, overhead):
    full = len(worker.batch) == settings.batch_size
    if queue and not full:
        worker.batch.append(queue.pop(0))
        worker.left -= math.floor(now) - worker.tick
        worker.tick = math.floor(now)
        worker.deadline = now + worker.left
        full = worker.left <= 0
        if not full and len(worker.batch) < settings.batch_size:
            return True
        full = True
    if not full and now < worker.deadline:
        return False
    outcome.batches.append((worker.batch, worker.begun, now))
    worker.state = "busy"
    worker.until = now + took(worker.batch) + overhead.batch + overhead.request * len(worker.batch)
    return True
