"""Simulate a TorchServe: from settings, arrivals and a service time to the timing of every request.

The table of requests is the same as that of the load test and the log reader, so everything that reads it (figures,
diagnosis, reports) reads a simulation too. Not simulated: timeouts, workers that die, and a frontend that is short of
cores.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tsbatch.bench.request_table import Column, Samples
from tsbatch.diagnosis.batch_table import BatchTable
from tsbatch.errors import UsageError
from tsbatch.simulation.batching_rules import Batches, Handler, Overhead, Settings, form_batches
from tsbatch.simulation.service_time import ServiceTime
from tsbatch.simulation.workload import Clients

GOOD, REFUSED = 200.0, 503.0
SECOND: Final = 1000.0
"""In ms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """The requests after a simulation.

    Attributes:
        samples: one row per request, in the order of arrival; ``sent`` counts from the start of the simulation. A
            refused request has status 503 and no breakdown.
        batches: the batches, by hand-over.
        seconds: from the first arrival to the last answer.
    """

    samples: Samples
    batches: BatchTable
    seconds: float

    @property
    def refused(self) -> float:
        """Share of refused requests, 0 to 1."""
        return 1 - float(self.samples.ok.mean()) if len(self.samples) else 0.0

    @property
    def rate(self) -> float:
        """Successful requests per second."""
        return float(self.samples.ok.sum()) / self.seconds if self.seconds else 0.0

    def latency(self, share: float) -> float:
        """Return a quantile of the latency of successful requests in ms; 0.99 is P99. NaN if there are none."""
        good = self.samples.latency[self.samples.ok]
        return float(np.quantile(good, share)) if len(good) else float("nan")


def simulate(
    settings: Settings,
    arrivals: Column | Clients,
    service: ServiceTime,
    *,
    items: Column | None = None,
    lengths: Column | None = None,
    seed: int = 0,
) -> Simulated:
    """Simulate one model.

    Args:
        settings: of the model.
        arrivals: when requests are sent, in seconds, ascending, shape (n,); or the clients of a closed loop.
        service: the service time.
        items: of each request, shape (n,); by default drawn from the measured ones.
        lengths: bytes of each request, shape (n,); likewise.
        seed: of the service time's spread.

    Raises:
        UsageError: there are no requests, or the times do not ascend from 0.
    """
    count = arrivals.requests if isinstance(arrivals, Clients) else len(arrivals)
    items = service.draw_items(count, seed) if items is None else items
    lengths = service.draw_lengths(count, seed) if lengths is None else lengths
    handler = service.handler(count, items=items, lengths=lengths, seed=seed)
    return simulate_handler(settings, arrivals, handler, service.overhead, items=items)


def simulate_handler(
    settings: Settings,
    arrivals: Column | Clients,
    handler: Handler,
    overhead: Overhead,
    *,
    items: Column | None = None,
) -> Simulated:
    """Simulate one model whose handler is any function of a batch; see :func:`simulate`."""
    if isinstance(arrivals, Clients):
        batches = form_batches(settings, arrivals.start(overhead.frontend), handler, overhead, arrivals)
    else:
        if len(arrivals) and (arrivals[0] < 0 or (np.diff(arrivals) < 0).any()):
            raise UsageError("the arrivals must ascend from 0")
        batches = form_batches(settings, (arrivals * SECOND).tolist(), handler, overhead)
    if not batches.arrivals:
        raise UsageError("there are no requests to simulate")
    return _tabulate(settings, batches, overhead, items)


def _tabulate(settings: Settings, batches: Batches, overhead: Overhead, items: Column | None) -> Simulated:
    arrived = np.array(batches.arrivals)
    admitted = np.array(batches.admitted, dtype=np.intp)
    size = np.array(batches.size, dtype=np.intp)
    begun, handed, took = (np.array(one) for one in (batches.begun, batches.handed, batches.took))
    of_batch = np.repeat(np.arange(len(size)), size)
    position = np.arange(len(admitted)) - np.repeat(np.cumsum(size) - size, size)
    came = arrived[admitted]
    answered = (handed + overhead.batch + took)[of_batch] + overhead.request * (position + 1)
    columns = {
        "latency": answered - came + overhead.frontend,
        "status": np.full(len(admitted), GOOD),
        "queue": np.maximum(0.0, begun[of_batch] - came),
        "assembly": handed[of_batch] - np.maximum(begun[of_batch], came),
        "handler": took[of_batch],
        "batch": size[of_batch].astype(np.float64),
        "capacity": np.full(len(admitted), float(settings.batch_size)),
        "worker": np.array(batches.worker, dtype=np.float64)[of_batch],
    }
    refused = {"latency": overhead.frontend, "status": REFUSED}
    samples = Samples(
        sent=arrived / SECOND,
        items=np.ones(len(arrived)) if items is None else items[: len(arrived)],
        **{name: _spread(values, admitted, len(arrived), refused.get(name)) for name, values in columns.items()},
    )
    end = max(float(answered.max()) + overhead.frontend if len(answered) else 0.0, float(arrived[-1]))
    table = BatchTable(
        size=size.astype(np.float64),
        handed_over=handed,
        held=handed - begun,
        handler=took,
        worker=np.array(batches.worker, dtype=np.float64),
    )
    return Simulated(samples=samples, batches=table, seconds=(end - float(arrived[0])) / SECOND)


def _spread(values: Column, rows: NDArray[np.intp], count: int, elsewhere: float | None) -> Column:
    column = np.full(count, np.nan if elsewhere is None else elsewhere)
    column[rows] = values
    return column
