"""An ONNX graph as a model: tensors in, tensors out, through ONNX Runtime."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any, Final

import torch

from tsbatch.errors import LoadError, reason_of

DTYPES: Final = {
    "bool": "bool",
    "double": "float64",
    "float": "float32",
    "float16": "float16",
    **{name: name for name in ("int8", "int16", "int32", "int64", "uint8")},
}
"""NumPy names of the element types of a graph."""


def open_session(path: Path, *providers: str) -> Any:
    """Open an ONNX Runtime session with this worker's share of the cores.

    Args:
        path: the graph.
        providers: execution providers to try before the CPU.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(path, options, providers=[*providers, "CPUExecutionProvider"])


class OnnxGraph:
    """A model loaded from a ``.onnx`` file; called like a module.

    Args:
        path: the graph; external weight files are next to it.
        device: a GPU is used if ONNX Runtime has a provider for it.

    Attributes:
        signature: of each input the name, the shape (a size that is left open is a name or None) and the dtype, None
            for one that DTYPES lacks.

    Raises:
        LoadError: ONNX Runtime is not installed, or cannot load the file.
    """

    def __init__(self, path: Path, device: torch.device) -> None:
        if importlib.util.find_spec("onnxruntime") is None:
            raise LoadError(f"{path.name}: needs ONNX Runtime: pip install 'tsbatch[onnx]'")
        import onnxruntime

        gpu = "CUDAExecutionProvider"
        use_gpu = device.type == "cuda" and gpu in onnxruntime.get_available_providers()
        try:
            self._session = open_session(path, *([gpu] if use_gpu else []))
        except Exception as error:  # its errors share no public base
            raise LoadError(
                f"{path.name}: not an ONNX graph that this ONNX Runtime takes: {reason_of(error)}"
            ) from None
        given = self._session.get_inputs()
        self.signature: list[tuple[str, list[Any], str | None]] = [
            (entry.name, list(entry.shape), DTYPES.get(entry.type.removeprefix("tensor(").removesuffix(")")))
            for entry in given
        ]
        self._inputs = [entry.name for entry in given]
        self._outputs = [entry.name for entry in self._session.get_outputs()]

    def __call__(self, *tensors: torch.Tensor, **named: torch.Tensor) -> Any:
        """Run one forward pass: inputs by position or name; one tensor, or a mapping if there are several outputs."""
        given = {**dict(zip(self._inputs, tensors, strict=False)), **named}
        arrays = {name: tensor.cpu().numpy() for name, tensor in given.items() if name in self._inputs}
        found = [torch.from_numpy(array) for array in self._session.run(self._outputs, arrays)]
        return found[0] if len(found) == 1 else dict(zip(self._outputs, found, strict=True))
