"""Engines: what computes a transformers model's forward pass, behind one small interface.

::

    at packaging   engine.export(source)     files for the archive, for engines that need some
    at load        engine.start(source)      the forward pass, called as the model's own

``eager`` is PyTorch as it is, and the only one that can run packed: it wins wherever lengths are mixed. The others
get padded batches. Which one pays on a machine is measured by ``tsbatch package --engine auto``.

A package adds its own with an entry point of the group ``tsbatch.engines``: a subclass of :class:`Engine`.
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
    """What an engine works from.

    Attributes:
        model: the transformers model, locked; already in float32, bfloat16 or float16 if that was asked for.
        batch: an example of what it is called with, of several rows of different lengths.
        folder: the unpacked archive; to export, an empty folder whose files go to the root of the archive.
        dtype: what to compute with.
    """

    model: Any
    batch: Mapping[str, torch.Tensor]
    folder: Path
    dtype: Dtype = "auto"

    @property
    def rows(self) -> int:
        """How many rows the example has."""
        return len(next(iter(self.batch.values())))

    def cast(self) -> None:
        """Put the model into the dtype, if it is one of FLOATS."""
        if self.dtype in FLOATS:
            self.model.to(FLOATS[self.dtype])


class Engine:
    """One way to compute. Override :meth:`start`, and :meth:`export` if it needs files of its own.

    Attributes:
        name: as in ``tsbatch.engine`` of model-config.yaml.
        dtypes: what it can compute with, besides ``auto``.
        packs: it runs the model's own modules, so that batches without padding are possible.
        needs: modules it cannot do without at load; ``exports_with`` those for :meth:`export`.
        remedy: what to do when they are missing.
        cpu_only: it cannot use a GPU.
        exports: :meth:`export` writes files.
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
        """Why it cannot work here and what to do, in one line; None when it can."""
        wanted = (*self.needs, *(self.exports_with if to_export else ()))
        absent = [module for module in wanted if importlib.util.find_spec(module) is None]
        return f"needs {', '.join(absent)}: {self.remedy}" if absent else None

    def export(self, source: Source) -> None:
        """Write into ``source.folder`` what :meth:`start` will find in the archive; most engines need nothing."""

    def start(self, source: Source) -> Forward | None:
        """The forward pass: what to call in place of ``source.model.forward``, or None to leave that."""
        raise NotImplementedError


class Eager(Engine):
    """PyTorch as it is; packed wherever the model allows."""

    name = "eager"
    dtypes = (*FLOATS, "int8")
    packs = True

    def start(self, source: Source) -> None:
        """Leaves the model's forward pass; with int8 its linear layers are replaced."""
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
    """The known engines: tsbatch's own, then those of installed packages."""
    return [*_OWN, *sorted(point.name for point in entry_points(group=GROUP) if point.name not in _OWN)]


def find_engine(name: str) -> Engine:
    """The engine of that name.

    Raises:
        SettingsError: there is none; the nearest name is named.
        LoadError: the package that should bring it is broken.
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
    """The engine that ``settings`` ask for, known to work here.

    Args:
        settings: ``engine`` and ``dtype`` count.
        device: where the model will be.
        any_engine: whether the handler knows engines; otherwise only the defaults will do.

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
    """See that the engine can work here.

    Raises:
        SettingsError: it has no such dtype, or cannot use the device.
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
    """Have the engine compute ``source.model.forward``; ``del model.forward`` takes it back.

    Raises:
        LoadError: the engine said no, in one line.
    """
    source.cast()
    forward = _checked(engine, engine.start, source)
    if forward is not None:
        source.model.forward = forward


def export_engine(engine: Engine, source: Source) -> None:
    """Have the engine write its files into ``source.folder``, from the model in float32.

    Raises:
        LoadError: the engine said no, in one line.
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
    """Linear layers with int8 weights, one scale a row; activations are quantised while they run."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch deprecates this without anything of its own in its place
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
