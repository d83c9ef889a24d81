"""Load a model with its weights, without copying them twice, and lock it for inference.

On the CPU, weights are memory-mapped: all workers share one copy in the page cache, and loading costs no more than
reading.
"""

from __future__ import annotations

import importlib.util
import inspect
import pickle
import sys
import warnings
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from tsbatch.errors import LoadError, first_line, reason_of
from tsbatch.models.file_kinds import PROGRAMS, STATE_DICTS


def load_any(model_dir: Path, section: Mapping[str, Any], device: torch.device) -> Any:
    """Load the packaged model: the files that the manifest names, or else the only program in the folder.

    Args:
        model_dir: the unpacked archive.
        section: ``model`` of MANIFEST.json; ``modelFile`` is the module with the one class, ``serializedFile`` the
            weights, the TorchScript archive (.pt), the exported program (.pt2) or the ONNX graph (.onnx).
        device: the device of the model.

    Raises:
        LoadError: there is nothing to load, or it cannot be loaded.
    """
    serialized, module_file = section.get("serializedFile"), section.get("modelFile")
    if module_file:
        module = _module_class(model_dir / module_file)()
        return load_weights(module, model_dir / serialized, device) if serialized else module.to(device)
    path = _existing(model_dir / serialized) if serialized else _only_program(model_dir)
    if path.suffix == ".pt2":
        return _load_exported(path, device)
    if path.suffix == ".pt":
        return _load_torchscript(path, device)
    if path.suffix == ".onnx":
        from tsbatch.models.onnx_model import OnnxGraph

        return OnnxGraph(path, device)
    raise LoadError(
        f"{path.name}: weights without the class they belong to; name the class's file as modelFile, or override "
        f'load_model: return self.load_weights(YourModule(), "{path.name}")'
    )


def load_weights(module: torch.nn.Module, path: Path, device: torch.device) -> torch.nn.Module:
    """Return ``module`` with the weights in ``path``, memory-mapped on the CPU.

    A pickled state dict that ``tsbatch package`` converted to safetensors is also found under its old name.

    Raises:
        LoadError: the file is missing or of an unknown format, or the weights do not fit the module.
    """
    if not path.is_file() and path.with_suffix(".safetensors").is_file():
        path = path.with_suffix(".safetensors")
    if _existing(path).suffix not in STATE_DICTS:
        raise LoadError(f"{path.name}: not a file of weights; expected one that ends in {', '.join(STATE_DICTS)}")
    weights = _read_weights(path, device)
    try:
        module.load_state_dict(weights, assign=True)
    except (RuntimeError, TypeError, AttributeError) as error:
        reason = " ".join(str(error).split())
        raise LoadError(f"{path.name}: does not fit {type(module).__name__}: {reason}") from None
    return module.to(device)


def lock(model: Any) -> None:
    """Set the model to evaluation mode without gradients."""
    if not isinstance(model, torch.nn.Module):
        return
    with suppress(NotImplementedError):  # an exported program stays in the mode it was exported in
        model.eval()
    for parameter in model.parameters():  # TorchScript refuses model.requires_grad_()
        parameter.requires_grad_(False)


def _read_weights(path: Path, device: torch.device) -> dict[str, Any]:
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(path, device=str(device))
        mapped = zipfile.is_zipfile(path)  # files from before torch 1.6 are not, and cannot be memory-mapped
        return dict(torch.load(path, map_location=device, weights_only=True, mmap=mapped))
    except pickle.UnpicklingError:
        raise LoadError(
            f"{path.name}: is broken or holds more than weights (a whole pickled module?), which could run any code; "
            "save a state dict: safetensors.torch.save_file(model.state_dict(), ...)"
        ) from None
    except Exception as error:  # corrupt files raise anything
        raise LoadError(
            f"{path.name}: cannot be read as weights: {first_line(error)}; "
            "save a state dict: safetensors.torch.save_file(model.state_dict(), ...)"
        ) from None


def _module_class(path: Path) -> type[torch.nn.Module]:
    # By its path, not its name: outside TorchServe the model's folder is not on sys.path.
    spec = importlib.util.spec_from_file_location(path.stem, _existing(path))
    if spec is None or spec.loader is None:
        raise LoadError(f"{path.name}: not a Python file")
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found = [
        entry
        for _, entry in inspect.getmembers(module, inspect.isclass)
        if entry.__module__ == module.__name__ and issubclass(entry, torch.nn.Module)
    ]
    if len(found) != 1:
        names = ", ".join(entry.__name__ for entry in found) or "none"
        raise LoadError(
            f"{path.name}: expected one torch.nn.Module class, found {names}; override load_model to choose"
        )
    return found[0]


def _only_program(model_dir: Path) -> Path:
    found = sorted(path for path in model_dir.iterdir() if path.suffix in PROGRAMS)
    if len(found) != 1:
        what = "more than one" if found else "no"
        raise LoadError(
            f"{what} TorchScript (.pt), exported program (.pt2) or ONNX graph (.onnx) in the archive, which has: "
            f"{_listing(model_dir)}; override load_model to say what to load"
        )
    return found[0]


def _load_torchscript(path: Path, device: torch.device) -> Any:
    try:
        with warnings.catch_warnings():
            # torch 2.13 deprecates TorchScript, but such files remain in use and the operator cannot change that.
            warnings.simplefilter("ignore", DeprecationWarning)
            return torch.jit.load(path, map_location=device)  # type: ignore[no-untyped-call]
    except (RuntimeError, ValueError) as error:
        raise LoadError(
            f"{path.name}: not TorchScript ({reason_of(error)}); for a state dict override load_model: "
            f'return self.load_weights(YourModule(), "{path.name}")'
        ) from None


def _load_exported(path: Path, device: torch.device) -> Any:
    try:
        return torch.export.load(path).module().to(device)
    except Exception as error:  # torch.export raises many kinds
        raise LoadError(f"{path.name}: not an exported program: {type(error).__name__}: {error}") from None


def _existing(path: Path) -> Path:
    if not path.is_file():
        raise LoadError(f"{path.name}: no such file in the archive; it has: {_listing(path.parent)}")
    return path


def _listing(folder: Path) -> str:
    return ", ".join(sorted(path.name for path in folder.glob("*"))[:20]) or "nothing"
