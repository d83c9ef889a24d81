"""A fake clock for tests: send arrivals through a handler in batches, without a server and without waiting.

The batches are those that TorchServe would make; the handler really answers them, one batch after the other::

    replayed = replay(lambda batch: runner.predict(batch), ["a", "b", "c"], [0.0, 0.001, 0.5], Settings(batch_size=2))
    assert [len(batch) for batch in replayed.batches] == [2, 1]
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from tsbatch.simulation.batching_rules import Overhead, Settings
from tsbatch.simulation.service_time import ServiceTime
from tsbatch.simulation.simulator import SECOND, Simulated, simulate_handler

Request = TypeVar("Request")
Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Replayed(Generic[Answer]):
    """The result of a replay.

    Attributes:
        answers: one per request, in the order of the requests; None if the queue was full.
        batches: the indices of the requests in each batch, in the order of the batches.
        simulated: the simulated timing.
    """

    answers: Sequence[Answer | None]
    batches: Sequence[Sequence[int]]
    simulated: Simulated


def replay(
    handle: Callable[[list[Request]], Sequence[Answer]],
    requests: Sequence[Request],
    arrivals: Sequence[float],
    settings: Settings,
    service: ServiceTime | None = None,
    seed: int = 0,
) -> Replayed[Answer]:
    """Answer requests in the batches that TorchServe would make of their arrivals.

    Args:
        handle: answers a batch: ``HandlerRunner.predict``, ``handler.answer``, or any function.
        requests: the requests.
        arrivals: when each of them is sent, in seconds, ascending from 0.
        settings: of the model.
        service: the service time on the fake clock; by default the time that ``handle`` really takes.
        seed: of the service time's spread.

    Raises:
        ValueError: ``handle`` returned another number of answers than it got requests, or the numbers of requests and
            arrivals differ.
        UsageError: the arrivals do not ascend.
    """
    if len(requests) != len(arrivals):
        raise ValueError(
            f"{len(requests)} requests and {len(arrivals)} arrivals; expected one arrival for each request"
        )
    answers: list[Answer | None] = [None] * len(requests)
    batches: list[Sequence[int]] = []
    simulated_time = service.handler(len(requests), items=None, lengths=None, seed=seed) if service else None

    def handler(members: Sequence[int]) -> float:
        began = time.perf_counter()
        returned = handle([requests[member] for member in members])
        took = (time.perf_counter() - began) * SECOND
        for member, answer in zip(members, returned, strict=True):
            answers[member] = answer
        batches.append(members)
        return simulated_time(members) if simulated_time else took

    overhead = service.overhead if service else Overhead()
    simulated = simulate_handler(settings, np.asarray(arrivals, dtype=np.float64), handler, overhead)
    return Replayed(answers, batches, simulated)
