"""A capacity plan: settings, number of machines, their reserve, and what is measured or extrapolated."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

from tsbatch.simulation.planner import Candidate, Goal, Planner, machines_for
from tsbatch.simulation.service_time import ServiceTime

SCHEMA: Final = 1
Unit = Literal["machine", "replica"]
"""The unit of the plan: a machine with workers that share a queue, or a replica of one worker (a pod, with KServe)."""
CURVE: Final = (0.25, 0.5, 0.75, 0.9, 1.0, 1.1, 1.25, 1.5)
"""Points of the curve, as shares of the planned rate."""


@dataclass(frozen=True, slots=True)
class Point:
    """The figures of several machines at a rate.

    Attributes:
        rate: of all machines together, in requests/s.
        machines: number of machines that share it.
        p50, p99: latency in ms; NaN without answers.
        refused: share of refused requests, 0 to 1.
        batch: mean batch size.
        needed: machines that the goal needs at that rate, headroom included.
    """

    rate: float
    machines: int
    p50: float
    p99: float
    refused: float
    batch: float
    needed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The machines that a rate needs.

    Attributes:
        rate: the planned requests/s.
        goal: the goal that they meet.
        chosen: the settings of each machine.
        machines: number of machines.
        price: of one machine; None if not given.
        point: their figures at that rate.
        margin: additional load before the goal is missed, as a share.
        down: the figures with one machine down; None if there is only one.
        curve: the figures at other rates, and how many machines those need.
        others: the next best settings.
        measured, guessed: the basis of the plan, in sentences.
        unit: the unit of ``machines``.
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
        """The number with its unit, like ``3 machines``."""
        return f"{self.machines} {self.unit}{'s' * (self.machines > 1)}"

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        return {
            "rate": self.rate,
            "unit": self.unit,
            "goal": asdict(self.goal),
            "settings": self.chosen.settings.to_json(),
            "machines": self.machines,
            "cost": None if self.price is None else self.machines * self.price,
            "rate_of_machine": round(self.chosen.rate, 2),
            "at_rate": _plain(self.point),
            "margin": round(self.margin, 4),
            "one_down": None if self.down is None else _plain(self.down),
            "curve": [_plain(point) for point in self.curve],
            "others": [{**one.settings.to_json(), "rate_of_machine": round(one.rate, 2)} for one in self.others],
            "measured": list(self.measured),
            "extrapolated": list(self.guessed),
        }


def make_plan(planner: Planner, rate: float, *, price: float | None = None, unit: Unit = "machine") -> Plan:
    """Plan for a rate.

    Args:
        planner: the planner, with its services and its goal.
        rate: requests/s.
        price: of one machine.
        unit: the unit of the plan; the planner's limits must fit it.

    Raises:
        UsageError: no settings meet the goal.
    """
    chosen, *others = planner.candidates(rate)

    def needed(at: float) -> int:
        return int(machines_for(at * (1 + planner.goal.headroom), chosen.rate))

    def point(at: float, machines: int) -> Point:
        simulated = planner.simulate(chosen, at / machines)
        sizes = simulated.batches.size
        return Point(
            rate=at,
            machines=machines,
            p50=simulated.latency(0.5),
            p99=simulated.latency(0.99),
            refused=simulated.refused,
            batch=float(sizes.mean()) if len(sizes) else 0.0,
            needed=needed(at),
        )

    machines = needed(rate)
    settings = chosen.settings
    measured, guessed = grounds_of_machine(planner.services, chosen.service, settings.workers, settings.batch_size)
    several = f"several {unit}s: each is like this one and gets a random share of the requests"
    if unit == "replica":
        several += ", while Ray's router takes the shorter of two queues; each has its cores to itself"
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
        guessed=[*guessed, several],
        unit=unit,
    )


def grounds_of_machine(
    services: Sequence[ServiceTime], service: ServiceTime, workers: int, batch_size: int
) -> tuple[list[str], list[str]]:
    """Return what the figures of one machine rest on: what was measured, and what is extrapolated."""
    if not service.source:
        return [], [
            "the service time, for any number of workers, and TorchServe's own time are assumed: nothing was measured"
        ]
    overhead, largest = service.overhead, service.largest
    own = f"{overhead.batch:g} per batch, {overhead.request:g} per request, {overhead.frontend:g} in the frontend"
    measured = [
        f"batches of {service.sizes[0]:g} to {largest:g} items: {service.source}",
        f"TorchServe's own ms: {own}",
    ]
    guessed = []
    if batch_size * max(service.items) > largest:
        guessed.append(f"batches of more than {largest:g} items: on the line through the two largest")
    machine = service.machine
    if workers in {one.machine.workers for one in services}:
        measured.append(f"{workers} concurrent worker{'s' * (workers > 1)}")
    elif machine.worker_cores and machine.cores:
        want = f"each needs {machine.worker_cores:.2f} of the machine's {machine.cores} cores"
        guessed.append(f"{workers} workers: {want}, and batches slow down if there are too few")
    else:
        guessed.append(f"{workers} workers: assumed not to slow each other down")
    return measured, guessed


def _plain(point: Point) -> dict[str, Any]:
    return {
        name: None if isinstance(value, float) and math.isnan(value) else round(value, 4)
        for name, value in asdict(point).items()
    }
