"""Where settings are measured: a private copy of the model on a server of its own, or the server in use."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from tsbatch.errors import TsbatchError, UsageError
from tsbatch.ops import registration
from tsbatch.ops.console import say
from tsbatch.ops.effective import read_yaml_values
from tsbatch.ops.failure import LoadFailed, ServerError
from tsbatch.ops.in_flight import pinned
from tsbatch.ops.instance import Instance
from tsbatch.ops.management import Management, ModelVersion
from tsbatch.ops.manifest import MANIFEST_NAME
from tsbatch.ops.model_config import CONFIG_NAME, read
from tsbatch.ops.reconfigure import changing, files_of, write_variant
from tsbatch.ops.room import lack_of_room
from tsbatch.ops.server import Server
from tsbatch.ops.tuning import guard, restore
from tsbatch.ops.tuning.knobs import Knobs
from tsbatch.ops.tuning.observation import Observation
from tsbatch.ops.tuning.runs import Bench, refused
from tsbatch.ops.tuning.tuner import Refused
from tsbatch.workplace import unpack

if TYPE_CHECKING:
    from typing_extensions import Self

PRIVATE: Final = "tune"
FOLDER: Final = "tuning"
"""In a server's work folder, so that it goes with it."""

ALIVE: Final = 2
"""Settings that stay loaded side by side, so that taking turns costs no loading."""

TIMEOUTS: Final = ("responseTimeout", "startupTimeout")

Tell = Callable[[str], None]
Source = Callable[[Path], contextlib.AbstractContextManager[Path]]


def of_archive(archive: Path) -> Source:
    """The files of an archive, or of a folder that is used as one.

    Raises:
        LoadError: when it is entered: the archive is damaged.
    """

    @contextlib.contextmanager
    def files(scratch: Path) -> Iterator[Path]:
        if archive.is_dir():
            yield archive
        else:
            unpack(archive, scratch)
            yield scratch

    return files


def of_running(instance: Instance, described: Mapping[str, Any]) -> Source:
    """The files of a model that is served."""
    return lambda scratch: files_of(instance, described, scratch)


class PrivateCopy:
    """A server of its own that ends with the tuner; used as a context manager.

    Args:
        source: the model's files; told a folder that it may unpack them into.
        bench: how to measure.
        tell: told what is being done.
    """

    def __init__(self, source: Source, bench: Bench, tell: Tell = lambda _: None) -> None:
        self._find, self._bench, self._tell = source, bench, tell
        self._source = Path()
        self._open = contextlib.ExitStack()
        self._alive: dict[Knobs, str] = {}
        self._made = 0
        self._server: Server | None = None

    def __enter__(self) -> Self:
        name = f"{PRIVATE}-{os.getpid()}"
        watcher = guard.spawn(name)
        with self._open:
            self._open.callback(self._dismiss, watcher)
            self._server = Server.start(name=name, on_progress=self._tell)
            self._open.callback(self._server.stop)
            folder = self._server.instance.work_dir / FOLDER
            folder.mkdir()
            self._source = self._open.enter_context(self._find(folder / "source"))
            self._open = self._open.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    @staticmethod
    def _dismiss(watcher: subprocess.Popen[bytes]) -> None:
        watcher.terminate()
        watcher.wait()

    @property
    def config(self) -> dict[str, Any]:
        """The archive's model-config.yaml, inside the ``with`` block; empty where it has none."""
        return config_in(self._source)

    @property
    def server(self) -> Server:
        """The server, inside the ``with`` block."""
        assert self._server is not None
        return self._server

    def measure(self, knobs: Knobs) -> Observation:
        """See :class:`tsbatch.ops.tuning.tuner.System`."""
        if not self.server.running():
            raise ServerError(f"the private server (process {self.server.pid}) ended by itself")
        return self._bench.run(self.server.instance, self._loaded(knobs), knobs)

    def _loaded(self, knobs: Knobs) -> str:
        """The name of a model that has these settings."""
        if knobs in self._alive:
            self._alive[knobs] = name = self._alive.pop(knobs)  # the latest used is the last
            return name
        with self.server.management() as management:
            self._make_room(management, knobs.workers)
            self._made += 1
            name = f"{PRIVATE}-{self._made}"
            try:
                registration.register(
                    management,
                    str(self._folder(name, knobs).resolve()),
                    model_name=name,
                    asked={
                        "initial_workers": knobs.workers,
                        "batch_size": knobs.batch_size,
                        "max_batch_delay": knobs.delay,
                    },
                    on_progress=self._tell,
                )
            except LoadFailed as error:
                raise Refused(str(error)) from error
            except ServerError as error:
                raise refused(self.server.instance, error) from error
        self._alive[knobs] = name
        return name

    def _make_room(self, management: Management, workers: int) -> None:
        while self._alive:
            oldest, name = next(iter(self._alive.items()))
            latest = management.describe(list(self._alive.values())[-1])
            if len(self._alive) < ALIVE and lack_of_room(latest, workers=workers) is None:
                return
            management.unregister(name)
            del self._alive[oldest]

    def _folder(self, name: str, knobs: Knobs) -> Path:
        folder = self.server.instance.work_dir / FOLDER / name
        folder.mkdir(parents=True)
        write_variant(self._source, folder, settings=config_of(knobs), threads=knobs.threads)
        return folder


