"""Run a load test: all steps and repeats, with the server watched meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from tsbatch.bench.generator_process import generate
from tsbatch.bench.load_generator import Load
from tsbatch.bench.padding_waste import WasteLog
from tsbatch.bench.request_bodies import Body
from tsbatch.bench.request_log import Progress
from tsbatch.bench.resource_monitor import ResourceMonitor
from tsbatch.bench.result_file import BenchResult, Run
from tsbatch.bench.send_times import Arrivals, Kind
from tsbatch.bench.summary import combine, summarize
from tsbatch.bench.target import Target, environment
from tsbatch.errors import UsageError

PLAN_KEYS = ("seconds", "requests", "warm_up", "repeat", "timeout", "limit", "seed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The steps of a load test and how they are measured.

    Attributes:
        clients: steps of a closed loop, each a number of clients; or
        rates: steps of an open loop, each in requests/s; or
        trace: arrival times of a single open-loop step.
        arrivals: arrival process of an open loop.
        seconds: measured duration of each step; or
        requests: number of measured requests of each step.
        warm_up: seconds before each step that are not measured.
        repeat: how often all steps are run.
        timeout: seconds to wait for an answer.
        connections: maximum number of open connections in an open loop.
        limit: latency limit of the goodput in ms.
        seed: seed of random arrivals.
        headers: additional request headers.
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
        """Return a JSON object without the headers, which may hold secrets."""
        closed = bool(self.clients)
        return {
            "loop": "closed" if closed else "open",
            "arrivals": None if closed else "trace" if self.trace else self.arrivals,
            "steps": [*self.clients, *self.rates],
            **{key: getattr(self, key) for key in PLAN_KEYS},
        }

    def steps(self, repetition: int) -> list[tuple[float | None, str, Arrivals | None]]:
        """Return number, title and arrivals of each step; each repetition has other random arrivals."""
        if self.trace is not None:
            return [(None, "trace", self.trace)]
        closed = [(float(number), f"{number} client{'s' * (number > 1)}", None) for number in self.clients]
        seed = self.seed + repetition
        return [*closed, *((rate, f"{rate:g} requests/s", Arrivals(self.arrivals, rate, seed)) for rate in self.rates)]


def bench(
    target: Target,
    bodies: Sequence[Body],
    plan: Plan,
    on_progress: Callable[[str, Progress], None] | None = None,
    earlier: BenchResult | None = None,
) -> BenchResult:
    """Load-test a target.

    Args:
        target: the target.
        bodies: the request bodies.
        plan: the steps and how to measure them.
        on_progress: called twice a second with the title of the current step.
        earlier: a result whose runs are put first; its target and load must be the same.

    Raises:
        ServerError: the server is unreachable, or the first requests all fail.
        UsageError: the server rejects the first requests, or ``earlier`` has another target or load.
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
        for number, name, arrivals in plan.steps(done + turn):
            title = f"{name}, run {turn + 1} of {plan.repeat}" if plan.repeat > 1 else name
            clients = int(number) if arrivals is None and number else None
            step = replace(load, clients=clients, arrivals=arrivals)
            runs.append(run_once(target, step, plan, number, partial(on_progress, title) if on_progress else None))
    load_plan = {**plan.to_json(), "repeat": done + plan.repeat}
    result = BenchResult(target=target.to_json(), plan=load_plan, environment=environment(), runs=runs)
    return replace(result, summary=[combine(number, found) for number, found in result.steps().items()])


def run_once(
    target: Target, load: Load, plan: Plan, number: float | None, on_progress: Callable[[Progress], None] | None = None
) -> Run:
    """Run one step once and watch the server's processes from the end of the warm-up."""
    monitor, waste = ResourceMonitor(target.pids), WasteLog(target.log_dir, target.model)
    watching = False

    def follow(progress: Progress) -> None:
        nonlocal watching
        if progress.warm and not watching:
            watching = True
            monitor.begin()
            waste.begin()
        if on_progress:
            on_progress(progress)

    run = generate(load, follow, monitor.sample)
    run = replace(run, step=number, workers=monitor.end(), padding_waste=waste.end() if watching else None)
    return replace(run, summary=summarize(run, limit=plan.limit, timeout=plan.timeout))


def _runs_before(earlier: BenchResult | None, target: Target, plan: Plan) -> list[Run]:
    if earlier is None:
        return []
    target_keys = ("model" if target.model else "address", "version", "settings")  # a restarted server has another port
    for name, before, now in (
        ("target", [earlier.target[key] for key in target_keys], [target.to_json()[key] for key in target_keys]),
        ("load", {**earlier.plan, "repeat": None}, {**plan.to_json(), "repeat": None}),
    ):
        if before != now:
            raise UsageError(f"--append: the {name} was {before} before and is {now} now; write to another file")
    return list(earlier.runs)
