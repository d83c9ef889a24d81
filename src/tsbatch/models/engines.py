"""Engines: implementations of a transformers model's forward pass, behind one small interface.

::

    at packaging   engine.export(source)     files for the archive, if the engine needs any
    at load        engine.start(source)      the forward pass, called like the model's own

``eager`` is unmodified PyTorch and the only engine that can run packed, so it is fastest for mixed lengths. The others
get padded batches. ``tsbatch package --engine auto`` measures which engine is fastest on a machine.

A package adds an engine with an entry point of the group ``tsbatch.engines``: a subclass of :class:`Engine`.
"""

from __future__ import annotations

import difflib
import importlib.util
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, ClassVar, Final

import torch

from tsbatch.errors import LoadError, SettingsError, first_line
from tsbatch.settings import Dtype, Settings

GROUP: Final = "tsbatch.engines"
Forward = Callable[..., Any]
"""Padded ``input_ids``, ``attention_mask`` ..., each (n, longest), as keyword arguments, to an object with the model's
outputs as attributes: ``last_hidden_state``, ``logits`` ..."""
FLOATS: Final = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, slots=True)
class Source:
    """The input of an engine.

    Attributes:
        model: the transformers model, locked; already converted if float32, bfloat16 or float16 was requested.
        batch: example inputs of several rows of different lengths.
        folder: the unpacked archive; to export, an empty folder whose files go to the root of the archive.
        dtype: the data type of the computation.
    """

    model: Any
    batch: Mapping[str, torch.Tensor]
    folder: Path
    dtype: Dtype = "auto"

    @property
    def rows(self) -> int:
        """The number of rows of the example."""
        return len(next(iter(self.batch.values())))

    def cast(self) -> None:
        """Convert the model to the dtype, if it is one of FLOATS."""
        if self.dtype in FLOATS:
            self.model.to(FLOATS[self.dtype])


class Engine:
    """Base class of engines. Override :meth:`start`, and :meth:`export` if the engine needs its own files.

    Attributes:
        name: as in ``tsbatch.engine`` of model-config.yaml.
        dtypes: the supported data types, besides ``auto``.
        packs: whether it runs the model's own modules, so that batches without padding are possible.
        needs: modules required at load; ``exports_with``: additional modules for :meth:`export`.
        remedy: what to do when they are missing.
        cpu_only: whether it cannot use a GPU.
        exports: whether :meth:`export` writes files.
        start_seconds: how long :meth:`start` may take when nothing is cached; the archive's startupTimeout allows it.
    """

    name: ClassVar[str]
    dtypes: ClassVar[tuple[str, ...]] = ("float32",)
    packs: ClassVar[bool] = False
    needs: ClassVar[tuple[str, ...]] = ()
    exports_with: ClassVar[tuple[str, ...]] = ()
    remedy: ClassVar[str] = ""
    cpu_only: ClassVar[bool] = False
    exports: ClassVar[bool] = False
    start_seconds: ClassVar[int] = 0

    def missing(self, *, to_export: bool = False) -> str | None:
        """Return why it cannot work here and what to do, in one line; None if it can."""
        wanted = (*self.needs, *(self.exports_with if to_export else ()))
        absent = [module for module in wanted if importlib.util.find_spec(module) is None]
        return f"needs {', '.join(absent)}: {self.remedy}" if absent else None

    def export(self, source: Source) -> None:
        """Write the files that :meth:`start` reads from the archive into ``source.folder``; most engines need none."""

    def start(self, source: Source) -> Forward | None:
        """Return the replacement of ``source.model.forward``, or None to keep it."""
        raise NotImplementedError


class Eager(Engine):
    """Unmodified PyTorch; packed if the model allows it."""

    name = "eager"
    dtypes = (*FLOATS, "int8")
    packs = True

    def start(self, source: Source) -> None:
        """Keep the model's forward pass; with int8, replace its linear layers."""
        if source.dtype == "int8":
            _quantize(source.model)


_OWN: Final = {
    name: EntryPoint(name, f"tsbatch.models.{path}", GROUP)
    for name, path in {
        "eager": "engines:Eager",
        "compile": "compiled_engines:Compile",
        "torchscript": "compiled_engines:TorchScript",
        "export": "compiled_engines:Export",
        "onnxruntime": "exported_engines:OnnxRuntime",
        "openvino": "exported_engines:OpenVino",
    }.items()
}