class LiveServer:
    """The server in use; used as a context manager, which puts its settings back whatever happens.

    Args:
        instance: the server.
        model: the model on it.
        bench: how to measure.
        tell: told what is being done.

    Attributes:
        config: the model's own model-config.yaml with the time-outs that hold, inside the ``with`` block.
    """

    def __init__(self, instance: Instance, model: str, bench: Bench, tell: Tell = lambda _: None) -> None:
        self._instance, self._model, self._bench, self._tell = instance, model, bench, tell
        self._before: restore.Before | None = None
        self._open = contextlib.ExitStack()
        self.config: dict[str, Any] = {}

    def __enter__(self) -> Self:
        with self._open, self._instance.management() as management:
            described = management.describe(self._model)
            left = self._left(management)
            self._open.enter_context(changing(self._instance, self._model))
            self._warn(described["modelVersion"])
            self.config = self._config(described)
            now = restore.Before.now(management, self._instance, self._model)
            # What a killed tuner found is what has to come back, not what it left.
            self._before = now if left is None else replace(left, tuner=now.tuner)
            restore.remember(self._instance, self._before)
            self._open = self._open.pop_all()
        return self

    def _left(self, management: Management) -> restore.Before | None:
        """What a killed tuner found and did not put back."""
        left = restore.kept(self._instance)
        if left is None:
            return None
        if left.model != self._model:
            raise UsageError(f"a tuning of {left.model} was killed; first run: tsbatch tune --restore")
        if left.tuner.running():
            raise UsageError(f"a tuning of {left.model} runs already (process {left.tuner.pid})")
        if others := restore.taken_over(management, left):
            say(f"note: {others}")
            return None
        return left

    def _warn(self, version: str) -> None:
        """Of what is not put back: the version's name.

        Raises:
            UsageError: there are clients that it would cost their answers.
        """
        if count := pinned(self._instance.log_dir, ModelVersion(self._model, version)):
            raise UsageError(
                f"{count} requests in access_log.log named version {version} of {self._model}; with --live the version"
                " changes for good, and they would get 404: tune a private copy, without --live"
            )
        say(
            f"note: with --live the version of {self._model} changes at each step and does not change back; clients"
            f" that name version {version} get 404 from the first step on"
        )

    def _config(self, described: Mapping[str, Any]) -> dict[str, Any]:
        scratch = self._instance.work_dir / f"{FOLDER}-{os.getpid()}"
        with files_of(self._instance, described, scratch) as folder:
            return {**config_in(folder), **{key: described[key] for key in TIMEOUTS if key in described}}

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._open:
            self._put_back(error)

    def _put_back(self, error: BaseException | None) -> None:
        assert self._before is not None
        if not self._instance.running():
            restore.forget(self._instance)
            return
        self._tell("putting back the settings that were found")
        try:
            with self._instance.management() as management:
                others = restore.put_back(management, self._instance, self._before, self._tell)
        except TsbatchError as failure:
            again = "once the server is well run: tsbatch tune --restore"
            raise ServerError(f"{self._before} could not be put back: {failure}; {again}") from failure
        if others and others not in str(error):
            say(f"note: {others}")

    @property
    def start(self) -> Knobs:
        """What it had before anybody tuned it, inside the ``with`` block."""
        assert self._before is not None
        return Knobs(self._before.workers, self._before.batch_size, self._before.delay)

    def measure(self, knobs: Knobs) -> Observation:
        """See :class:`tsbatch.ops.tuning.tuner.System`."""
        if knobs.threads is not None:
            raise Refused("threads cannot be changed on a server in use")
        assert self._before is not None
        with self._instance.management() as management:
            try:
                others = restore.taken_over(management, self._before)
                if others is None:
                    settings = (knobs.workers, knobs.batch_size, knobs.delay)
                    restore.turn(management, self._instance, self._model, *settings, self._tell)
            except UsageError as error:
                raise Refused(str(error)) from error
            except ServerError as error:
                raise refused(self._instance, error) from error
        if others:
            raise ServerError(others)
        return self._bench.run(self._instance, self._model, knobs)


def config_of(knobs: Knobs) -> dict[str, int]:
    """What model-config.yaml says for these settings."""
    return {
        "minWorkers": knobs.workers,
        "maxWorkers": knobs.workers,
        "batchSize": knobs.batch_size,
        "maxBatchDelay": max(1, knobs.delay),
    }


def config_in(folder: Path) -> dict[str, Any]:
    """The model-config.yaml of an unpacked archive; empty where it has none.

    Raises:
        UsageError: it cannot be read.
    """
    manifest = json.loads((folder / MANIFEST_NAME).read_bytes())
    path = folder / manifest["model"].get("configFile", CONFIG_NAME)
    return read(path) if path.is_file() else {}


def knobs_of(config: Mapping[str, Any]) -> Knobs:
    """The settings that a model-config.yaml or a server's description of a model leads to, by TorchServe's rules.

    What a server tells holds, a delay of 0 or less too. In a file minWorkers counts only with a maxWorkers that is not
    smaller (frontend/server/.../util/ApiUtils.java), and a delay of 0 is as good as not there; see
    :mod:`tsbatch.ops.effective`.
    """
    if "modelVersion" in config:
        return Knobs(max(1, config["minWorkers"]), config["batchSize"], config["maxBatchDelay"])
    own = read_yaml_values(config)
    workers = own.get("minWorkers", 0)
    return Knobs(
        workers if 0 < workers <= own.get("maxWorkers", 0) else 1,
        own.get("batchSize", 1),
        own.get("maxBatchDelay") or 100,
    )
