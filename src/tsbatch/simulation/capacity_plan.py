"""A plan: settings, number of machines, what they keep in reserve, and what is known and what is guessed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

from tsbatch.simulation.planner import Candidate, Goal, Planner, machines_for
from tsbatch.simulation.service_time import ServiceTime
from tsbatch.simulation.simulator import Simulated

SCHEMA: Final = 1
Unit = Literal["machine", "replica"]
"""What is counted: a machine with workers that share a queue, or a replica of one worker (a pod, with KServe)."""
CURVE: Final = (0.25, 0.5, 0.75, 0.9, 1.0, 1.1, 1.25, 1.5)
"""Shares of the planned rate for which the curve is drawn."""


@dataclass(frozen=True, slots=True)
class Point:
    """What so many machines do at a rate.

    Attributes:
        rate: of all machines, requests a second.
        machines: that share it.
        p50, p99: latency in ms; NaN when nobody was answered.
        refused: share of the requests that find the queue full, 0 to 1.
        batch: mean size of a batch.
        needed: machines that the goal would need at that rate, headroom included.
    """

    rate: float
    machines: int
    p50: float
    p99: float
    refused: float
    batch: float
    needed: int

    @classmethod
    def of(cls, simulated: Simulated, rate: float, machines: int, needed: int) -> Point:
        """From the simulation of one of the machines."""
        sizes = simulated.batches.size
        return cls(
            rate=rate,
            machines=machines,
            p50=simulated.latency(0.5),
            p99=simulated.latency(0.99),
            refused=simulated.refused,
            batch=float(sizes.mean()) if len(sizes) else 0.0,
            needed=needed,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is needed for a rate.

    Attributes:
        rate: requests a second, planned for.
        goal: what is kept.
        chosen: the settings of each machine.
        machines: how many.
        price: of a machine; None when nobody said.
        point: what they do at that rate.
        margin: how much more they stand before the goal is missed, as a share.
        down: what is left when one of them is down; None when there is only one.
        curve: what they do at other rates, and how many machines those would need.
        others: the next best settings.
        measured, guessed: what the plan rests on, in sentences.
        unit: what ``machines`` counts.
    """

    rate: float
    goal: Goal
    chosen: Candidate
    machines: int
    price: float | None
    point: Point
    margin: float
    down: Point | None
    curve: Sequence[Point]
    others: Sequence[Candidate]
    measured: Sequence[str]
    guessed: Sequence[str]
    unit: Unit = "machine"

    @property
    def counted(self) -> str:
        """As ``3 machines``."""
        return f"{self.machines} {self.unit}{'s' * (self.machines > 1)}"

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return {
            "rate": self.rate,
            "unit": self.unit,
            "goal": asdict(self.goal),
            "settings": settings_of(self.chosen),
            "machines": self.machines,
            "cost": None if self.price is None else self.machines * self.price,
            "rate_of_machine": round(self.chosen.rate, 2),
            "at_rate": _plain(self.point),
            "margin": round(self.margin, 4),
            "one_down": None if self.down is None else _plain(self.down),
            "curve": [_plain(point) for point in self.curve],
            "others": [{**settings_of(one), "rate_of_machine": round(one.rate, 2)} for one in self.others],
            "measured": list(self.measured),
            "extrapolated": list(self.guessed),
        }


def settings_of(candidate: Candidate) -> dict[str, int]:
    """Its settings by TorchServe's names."""
    settings = candidate.settings
    return {
        "workers": settings.workers,
        "batchSize": settings.batch_size,
        "maxBatchDelay": settings.max_batch_delay,
        "jobQueueSize": settings.queue_size,
    }


def make_plan(planner: Planner, rate: float, *, price: float | None = None, unit: Unit = "machine") -> Plan:
    """Plan for a rate.

    Args:
        planner: with its services and its goal.
        rate: requests a second.
        price: of a machine.
        unit: what is counted; the planner's limits must fit it.

    Raises:
        UsageError: no settings keep the goal.
    """
    chosen, *others = planner.candidates(rate)

    def needed(at: float) -> int:
        return int(machines_for(at * (1 + planner.goal.headroom), chosen.rate))

    def point(at: float, machines: int) -> Point:
        return Point.of(planner.simulate(chosen, at / machines), at, machines, needed(at))

    machines = needed(rate)
    measured, guessed = grounds(planner.services, chosen, unit)
    recorded = [f"arrivals: {planner.stream.origin}"] if planner.stream.origin else []
    return Plan(
        rate=rate,
        goal=planner.goal,
        chosen=chosen,
        machines=machines,
        price=price,
        point=point(rate, machines),
        margin=chosen.rate * machines / rate - 1,
        down=point(rate, machines - 1) if machines > 1 else None,
        curve=[point(rate * share, machines) for share in CURVE],
        others=others,
        measured=[*recorded, *measured],
        guessed=guessed,
        unit=unit,
    )


def grounds(services: Sequence[ServiceTime], chosen: Candidate, unit: Unit = "machine") -> tuple[list[str], list[str]]:
    """What a plan with these settings rests on: what was measured, and what is extrapolated from it."""
    settings = chosen.settings
    measured, guessed = grounds_of_machine(services, chosen.service, settings.workers, settings.batch_size)
    several = f"several {unit}s: each is like this one and gets a random share of the requests"
    if unit == "replica":
        several += ", where Ray's router looks at two queues and takes the shorter; each has its cores to itself"
    return measured, [*guessed, several]


def grounds_of_machine(
    services: Sequence[ServiceTime], service: ServiceTime, workers: int, batch_size: int
) -> tuple[list[str], list[str]]:
    """The same of one machine."""
    if not service.source:
        return [], [
            "the service time, for any number of workers, and TorchServe's overhead are as given: nothing was measured"
        ]
    overhead, largest = service.overhead, service.largest
    measured = [
        f"batches of {service.sizes[0]:g} to {largest:g} items: {service.source}",
        f"TorchServe's ms: {overhead.batch:g} a batch, {overhead.request:g} a request, {overhead.frontend:g} outside",
    ]
    guessed = []
    if batch_size * max(service.items) > largest:
        guessed.append(f"batches of more than {largest:g} items: the line through the two largest goes on")
    machine = service.machine
    if workers in {one.machine.workers for one in services}:
        measured.append(f"{workers} worker{'s' * (workers > 1)} at once")
    elif machine.worker_cores and machine.cores:
        want = f"each wants {machine.worker_cores:.2f} of the machine's {machine.cores} cores"
        guessed.append(f"{workers} workers: {want}, and a batch takes longer where those are missing")
    else:
        guessed.append(f"{workers} workers: they do not slow each other down")
    return measured, guessed


def _plain(point: Point) -> dict[str, Any]:
    return {
        name: None if isinstance(value, float) and math.isnan(value) else round(value, 4)
        for name, value in asdict(point).items()
    }
