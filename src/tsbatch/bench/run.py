"""A whole load test: every step as often as it is to be repeated, watched, and made into a result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from tsbatch.bench.generator_process import generate
from tsbatch.bench.load_generator import Load
from tsbatch.bench.padding_waste import WasteLog
from tsbatch.bench.request_bodies import Body
from tsbatch.bench.request_log import Progress
from tsbatch.bench.resource_monitor import Watch
from tsbatch.bench.result_file import BenchResult, Run
from tsbatch.bench.send_times import Arrivals, Kind
from tsbatch.bench.summary import combine, summarize
from tsbatch.bench.target import Target, environment
from tsbatch.errors import UsageError

Tell = Callable[[str, Progress], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How to load.

    Attributes:
        clients: steps of a closed loop, each a number of clients; or
        rates: steps of an open loop, each a number of requests a second; or
        trace: a single open loop.
        arrivals: how requests of an open loop follow each other.
        seconds: how long each step is measured; or
        requests: how many it sends.
        warm_up: seconds before each step that do not count.
        repeat: how often all steps are done.
        timeout: seconds to wait for an answer.
        connections: the most to have open at a time, in an open loop.
        limit: in ms; goodput counts good answers up to it.
        seed: of random arrivals.
    """

    clients: Sequence[int] = ()
    rates: Sequence[float] = ()
    trace: Arrivals | None = None
    arrivals: Kind = "poisson"
    seconds: float | None = 10.0
    requests: int | None = None
    warm_up: float = 5.0
    repeat: int = 1
    timeout: float = 30.0
    connections: int = 1000
    limit: float | None = None
    seed: int = 0
    headers: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """As a JSON object, without the headers, which may hold secrets."""
        closed = bool(self.clients)
        kind = None if closed else "trace" if self.trace else self.arrivals
        return {
            "loop": "closed" if closed else "open",
            "arrivals": kind,
            "steps": [*self.clients, *self.rates],
            "seconds": self.seconds,
            "requests": self.requests,
            "warm_up": self.warm_up,
            "repeat": self.repeat,
            "timeout": self.timeout,
            "limit": self.limit,
            "seed": self.seed,
        }

    def steps(self, repetition: int) -> list[tuple[float | None, str, Arrivals | None]]:
        """Each step: its number, what to call it, and its arrivals; other random ones each time."""
        if self.trace is not None:
            return [(None, "trace", self.trace)]
        closed = [(float(number), f"{number} client{'s' * (number > 1)}", None) for number in self.clients]
        seed = self.seed + repetition
        return [*closed, *((rate, f"{rate:g} requests/s", Arrivals(self.arrivals, rate, seed)) for rate in self.rates)]


def bench(
    target: Target,
    bodies: Sequence[Body],
    plan: Plan,
    tell: Tell | None = None,
    earlier: BenchResult | None = None,
) -> BenchResult:
    """Load a target as planned.

    Args:
        target: whom.
        bodies: what to send.
        plan: how.
        tell: told what is being done and how it goes, twice a second.
        earlier: a result whose runs come first; its target and load must be the same.

    Raises:
        ServerError: the server cannot be reached, or fails every request from the first.
        UsageError: it refuses every request from the first, or ``earlier`` is of something else.
    """
    runs = _runs_before(earlier, target, plan)
    done = len(runs) // len(plan.steps(0))
    load = Load(
        address=target.address,
        bodies=bodies,
        headers=plan.headers,
        tokens=target.tokens,
        warm_up=plan.warm_up,
        seconds=plan.seconds,
        requests=plan.requests,
        timeout=plan.timeout,
        connections=plan.connections,
    )
    for turn in range(plan.repeat):
        for number, what, arrivals in plan.steps(done + turn):
            title = f"{what}, run {turn + 1} of {plan.repeat}" if plan.repeat > 1 else what
            clients = int(number) if arrivals is None and number else None
            step = replace(load, clients=clients, arrivals=arrivals)
            runs.append(run_once(target, step, plan, number, partial(tell, title) if tell else None))
    shown = {**plan.to_json(), "repeat": done + plan.repeat}
    result = BenchResult(target=target.to_json(), plan=shown, environment=environment(), runs=runs)
    return replace(result, summary=[combine(number, found) for number, found in result.steps().items()])


def run_once(
    target: Target, load: Load, plan: Plan, number: float | None, tell: Callable[[Progress], None] | None = None
) -> Run:
    """One step, once, with the server's processes watched from the end of the warm-up."""
    watch, waste = Watch(target.pids), WasteLog(target.log_dir, target.model)
    watching = False

    def follow(progress: Progress) -> None:
        nonlocal watching
        if progress.warm and not watching:
            watching = True
            watch.begin()
            waste.begin()
        if tell:
            tell(progress)

    outcome = generate(load, follow, watch.look)
    run = Run(
        started=outcome.started,
        step=number,
        seconds=outcome.seconds,
        answered=outcome.answered,
        answered_items=outcome.answered_items,
        samples=outcome.samples,
        errors=outcome.errors,
        workers=watch.end(),
        generator=outcome.generator,
        warm_up=outcome.warm_up,
        padding_waste=waste.end() if watching else None,
    )
    return replace(run, summary=summarize(run, limit=plan.limit, timeout=plan.timeout))


def _runs_before(earlier: BenchResult | None, target: Target, plan: Plan) -> list[Run]:
    if earlier is None:
        return []
    what = "model" if target.model else "address"  # a server that starts again has another port
    for name, before, now in (
        ("target", _named(earlier.target, what), _named(target.to_json(), what)),
        ("load", {**earlier.plan, "repeat": None}, {**plan.to_json(), "repeat": None}),
    ):
        if before != now:
            raise UsageError(f"--append: the {name} was {before} before and is {now} now; write to another file")
    return list(earlier.runs)


def _named(target: Mapping[str, Any], what: str) -> list[Any]:
    return [target[key] for key in (what, "version", "settings")]
