"""A whole ``tsbatch tune``, from what somebody asked for to what is written down."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from tsbatch.archive.manifest import MANIFEST_NAME
from tsbatch.archive.model_config import CONFIG_NAME, DEFAULTS, dump
from tsbatch.archive.model_folder import walk
from tsbatch.archive.writer import sha256
from tsbatch.errors import UsageError
from tsbatch.operations.connection import reach
from tsbatch.operations.rollback import base_of
from tsbatch.report.html_page import save
from tsbatch.system.console import say
from tsbatch.tuning.history import History, Hypothesis
from tsbatch.tuning.journal import LOG, Journal, Log, Written
from tsbatch.tuning.live_server import LiveServer
from tsbatch.tuning.measurement import Bench, Script
from tsbatch.tuning.objective import Goal
from tsbatch.tuning.page import Listeners, Screen
from tsbatch.tuning.private_server import (
    TIMEOUTS,
    PrivateCopy,
    config_of,
    knobs_of,
    of_archive,
    of_running,
    properties_of,
    timeouts_of,
)
from tsbatch.tuning.ranking import Ranking
from tsbatch.tuning.recommendation import Seen
from tsbatch.tuning.sampler import Sampler
from tsbatch.tuning.search import Careful, Search
from tsbatch.tuning.search_space import Knobs, Space, space_around
from tsbatch.tuning.significance import START_RUNS
from tsbatch.tuning.tuner import Outcome, System, Tuning
from tsbatch.tuning.tuning_report import headline, report_of_tuning

REPORT: Final = "report.html"
ENDINGS: Final = (".mar", ".tar.gz")

Kind = Literal["careful", "tpe"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What somebody asked for.

    Attributes:
        model: a name on the running server, or an archive.
        data: the file that the bodies came from.
        goal: what is wanted.
        script: how each setting is measured.
        search: which search.
        live: on the server in use.
        budget: runs in all.
        folder: where journal, log and report go.
        fresh: begin anew, whatever is there.
        instance: the running server's name.
    """

    model: str
    data: Path
    goal: Goal
    script: Script
    search: Kind = "careful"
    live: bool = False
    budget: int
    folder: Path
    fresh: bool = False
    instance: str = "default"

    @property
    def archive(self) -> Path | None:
        """The archive that was named; None for a model on the server."""
        path = Path(self.model)
        # A folder may only be called like a model that runs.
        unpacked = (path / MANIFEST_NAME).is_file() and not self.live
        return path if self.model.endswith(ENDINGS) or unpacked else None

    def about(self, start: Knobs) -> dict[str, Any]:
        """What is tuned and how, by name."""
        script = self.script
        return {
            "model": self.model,
            "files": _digest_of(self.archive),
            "instance": None if self.archive else self.instance,
            "data": str(self.data),
            "bodies": _digest(f"{body.content_type}\n".encode() + body.content for body in script.bodies),
            "start": start.to_json(),
            "goal": self.goal.to_json(),
            "load": str(script.traffic),
            "arrivals": script.traffic.kind,
            "seconds": script.seconds,
            "warm_up": script.warm_up,
            "seed": script.traffic.seed,
            "search": self.search,
            "live": self.live,
            "budget": self.budget,
        }


def _digest_of(archive: Path | None) -> str | None:
    """Of an archive's files; what a server runs is known by its name alone."""
    if archive is None:
        return None
    if archive.is_file():
        return sha256(archive)
    return _digest(f"{name} {sha256(path)}".encode() for name, path in sorted(walk(archive).items()))


def _digest(parts: Iterable[bytes]) -> str:
    found = hashlib.sha256()
    for part in parts:
        found.update(b"%d:" % len(part) + part)
    return found.hexdigest()


@dataclass(slots=True)
class Place:
    """Where it is measured, and what is there.

    Attributes:
        system: what can be measured.
        start: the settings that there are.
        config: what its model-config.yaml says; on a server in use, with the time-outs that hold there.
        bench: what measures it.
        version: of a model that is served, as somebody named it.
    """

    system: System
    start: Knobs
    config: dict[str, Any] = field(default_factory=dict)
    bench: Bench | None = None
    version: str | None = None

    @property
    def threads(self) -> bool:
        """Whether its handler can be told its threads."""
        return isinstance(self.config.get("tsbatch"), dict) and not isinstance(self.system, LiveServer)


@contextlib.contextmanager
def place_of(order: Order, screen: Screen) -> Iterator[Place]:
    """The place that somebody asked for.

    Raises:
        UsageError: there is no such archive, model or server.
        ServerError: a server cannot be reached or started.
    """
    bench = Bench(order.script, screen.run)
    archive = order.archive
    if archive is not None:
        if order.live:
            raise UsageError(f"--live is for a model on a running server; {archive} is an archive")
        if not archive.exists():
            raise UsageError(f"no such archive: {archive}")
        with PrivateCopy(of_archive(archive), bench, screen.told) as copy:
            yield Place(copy, knobs_of(copy.config), copy.config, bench)
        return
    instance = reach(order.instance)
    with instance.management() as management:
        described = management.describe(order.model)
    version = base_of(described["modelVersion"])
    if order.live:
        with LiveServer(instance, order.model, bench, screen.told) as live:
            yield Place(live, live.start, live.config, bench, version)
        return
    alike = {"settings": timeouts_of(described), "properties": properties_of(instance)}
    with PrivateCopy(of_running(instance, described), bench, screen.told, **alike) as copy:
        yield Place(copy, knobs_of(described), copy.config, bench, version)


