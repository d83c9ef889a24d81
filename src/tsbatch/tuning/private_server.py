"""Where settings are measured: a private copy of the model, on a server of its own.

Or the server in use, see :mod:`tsbatch.tuning.live_server`.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from tsbatch.archive.manifest import MANIFEST_NAME
from tsbatch.archive.model_config import CONFIG_NAME, read
from tsbatch.configuration.effective_settings import read_yaml_values
from tsbatch.configuration.server_properties import ServerProperties
from tsbatch.emulation.worker_environment import unpack
from tsbatch.errors import LoadFailed, ServerError
from tsbatch.operations import registration
from tsbatch.operations.memory_headroom import lack_of_room
from tsbatch.operations.reconfiguration import files_of, link_files, write_variant
from tsbatch.serving.instance import Instance
from tsbatch.serving.java_command import CONFIG_FILE
from tsbatch.serving.management_client import Management
from tsbatch.serving.server import Server
from tsbatch.tuning import orphan_cleanup
from tsbatch.tuning.measurement import Bench, refused
from tsbatch.tuning.observation import Observation
from tsbatch.tuning.search_space import ModelSettings
from tsbatch.tuning.tuner import Refused

if TYPE_CHECKING:
    from typing_extensions import Self

PRIVATE: Final = "tune"
FOLDER: Final = "tuning"
"""In a server's work folder, so that it goes with it."""

ALIVE: Final = 2
"""Settings that stay loaded side by side, so that taking turns costs no loading."""

TIMEOUTS: Final = ("responseTimeout", "startupTimeout")
ALIKE: Final = (
    "default_response_timeout",
    "default_startup_timeout",
    "install_py_dep_per_model",
    "job_queue_size",
    "max_request_size",
    "max_response_size",
    "netty_client_threads",
    "number_of_gpu",
    "number_of_netty_threads",
    "prefer_direct_buffer",
    "vmargs",
)
"""Keys of config.properties that decide how a server answers, and where there is no other's to come in the way of."""

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
    """The files of a model that is served, as they are now: it may go while it is tuned."""

    @contextlib.contextmanager
    def files(scratch: Path) -> Iterator[Path]:
        with files_of(instance, described, scratch.with_name(f"{scratch.name}-unpacked")) as found:
            link_files(found, scratch, exclude=set())
        yield scratch

    return files


def properties_of(instance: Instance) -> dict[str, str]:
    """What a server of ours was told that holds for a copy of its models too."""
    told = ServerProperties.read(instance.work_dir / CONFIG_FILE)
    return {key: told[key] for key in ALIKE if key in told}


def timeouts_of(described: Mapping[str, Any]) -> dict[str, Any]:
    """The time-outs that hold for a described model, by their keys in model-config.yaml."""
    return {key: described[key] for key in TIMEOUTS if key in described}


class PrivateCopy:
    """A server of its own that ends with the tuner; used as a context manager.

    Args:
        source: the model's files; told a folder that it may unpack them into.
        bench: how to measure.
        tell: told what is being done.
        overrides: keys of model-config.yaml that hold for the model, whatever its archive says.
        properties: of the server.
    """

    def __init__(
        self,
        source: Source,
        bench: Bench,
        tell: Tell = lambda _: None,
        *,
        overrides: Mapping[str, Any] | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        self._find, self._bench, self._tell = source, bench, tell
        self._overrides, self._properties = overrides or {}, properties or {}
        self._source = Path()
        self._open = contextlib.ExitStack()
        self._alive: dict[ModelSettings, str] = {}
        self._made = 0
        self._server: Server | None = None

    def __enter__(self) -> Self:
        name = f"{PRIVATE}-{os.getpid()}"
        watcher = orphan_cleanup.spawn(name)
        with self._open:
            self._open.callback(self._dismiss, watcher)
            self._server = Server.start(name=name, properties=self._properties, on_progress=self._tell)
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
        """What its model-config.yaml says and what holds beside it, inside the ``with`` block."""
        return {**config_in(self._source), **self._overrides}

    @property
    def server(self) -> Server:
        """The server, inside the ``with`` block."""
        assert self._server is not None
        return self._server

    def measure(self, settings: ModelSettings) -> Observation:
        """See :class:`tsbatch.tuning.tuner.System`."""
        if not self.server.running():
            raise ServerError(f"the private server (process {self.server.pid}) ended by itself")
        return self._bench.run(self.server.instance, self._loaded(settings), settings)

    def _loaded(self, settings: ModelSettings) -> str:
        """The name of a model that has these settings."""
        if settings in self._alive:
            self._alive[settings] = name = self._alive.pop(settings)  # the latest used is the last
            return name
        with self.server.management() as management:
            self._make_room(management, settings.workers)
            self._made += 1
            name = f"{PRIVATE}-{self._made}"
            try:
                registration.register(
                    management,
                    str(self._folder(name, settings).resolve()),
                    model_name=name,
                    requested={
                        "initial_workers": settings.workers,
                        "batch_size": settings.batch_size,
                        "max_batch_delay": settings.delay,
                    },
                    on_progress=self._tell,
                )
            except LoadFailed as error:
                raise Refused(str(error)) from error
            except ServerError as error:
                raise refused(self.server.instance, error) from error
        self._alive[settings] = name
        return name

    def _make_room(self, management: Management, workers: int) -> None:
        while self._alive:
            oldest, name = next(iter(self._alive.items()))
            latest = management.describe(list(self._alive.values())[-1])
            if len(self._alive) < ALIVE and lack_of_room(latest, workers=workers) is None:
                return
            management.unregister(name)
            del self._alive[oldest]

    def _folder(self, name: str, settings: ModelSettings) -> Path:
        folder = self.server.instance.work_dir / FOLDER / name
        folder.mkdir(parents=True)
        overrides = {**self._overrides, **config_of(settings)}
        write_variant(self._source, folder, settings=overrides, threads=settings.threads)
        return folder


def config_of(settings: ModelSettings) -> dict[str, int]:
    """What model-config.yaml says for these settings."""
    return {
        "minWorkers": settings.workers,
        "maxWorkers": settings.workers,
        "batchSize": settings.batch_size,
        "maxBatchDelay": max(1, settings.delay),
    }


def config_in(folder: Path) -> dict[str, Any]:
    """The model-config.yaml of an unpacked archive; empty where it has none.

    Raises:
        UsageError: it cannot be read.
    """
    manifest = json.loads((folder / MANIFEST_NAME).read_bytes())
    path = folder / manifest["model"].get("configFile", CONFIG_NAME)
    return read(path) if path.is_file() else {}


def settings_of(config: Mapping[str, Any]) -> ModelSettings:
    """The settings that a model-config.yaml or a server's description of a model leads to, by TorchServe's rules.

    What a server tells holds, a delay of 0 or less too. In a file minWorkers counts only with a maxWorkers that is not
    smaller (frontend/server/.../util/ApiUtils.java), and a delay of 0 is as good as not there; see
    :mod:`tsbatch.configuration.effective_settings`.
    """
    if "modelVersion" in config:
        return ModelSettings(max(1, config["minWorkers"]), config["batchSize"], config["maxBatchDelay"])
    own = read_yaml_values(config)
    workers = own.get("minWorkers", 0)
    return ModelSettings(
        workers if 0 < workers <= own.get("maxWorkers", 0) else 1,
        own.get("batchSize", 1),
        own.get("maxBatchDelay") or 100,
    )
