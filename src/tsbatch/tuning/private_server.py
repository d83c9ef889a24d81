"""Measure a private copy of the model on a private server.

For the server in use, see :mod:`tsbatch.tuning.live_server`.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

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

PRIVATE: Final = "tune"
FOLDER: Final = "tuning"
"""In a server's work directory, so that it is removed with it."""

MAX_LOADED: Final = 2
"""Settings that stay loaded side by side, so that alternating needs no loading."""

TIMEOUTS: Final = ("responseTimeout", "startupTimeout")
COPIED_PROPERTIES: Final = (
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
"""Keys of config.properties that affect how a server answers and cannot conflict with another server."""

Tell = Callable[[str], None]
Source = Callable[[Path], contextlib.AbstractContextManager[Path]]


def of_archive(archive: Path) -> Source:
    """Return the files of an archive, or of a directory that is used as one.

    Raises:
        LoadError: on entry: the archive is damaged.
    """
    return functools.partial(_archive_files, archive)


@contextlib.contextmanager
def _archive_files(archive: Path, scratch: Path) -> Iterator[Path]:
    if not archive.is_dir():
        unpack(archive, scratch)
    yield archive if archive.is_dir() else scratch


@contextlib.contextmanager
def running_files(instance: Instance, described: Mapping[str, Any], scratch: Path) -> Iterator[Path]:
    """Copy the current files of a served model, so that the model may be removed while it is tuned."""
    with files_of(instance, described, scratch.with_name(f"{scratch.name}-unpacked")) as found:
        link_files(found, scratch, exclude=set())
    yield scratch


def properties_of(instance: Instance) -> dict[str, str]:
    """Return the properties of a server that also apply to a copy of its models."""
    found = ServerProperties.read(instance.work_dir / CONFIG_FILE)
    return {key: found[key] for key in COPIED_PROPERTIES if key in found}


def timeouts_of(described: Mapping[str, Any]) -> dict[str, Any]:
    """Return the timeouts of a described model, by their keys in model-config.yaml."""
    return {key: described[key] for key in TIMEOUTS if key in described}


@contextlib.contextmanager
def private_copy(
    source: Source,
    bench: Bench,
    tell: Tell = lambda _: None,
    *,
    overrides: Mapping[str, Any] | None = None,
    properties: Mapping[str, str] | None = None,
) -> Iterator[PrivateCopy]:
    """Start a private server that ends with the tuner.

    Args:
        source: the model's files; called with a directory that it may unpack them into.
        bench: how to measure.
        tell: called with progress messages.
        overrides: keys of model-config.yaml that apply to the model, whatever its archive sets.
        properties: of the server.
    """
    name = f"{PRIVATE}-{os.getpid()}"
    watcher = orphan_cleanup.spawn(name)
    with contextlib.ExitStack() as cleanup:
        cleanup.callback(watcher.wait)
        cleanup.callback(watcher.terminate)
        server = Server.start(name=name, properties=properties or {}, on_progress=tell)
        cleanup.callback(server.stop)
        folder = server.instance.work_dir / FOLDER
        folder.mkdir()
        files = cleanup.enter_context(source(folder / "source"))
        yield PrivateCopy(server, files, bench, tell, overrides or {})


class PrivateCopy:
    """A private server that loads copies of one model, each with other settings; see :func:`private_copy`.

    Args:
        server: the private server.
        source: the directory with the model's files.
        bench: how to measure.
        tell: called with progress messages.
        overrides: keys of model-config.yaml that apply to the model, whatever its archive sets.
    """

    def __init__(self, server: Server, source: Path, bench: Bench, tell: Tell, overrides: Mapping[str, Any]) -> None:
        self.server, self._source, self._bench, self._tell = server, source, bench, tell
        self._overrides = overrides
        self._loaded_models: dict[ModelSettings, str] = {}
        self._made = 0

    @property
    def config(self) -> dict[str, Any]:
        """The model's model-config.yaml with the overrides."""
        return {**config_in(self._source), **self._overrides}

    def measure(self, settings: ModelSettings) -> Observation:
        """See :class:`tsbatch.tuning.tuner.System`."""
        if not self.server.running():
            raise ServerError(f"the private server (process {self.server.pid}) ended unexpectedly")
        return self._bench.run(self.server.instance, self._loaded(settings), settings)

    def _loaded(self, settings: ModelSettings) -> str:
        """Return the name of a loaded model with these settings, loading it if necessary."""
        if settings in self._loaded_models:
            self._loaded_models[settings] = name = self._loaded_models.pop(settings)  # the most recently used is last
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
        self._loaded_models[settings] = name
        return name

    def _make_room(self, management: Management, workers: int) -> None:
        while self._loaded_models:
            oldest, name = next(iter(self._loaded_models.items()))
            latest = management.describe(list(self._loaded_models.values())[-1])
            if len(self._loaded_models) < MAX_LOADED and lack_of_room(latest, workers=workers) is None:
                return
            management.unregister(name)
            del self._loaded_models[oldest]

    def _folder(self, name: str, settings: ModelSettings) -> Path:
        folder = self.server.instance.work_dir / FOLDER / name
        folder.mkdir(parents=True)
        overrides = {**self._overrides, **config_of(settings)}
        write_variant(self._source, folder, settings=overrides, threads=settings.threads)
        return folder


def config_of(settings: ModelSettings) -> dict[str, int]:
    """Return the keys of model-config.yaml for these settings."""
    return {
        "minWorkers": settings.workers,
        "maxWorkers": settings.workers,
        "batchSize": settings.batch_size,
        "maxBatchDelay": max(1, settings.delay),
    }


def config_in(folder: Path) -> dict[str, Any]:
    """Read the model-config.yaml of an unpacked archive; empty if it has none.

    Raises:
        UsageError: it cannot be read.
    """
    manifest = json.loads((folder / MANIFEST_NAME).read_bytes())
    path = folder / manifest["model"].get("configFile", CONFIG_NAME)
    return read(path) if path.is_file() else {}


def settings_of(config: Mapping[str, Any]) -> ModelSettings:
    """Derive the settings from a model-config.yaml or a server's description of a model, by TorchServe's rules.

    A server's description is taken as it is, including a delay of 0 or less. In a file minWorkers counts only with a
    maxWorkers that is not smaller (frontend/server/.../util/ApiUtils.java), and a delay of 0 is ignored; see
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
