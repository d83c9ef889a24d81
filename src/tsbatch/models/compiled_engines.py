"""Engines that PyTorch creates from the model at load time: torch.compile, TorchScript, torch.export."""

from __future__ import annotations

import os
import shutil
import sys
import warnings
from pathlib import Path
from typing import Any

import torch

from tsbatch.models.engines import FLOATS, Engine, Forward, Source
from tsbatch.models.export_wrappers import Positional, by_name, open_shapes


class Compile(Engine):
    """torch.compile with dynamic shapes. Compiled once per user and machine; later starts read the cache."""

    name = "compile"
    dtypes = tuple(FLOATS)
    start_seconds = 600

    def missing(self, *, to_export: bool = False) -> str | None:
        """Report a missing C++ compiler."""
        del to_export  # it compiles when it starts
        usual = {"darwin": "clang++", "win32": "cl"}.get(sys.platform, "g++")
        compiler = os.environ.get("CXX", usual)
        if shutil.which(compiler):
            return None
        return f"needs a C++ compiler and there is no {compiler}: install one (apt-get install g++), or set CXX"

    def start(self, source: Source) -> Forward:
        """Compile for one row and for several, which the warm-up might not cover."""
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(_private_cache()))
        with warnings.catch_warnings(), torch.inference_mode():  # as in the loop: compiled code depends on the mode
            warnings.simplefilter("ignore")  # caused by PyTorch itself
            forward: Forward = torch.compile(source.model.forward, dynamic=True)
            for rows in (1, source.rows):  # PyTorch compiles size 1 separately
                forward(**{name: tensor[:rows] for name, tensor in source.batch.items()})
        return forward


class TorchScript(Engine):
    """torch.jit.trace: deprecated by PyTorch, but on some machines a little faster than eager for single requests."""

    name = "torchscript"
    dtypes = tuple(FLOATS)

    def start(self, source: Source) -> Forward:
        """Trace the model with the example; padding and lengths stay variable."""
        model = Positional(source)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # deprecation, and shapes that the model checks in Python
            traced = torch.jit.trace(  # type: ignore[no-untyped-call]
                model, tuple(source.batch.values()), check_trace=False
            )
        return by_name(traced, model.inputs, model.outputs)


class Export(Engine):
    """torch.export: the program without the model's Python code."""

    name = "export"
    dtypes = tuple(FLOATS)
    start_seconds = 120

    def start(self, source: Source) -> Forward:
        """Export with open batch size and length."""
        model = Positional(source)
        program: Any = torch.export.export(
            model, tuple(source.batch.values()), dynamic_shapes=open_shapes(model.inputs)
        ).module()
        return by_name(program, model.inputs, model.outputs)


def _private_cache() -> Path:
    """Return a folder that only this user can write, because its contents are executed."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(home) / "tsbatch" / "compiled"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return folder
