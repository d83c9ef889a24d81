"""A complete ``tsbatch tune``, from the options to the written files."""

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
    """The options of a tuning.

    Attributes:
        model: a name on the running server, or an archive.
        data: the file with the request bodies.
        goal: the goal.
        workload: the load of each run.
        search: which search.
        live: whether to tune on the server in use.
        budget: total runs.
        folder: directory for journal, log and report.
        fresh: start over, whatever the directory contains.
        instance: name of the running server.
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
        """The path of the archive; None for a model on the server."""
        path = Path(self.model)
        # A directory may just have the name of a running model.
        unpacked = (path / MANIFEST_NAME).is_file() and not self.live
        return path if self.model.endswith(ENDINGS) or unpacked else None

    def about(self, start: ModelSettings) -> dict[str, Any]:
        """Return what is tuned and how, for journal and report."""
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
    """Return the digest of an archive's files; None for a model on a server, which is known by name only."""
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
    """The system to tune and its initial state.

    Attributes:
        system: the measured system.
        start: the initial settings.
        config: its model-config.yaml; on a server in use, with the timeouts that apply there.
        bench: what runs the workload.
        version: of a served model, without the suffix of earlier tunings.
    """

    system: System
    start: ModelSettings
    config: dict[str, Any] = field(default_factory=dict)
    bench: Bench | None = None
    version: str | None = None

    @property
    def threads(self) -> bool:
        """Whether its handler has a setting for threads."""
        return isinstance(self.config.get("tsbatch"), dict) and not isinstance(self.system, LiveServer)


@contextlib.contextmanager
def open_target(config: TuneConfig, screen: Screen) -> Iterator[TuningTarget]:
    """Open the system to tune.

    Raises:
        UsageError: the archive, model or server does not exist.
        ServerError: a server cannot be reached or started.
    """
    bench = Bench(config.workload, screen.run)
    archive = config.archive
    if archive is not None:
        if config.live:
            raise UsageError(f"--live needs a model on a running server; {archive} is an archive")
        if not archive.exists():
            raise UsageError(f"no such archive: {archive}")
        with private_copy(of_archive(archive), bench, screen.message) as copy:
            yield TuningTarget(copy, settings_of(copy.config), copy.config, bench)
        return
    instance = reach(config.instance)
    with instance.management() as management:
        described = management.describe(config.model)
    version = base_of(described["modelVersion"])
    if config.live:
        with live_server(instance, config.model, bench, screen.message) as live:
            yield TuningTarget(live, live.start, live.config, bench, version)
        return
    alike = {"overrides": timeouts_of(described), "properties": properties_of(instance)}
    with private_copy(functools.partial(running_files, instance, described), bench, screen.message, **alike) as copy:
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
        UsageError: the directory has another tuning's journal.
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
    """Open the journal; random arrivals continue after those of its runs.

    Raises:
        UsageError: it is from another tuning.
    """
    # Another budget does not make it another tuning.
    about = {name: value for name, value in config.about(target.start).items() if name != "budget"}
    about["version"] = target.version
    journal = Journal(config.folder, about, fresh=config.fresh)
    if target.bench is not None:
        target.bench.runs = len(journal.earlier)
    return journal


def rank(config: TuneConfig, target: TuningTarget) -> list[Seen]:
    """Measure the initial settings, and rank all settings by simulation; the best first.

    Raises:
        UsageError: the answers have no handler times.
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
        raise UsageError("the answers have no handler times (Server-Timing), so nothing can be simulated")
    objective = config.goal.objective
    sign = -1 if objective == "throughput" else 1
    return sorted(known, key=lambda one: (not one.keeps, sign * one.figures.of(objective)))


def write_config(target: TuningTarget, outcome: Outcome, folder: Path) -> Path | None:
    """Write the recommended model-config.yaml: the archive's own with the changed settings; None if none changed.

    It always has the timeouts: without them they would be 120 s whatever the server's configuration
    (frontend/archive/.../ModelConfig.java).
    """
    path = folder / CONFIG_NAME
    if outcome.recommended is None or not outcome.changed:
        if path.exists():
            say(f"note: nothing to write; the existing {path} is not from this tuning")
        return None
    timeouts = {key: DEFAULTS[key] for key in TIMEOUTS}
    config = {**timeouts, **target.config, **config_of(outcome.recommended)}
    if outcome.recommended.threads is not None:
        config["tsbatch"] = {**config.get("tsbatch", {}), "threads": outcome.recommended.threads}
    path.write_bytes(dump(config))
    return path