def engine_names() -> list[str]:
    """Return the known engines: those of tsbatch, then those of installed packages."""
    return [*_OWN, *sorted(point.name for point in entry_points(group=GROUP) if point.name not in _OWN)]


def find_engine(name: str) -> Engine:
    """Return the engine with this name.

    Raises:
        SettingsError: there is none; the message suggests the nearest name.
        LoadError: the package that provides it is broken.
    """
    for point in [_OWN[name]] if name in _OWN else entry_points(group=GROUP, name=name):
        try:
            engine: Engine = point.load()()
        except Exception as error:  # somebody else's module
            raise LoadError(f"the engine {name} ({point.value}) cannot be loaded: {_root_cause(error)}") from error
        return engine
    near = difflib.get_close_matches(name, engine_names(), n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"known engines: {', '.join(engine_names())}"
    raise SettingsError(f"model-config.yaml: tsbatch.engine: {name!r} does not exist; {hint}")


def wanted_engine(settings: Settings, device: torch.device, *, any_engine: bool) -> Engine:
    """Return the engine that ``settings`` ask for, after checking that it works here.

    Args:
        settings: ``engine`` and ``dtype`` are used.
        device: the device of the model.
        any_engine: whether the handler supports engines; otherwise only the defaults are allowed.

    Raises:
        LoadError: it does not exist or cannot work here.
    """
    if not any_engine and (settings.engine, settings.dtype) != ("eager", "auto"):
        raise SettingsError(
            "model-config.yaml: tsbatch.engine, tsbatch.dtype: this handler runs its model as it is; remove both lines"
        )
    engine = find_engine(settings.engine)
    check_engine(engine, settings.dtype, device)
    return engine


def check_engine(engine: Engine, dtype: Dtype, device: torch.device, *, to_export: bool = False) -> None:
    """Check that the engine can work here.

    Raises:
        SettingsError: it does not support the dtype or the device.
        LoadError: something is not installed.
    """
    if dtype not in ("auto", *engine.dtypes):
        raise SettingsError(
            f"model-config.yaml: tsbatch.dtype: the engine {engine.name} has no {dtype}; "
            f"expected auto or one of: {', '.join(engine.dtypes)}"
        )
    if engine.cpu_only and device.type != "cpu":
        raise SettingsError(
            f"model-config.yaml: tsbatch.engine: {engine.name} runs on the CPU alone and the device is {device}; "
            "set tsbatch.device: cpu, or another engine"
        )
    if reason := engine.missing(to_export=to_export):
        raise LoadError(f"the engine {engine.name} {reason}")


def start_engine(engine: Engine, source: Source) -> None:
    """Replace ``source.model.forward`` with the engine's; ``del model.forward`` undoes this.

    Raises:
        LoadError: the engine failed; the message is one line.
    """
    source.cast()
    forward = _checked(engine, engine.start, source)
    if forward is not None:
        source.model.forward = forward


def export_engine(engine: Engine, source: Source) -> None:
    """Let the engine write its files into ``source.folder``, from the model in float32.

    Raises:
        LoadError: the engine failed; the message is one line.
    """
    source.model.float()
    _checked(engine, engine.export, source)


def _checked(engine: Engine, step: Callable[[Source], Any], source: Source) -> Any:
    try:
        return step(source)
    except LoadError:
        raise
    except Exception as error:  # compilers and exporters raise many kinds
        raise LoadError(f"the engine {engine.name} cannot run this model: {_root_cause(error)}") from error


def _quantize(model: Any) -> None:
    """Replace linear layers by ones with int8 weights, one scale per row, and dynamically quantised activations."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch deprecates this without offering a replacement of its own
        try:
            from torch.ao.quantization import per_channel_dynamic_qconfig, quantize_dynamic
        except ImportError:
            raise LoadError("tsbatch.dtype: int8: this torch has no dynamic quantisation any more") from None
        quantize_dynamic(  # type: ignore[no-untyped-call]
            model, {torch.nn.Linear: per_channel_dynamic_qconfig}, inplace=True
        )


def _root_cause(error: BaseException) -> str:
    while error.__cause__ is not None:  # exporters wrap the reason in advice
        error = error.__cause__
    return first_line(error)
