"""What a TorchServe worker does to load a model, done in this process.

``ts/model_service_worker.py`` makes a metrics cache and lets ``TsModelLoader`` import the handler, build the Service
with its Context and call ``initialize``; so does this. An exception there ends the worker; here it becomes a LoadError.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import yaml

from tsbatch.errors import LoadError

METRIC_LOGGERS = ("ts.metrics.caching_metric", "ts.service")
"""The loggers that ``[METRICS]`` lines come from."""

METRICS_CONFIG = Path(__file__).resolve().parents[1] / "metrics.yaml"
_MANIFEST = Path("MAR-INF", "MANIFEST.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to load.

    Attributes:
        name: the model's name.
        folder: the model's folder.
        handler: the handler, as the manifest names it.
        where: what an error message names.
        config: the whole model-config.yaml.
        metrics_config: the server's metrics.yaml.
        manifest: the manifest, where the folder has none of its own.
        modules: modules that are there from the start.
        temporary: whether the folder is to be removed in the end.
    """

    name: str
    folder: Path
    handler: str
    where: str
    config: Mapping[str, Any]
    metrics_config: Path = METRICS_CONFIG
    manifest: Mapping[str, Any] | None = None
    modules: Mapping[str, ModuleType] = field(default_factory=dict)
    temporary: bool = False

    @property
    def batch_size(self) -> int | None:
        """The archive's own batchSize; None where TorchServe would not take what stands there."""
        size = self.config.get("batchSize")
        return size if type(size) is int and size > 0 else None

    @property
    def paths(self) -> list[Path]:
        """What stands first on the import path (util/messages/EnvironmentUtils.java)."""
        file, colon, _ = self.handler.partition(":")
        return [self.folder / Path(file).parent, self.folder] if colon and "/" in file else [self.folder]


def require_torchserve() -> None:
    """Import TorchServe's Python part.

    Raises:
        LoadError: it is not installed; the line says how to install it.
    """
    if importlib.util.find_spec("ts") is None:
        raise LoadError('this needs TorchServe\'s Python part, which is not installed: pip install "tsbatch[serve]"')
    with _files_left_open():
        import ts.service  # noqa: F401


@contextmanager
def _files_left_open() -> Iterator[None]:
    # TorchServe leaves files to the garbage collector; where warnings are errors, that would fail the caller's test.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        yield