class Around:
    """A search whose space follows from the first runs: what machine it is, and what a worker needs.

    Args:
        start: the settings that there are.
        goal: what is wanted.
        threads: whether the handler can be told its threads.
        make: the search for a space.
    """

    def __init__(self, start: Knobs, goal: Goal, *, threads: bool, make: Callable[[Space], Search]) -> None:
        self._start, self._goal, self._threads, self._make = start, goal, threads, make

    def space(self, history: History) -> Space:
        """The settings that are tried."""
        memory = None if self._goal.memory is None else int(self._goal.memory)
        known = history.start[-1].known.to_json()
        return space_around(self._start, known, memory=memory, threads=self._threads)

    def propose(self, history: History) -> Hypothesis | None:
        """See :class:`tsbatch.tuning.search.Search`."""
        return self._make(self.space(history)).propose(history)


def search_of(order: Order, place: Place) -> Around:
    """The search that somebody asked for."""
    traffic, goal = order.script.traffic, order.goal

    def make(space: Space) -> Search:
        return Sampler(goal, space, traffic.seed) if order.search == "tpe" else Careful(goal, space, traffic)

    return Around(place.start, goal, threads=place.threads, make=make)


def tune(order: Order, place: Place, screen: Screen) -> Outcome:
    """Tune, and write journal, log and report.

    Raises:
        UsageError: the folder holds another tuning's journal.
        ServerError: nothing can be measured any more.
    """
    about = order.about(place.start)
    journal = journal_of(order, place)
    log = Log(order.folder / LOG)
    with contextlib.closing(journal), contextlib.closing(log):
        written = Written(place.system, journal)
        tuning = Tuning(
            system=written,
            search=search_of(order, place),
            goal=order.goal,
            start=place.start,
            budget=order.budget,
            listener=Listeners([log, screen]),
        )
        outcome = tuning.run()
        written.settle()
        log.say(f"Result: {headline(outcome, order.goal)}")
    save(report_of_tuning(outcome, order.goal, about, order.script.seconds), order.folder / REPORT)
    return outcome


def journal_of(order: Order, place: Place) -> Journal:
    """The journal, with what is in it already; random arrivals go on after those of its runs.

    Raises:
        UsageError: it is another tuning's.
    """
    # With more runs, or fewer, it is still the same tuning.
    about = {name: value for name, value in order.about(place.start).items() if name != "budget"}
    about["version"] = place.version
    journal = Journal(order.folder, about, fresh=order.fresh)
    if place.bench is not None:
        place.bench.runs = len(journal.earlier)
    return journal


def rank(order: Order, place: Place) -> list[Seen]:
    """Measure what there is, and let the simulator rank every setting; the best first.

    Raises:
        UsageError: the answers do not tell how long batches took.
        ServerError: nothing can be measured.
    """
    history = History()
    with contextlib.closing(journal_of(order, place)) as journal:
        system = Written(place.system, journal)
        for _ in range(START_RUNS):
            history.start.append(system.measure(place.start))
            history.runs.append(history.start[-1])
    ranking = Ranking.of(history, order.script.traffic)
    space = search_of(order, place).space(history)
    found = [(knobs, ranking.predict(knobs)) for knobs in space.every()]
    known = [Seen(knobs, 0, figures, keeps=not order.goal.broken(figures)) for knobs, figures in found if figures]
    if not known:
        raise UsageError("the answers tell no handler times (Server-Timing), so nothing can be simulated")
    objective = order.goal.objective
    sign = -1 if objective == "throughput" else 1
    return sorted(known, key=lambda one: (not one.keeps, sign * one.figures.of(objective)))


def write_config(place: Place, outcome: Outcome, folder: Path) -> Path | None:
    """Write the recommended model-config.yaml: the archive's own with the settings that changed; None when none did.

    The time-outs are always in it: in a file without them they are 120 s whatever the server says
    (frontend/archive/.../ModelConfig.java).
    """
    path = folder / CONFIG_NAME
    if outcome.recommended is None or not outcome.changed:
        if path.exists():
            say(f"note: nothing to write; {path} was there before, and is not what this tuning found")
        return None
    timeouts = {key: DEFAULTS[key] for key in TIMEOUTS}
    config = {**timeouts, **place.config, **config_of(outcome.recommended)}
    if outcome.recommended.threads is not None:
        config["tsbatch"] = {**config.get("tsbatch", {}), "threads": outcome.recommended.threads}
    path.write_bytes(dump(config))
    return path
