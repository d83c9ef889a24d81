"""Tables of requests with known answers, built batch by batch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tsbatch.bench.request_table import Samples


class Traffic:
    """Requests to one model, added batch by batch; all times in ms from 0."""

    def __init__(self) -> None:
        self.rows: list[dict[str, float]] = []

    def batch(
        self,
        arrivals: Sequence[float],
        *,
        begun: float,
        left: float,
        handler: float,
        outside: float = 1,
        worker: int = 0,
    ) -> None:
        """A batch that a worker began and that left for the handler at these times."""
        for arrival in arrivals:
            queue, assembly = max(0.0, begun - arrival), left - max(begun, arrival)
            self.rows.append(
                {
                    "sent": arrival / 1000,
                    "latency": queue + assembly + handler + outside,
                    "status": 200,
                    "queue": queue,
                    "assembly": assembly,
                    "handler": handler,
                    "batch": len(arrivals),
                    "worker": worker,
                }
            )

    def refused(self, at: float) -> None:
        """A 503 from a full queue."""
        self.rows.append({"sent": at / 1000, "latency": 1, "status": 503})

    def samples(self) -> Samples:
        """All of them, ordered by arrival."""
        rows = sorted(self.rows, key=lambda row: row["sent"])
        names = {name for row in rows for name in row}
        return Samples(**{name: np.array([row.get(name, np.nan) for row in rows]) for name in names})


def lonely(*, gap: float, delay: float, handler: float, count: int = 40) -> Samples:
    """One request after another, each ``gap`` after the last was answered."""
    traffic, at = Traffic(), 0.0
    for _ in range(count):
        traffic.batch([at], begun=at, left=at + delay, handler=handler)
        at += delay + handler + 1 + gap
    return traffic.samples()


def queueing(*, clients: int, size: int, handler: float, workers: int = 1, rounds: int = 40) -> Samples:
    """A closed loop of more clients than fit into the batches: each waits for its turn, and none for company."""
    traffic = Traffic()
    turns = clients // size
    for turn in range(rounds):
        begun = handler * (turn // workers)
        arrival = max(0.0, handler * ((turn - turns) // workers + 1)) if turn >= turns else 0.0
        arrivals = [arrival + member / 100 for member in range(size)]
        traffic.batch(
            arrivals,
            begun=max(begun, arrivals[0]),
            left=max(begun, arrivals[-1]),
            handler=handler,
            worker=turn % workers,
        )
    return traffic.samples()


def assembling(*, every: float, delay: float, handler: float, count: int = 60) -> Samples:
    """A request ``every`` so often; batches leave when the delay after their first one is over."""
    traffic, at = Traffic(), 0.0
    for number in range(count):
        members = [at + place * every for place in range(int(delay / every) + 1)]
        traffic.batch(members, begun=at, left=at + delay, handler=handler + len(members), worker=number % 2)
        at = members[-1] + every
    return traffic.samples()