def plan_of_folder(folder: Path, where: Path, metrics_config: Path | None) -> Plan:
    """The plan for an unpacked archive.

    Raises:
        LoadError: manifest or model-config.yaml are missing or wrong.
    """
    try:
        manifest = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))
        model = manifest["model"]
        handler = model["handler"]
    except FileNotFoundError:
        raise LoadError(f"{where}: no {_MANIFEST.as_posix()} in it; pack it with tsbatch package") from None
    except (ValueError, KeyError, TypeError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise LoadError(f"{where}: {_MANIFEST.as_posix()} is no manifest of a model ({reason})") from error
    config = model.get("configFile")
    return Plan(
        name=str(model.get("modelName") or where.stem),
        folder=folder,
        handler=handler,
        where=where.name,
        config=config_of(folder / config) if config else {},
        metrics_config=metrics_config or METRICS_CONFIG,
    )


def plan_of_class(
    handler: type,
    folder: Path,
    *,
    settings: Mapping[str, Any] | str | Path | None,
    name: str,
    version: str,
    manifest: Mapping[str, Any],
    metrics_config: Path | None,
) -> Plan:
    """The plan for a class, with an entry module that exists in memory alone.

    Raises:
        LoadError: the folder is missing, or the settings cannot be read.
    """
    folder = folder.resolve()
    if not folder.is_dir():
        raise LoadError(f"{folder}: there is no such model folder")
    entry = f"tsbatch_entry_{uuid.uuid4().hex}"
    # TorchServe takes the one class whose __module__ is the module's own name (ts/utils/util.py).
    module = ModuleType(handler.__module__)
    setattr(module, handler.__name__, handler)
    model = {"modelName": name, "modelVersion": version, "handler": f"{entry}.py", **manifest}
    return Plan(
        name=name,
        folder=folder,
        handler=entry,
        where=handler.__qualname__,
        config=config_of(settings),
        metrics_config=metrics_config or METRICS_CONFIG,
        manifest={"runtime": "python", "model": model},
        modules={entry: module},
    )


def config_of(settings: Mapping[str, Any] | str | Path | None) -> dict[str, Any]:
    """Return a complete model-config.yaml from a mapping or a file.

    Raises:
        LoadError: the file is missing, is not YAML, or is not a mapping.
    """
    if settings is None:
        return {}
    if isinstance(settings, Mapping):
        return deepcopy(dict(settings))
    try:
        config = yaml.safe_load(Path(settings).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise LoadError(f"{settings}: cannot be read: {' '.join(str(error).split())}") from error
    if not isinstance(config, Mapping):
        raise LoadError(f"{settings}: expected keys and values, got {type(config).__name__}")
    return dict(config)


def load(plan: Plan, batch_size: int, gpu_id: int | None) -> Any:
    """Return TorchServe's Service for ``plan`` with its handler initialised. Call it in the folder of the model.

    Raises:
        LoadError: anything that would kill the worker.
    """
    from ts.metrics.metric_cache_yaml_impl import MetricsCacheYamlImpl

    try:
        with _files_left_open():
            metrics = MetricsCacheYamlImpl(config_file_path=str(plan.metrics_config))
        metrics.initialize_cache()
        metrics.model_name = plan.name
        return _loader(plan).load(plan.name, str(plan.folder), plan.handler, gpu_id, batch_size, metrics_cache=metrics)
    except LoadError:
        raise
    except (Exception, SystemExit) as error:
        reason = _reason(error)
        raise LoadError(f"{plan.where}: {type(reason).__name__}: {reason}") from error


def _loader(plan: Plan) -> Any:
    from ts.model_loader import TsModelLoader

    class Loader(TsModelLoader):  # type: ignore[misc]  # ts has no types
        """The loader of a worker; passes the content of files that are not written to the context."""

        def _get_class_entry_point(self, module: ModuleType) -> tuple[Any, Callable[[Any], None]]:
            entry_point, initialize = super()._get_class_entry_point(module)

            def initialize_with(context: Any) -> None:
                if plan.manifest is not None:
                    context.manifest = deepcopy(plan.manifest)
                    context.model_yaml_config = deepcopy(plan.config)
                initialize(context)

            return entry_point, initialize_with

    return Loader()


def _reason(error: BaseException) -> BaseException:
    # After an ImportError in the handler file, TorchServe searches its own handlers and reports only that failure.
    missing = getattr(error, "name", None) or ""
    first = error.__context__
    own = isinstance(error, ModuleNotFoundError) and missing.startswith("ts.torch_handler.")
    return first if own and isinstance(first, ImportError) else error


class Connection:
    """The part of the socket between frontend and worker that TorchServe's Python code uses.

    Attributes:
        sent: the frames that the worker wrote, one per ``sendall``.
    """

    def __init__(self, frame: bytes) -> None:
        self._frame = memoryview(frame)
        self.sent: list[bytes] = []

    def recv(self, size: int) -> memoryview:
        """Return the next ``size`` bytes of the frame."""
        data, self._frame = self._frame[:size], self._frame[size:]
        return data

    def sendall(self, frame: bytes | bytearray) -> None:
        """Store one response frame."""
        self.sent.append(bytes(frame))


@contextmanager
def root_logger_as_it_is() -> Iterator[None]:
    """Prevent ``logging.info`` in TorchServe's code from permanently installing a handler on the root logger."""
    root = logging.getLogger()
    stand_in = None if root.handlers else logging.lastResort
    if stand_in is not None:
        root.addHandler(stand_in)
    try:
        yield
    finally:
        if stand_in is not None:
            root.removeHandler(stand_in)


@contextmanager
def own_dimensions() -> Iterator[None]:
    """Keep the name of one model out of the metrics of another.

    ``add_time`` and similar methods append to their mutable default argument, which the whole process shares
    (ts/metrics/metric_cache_abstract.py); a worker has only one model.
    """
    from ts.metrics.metric_cache_abstract import MetricCacheAbstract

    methods = [method for name, method in vars(MetricCacheAbstract).items() if name.startswith("add_")]
    shared = [value for method in methods for value in method.__defaults__ or () if isinstance(value, list)]
    before = [value[:] for value in shared]
    for value in shared:
        value.clear()
    try:
        yield
    finally:
        for value, content in zip(shared, before, strict=True):
            value[:] = content
