"""A whole ``tsbatch tune``, from what somebody asked for to what is written down."""

from __future__ import annotations

import contextlib
import functools
import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
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
from tsbatch.tuning.journal import LOG, Journal, JournaledSystem, Log
from tsbatch.tuning.live_server import LiveServer, live_server
from tsbatch.tuning.measurement import Bench, Workload
from tsbatch.tuning.objective import Goal
from tsbatch.tuning.page import Screen
from tsbatch.tuning.private_server import (
    TIMEOUTS,
    config_of,
    of_archive,
    private_copy,
    properties_of,
    running_files,
    settings_of,
    timeouts_of,
)
from tsbatch.tuning.ranking import Ranking
from tsbatch.tuning.recommendation import Seen
from tsbatch.tuning.sampler import Sampler
from tsbatch.tuning.search import CoordinateSearch
from tsbatch.tuning.search_space import ModelSettings, Space, space_around
from tsbatch.tuning.significance import START_RUNS
from tsbatch.tuning.tuner import Outcome, System, Tuning
from tsbatch.tuning.tuning_report import headline, report_of_tuning

REPORT: Final = "report.html"
ENDINGS: Final = (".mar", ".tar.gz")

Kind = Literal["careful", "tpe"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneConfig:
    """What somebody asked for.

    Attributes:
        model: a name on the running server, or an archive.
        data: the file that the bodies came from.
        goal: what is wanted.
        workload: how each setting is measured.
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
    workload: Workload
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

    def about(self, start: ModelSettings) -> dict[str, Any]:
        """What is tuned and how, by name."""
        workload = self.workload
        return {
            "model": self.model,
            "files": _digest_of(self.archive),
            "instance": None if self.archive else self.instance,
            "data": str(self.data),
            "bodies": _digest(f"{body.content_type}\n".encode() + body.content for body in workload.bodies),
            "start": asdict(start),
            "goal": asdict(self.goal),
            "load": str(workload.traffic),
            "arrivals": workload.traffic.kind,
            "seconds": workload.seconds,
            "warm_up": workload.warm_up,
            "seed": workload.traffic.seed,
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
class TuningTarget:
    """Where it is measured, and what is there.

    Attributes:
        system: what can be measured.
        start: the settings that there are.
        config: what its model-config.yaml says; on a server in use, with the time-outs that hold there.
        bench: what measures it.
        version: of a model that is served, as somebody named it.
    """

    system: System
    start: ModelSettings
    config: dict[str, Any] = field(default_factory=dict)
    bench: Bench | None = None
    version: str | None = None

    @property
    def threads(self) -> bool:
        """Whether its handler can be told its threads."""
        return isinstance(self.config.get("tsbatch"), dict) and not isinstance(self.system, LiveServer)


@contextlib.contextmanager
def open_target(config: TuneConfig, screen: Screen) -> Iterator[TuningTarget]:
    """The place that somebody asked for.

    Raises:
        UsageError: there is no such archive, model or server.
        ServerError: a server cannot be reached or started.
    """
    bench = Bench(config.workload, screen.run)
    archive = config.archive
    if archive is not None:
        if config.live:
            raise UsageError(f"--live is for a model on a running server; {archive} is an archive")
        if not archive.exists():
            raise UsageError(f"no such archive: {archive}")
        with private_copy(of_archive(archive), bench, screen.told) as copy:
            yield TuningTarget(copy, settings_of(copy.config), copy.config, bench)
        return
    instance = reach(config.instance)
    with instance.management() as management:
        described = management.describe(config.model)
    version = base_of(described["modelVersion"])
    if config.live:
        with live_server(instance, config.model, bench, screen.told) as live:
            yield TuningTarget(live, live.start, live.config, bench, version)
        return
    alike = {"overrides": timeouts_of(described), "properties": properties_of(instance)}
    with private_copy(functools.partial(running_files, instance, described), bench, screen.told, **alike) as copy:
        yield TuningTarget(copy, settings_of(described), copy.config, bench, version)


@dataclass(frozen=True, slots=True)
class SpaceFromHistory:
    """A search whose space follows from the first runs: the machine's cores, and a worker's memory.

    Attributes:
        config: which search, and its goal.
        target: what is tuned.
    """

    config: TuneConfig
    target: TuningTarget

    def space(self, history: History) -> Space:
        """Return the values to try."""
        memory = None if self.config.goal.memory is None else int(self.config.goal.memory)
        known = asdict(history.start[-1].known)
        return space_around(self.target.start, known, memory=memory, threads=self.target.threads)

    def propose(self, history: History) -> Hypothesis | None:
        """See :class:`tsbatch.tuning.search.Search`."""
        goal, traffic, space = self.config.goal, self.config.workload.traffic, self.space(history)
        if self.config.search == "tpe":
            return Sampler(goal, space, traffic.seed).propose(history)
        return CoordinateSearch(goal, space, traffic).propose(history)


def tune(config: TuneConfig, target: TuningTarget, screen: Screen) -> Outcome:
    """Tune, and write journal, log and report.

    Raises:
        UsageError: the folder holds another tuning's journal.
        ServerError: nothing can be measured any more.
    """
    about = config.about(target.start)
    journal = open_journal(config, target)
    log = Log(config.folder / LOG)
    with contextlib.closing(journal), contextlib.closing(log):
        written = JournaledSystem(target.system, journal)
        tuning = Tuning(
            system=written,
            search=SpaceFromHistory(config, target),
            goal=config.goal,
            start=target.start,
            budget=config.budget,
            listeners=[log, screen],
        )
        outcome = tuning.run()
        written.settle()
        log.say(f"Result: {headline(outcome, config.goal)}")
    save(report_of_tuning(outcome, config.goal, about, config.workload.seconds), config.folder / REPORT)
    return outcome


def open_journal(config: TuneConfig, target: TuningTarget) -> Journal:
    """The journal, with what is in it already; random arrivals go on after those of its runs.

    Raises:
        UsageError: it is another tuning's.
    """
    # With more runs, or fewer, it is still the same tuning.
    about = {name: value for name, value in config.about(target.start).items() if name != "budget"}
    about["version"] = target.version
    journal = Journal(config.folder, about, fresh=config.fresh)
    if target.bench is not None:
        target.bench.runs = len(journal.earlier)
    return journal


def rank(config: TuneConfig, target: TuningTarget) -> list[Seen]:
    """Measure what there is, and let the simulator rank every setting; the best first.

    Raises:
        UsageError: the answers do not tell how long batches took.
        ServerError: nothing can be measured.
    """
    history = History()
    with contextlib.closing(open_journal(config, target)) as journal:
        system = JournaledSystem(target.system, journal)
        for _ in range(START_RUNS):
            history.start.append(system.measure(target.start))
            history.runs.append(history.start[-1])
    ranking = Ranking(history.runs, config.workload.traffic)
    space = SpaceFromHistory(config, target).space(history)
    found = [(settings, ranking.predict(settings)) for settings in space.combinations()]
    known = [
        Seen(settings, 0, figures, keeps=not config.goal.broken(figures)) for settings, figures in found if figures
    ]
    if not known:
        raise UsageError("the answers tell no handler times (Server-Timing), so nothing can be simulated")
    objective = config.goal.objective
    sign = -1 if objective == "throughput" else 1
    return sorted(known, key=lambda one: (not one.keeps, sign * one.figures.of(objective)))


def write_config(target: TuningTarget, outcome: Outcome, folder: Path) -> Path | None:
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
    config = {**timeouts, **target.config, **config_of(outcome.recommended)}
    if outcome.recommended.threads is not None:
        config["tsbatch"] = {**config.get("tsbatch", {}), "threads": outcome.recommended.threads}
    path.write_bytes(dump(config))
    return path
