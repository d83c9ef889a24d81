"""Engines that run a file exported from the model at packaging: ONNX Runtime, OpenVINO."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import ClassVar

import torch

from tsbatch.errors import LoadError
from tsbatch.models.engines import Engine, Forward, Source
from tsbatch.models.export_wrappers import Positional, by_name_on_arrays, open_shapes
from tsbatch.models.onnx_model import open_session


class OnnxRuntime(Engine):
    """ONNX Runtime on the CPU, over ``model.onnx``."""

    name = "onnxruntime"
    dtypes = ("float32", "int8")
    needs = ("onnxruntime",)
    exports_with = ("onnx", "onnxscript")
    remedy = "pip install 'tsbatch[onnx]'"
    cpu_only = True
    exports = True
    file: ClassVar[str] = "model.onnx"

    def export(self, source: Source) -> None:
        """Export with open batch size and length; int8 quantises the weights, and activations dynamically."""
        model = Positional(source)
        whole = source.folder / self.file
        weights = sum(parameter.nbytes for parameter in source.model.parameters())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.onnx.export(
                model,
                tuple(source.batch.values()),
                whole,
                input_names=model.inputs,
                output_names=model.outputs,
                dynamo=True,
                dynamic_shapes=open_shapes(model.inputs),
                external_data=weights > 1_500_000_000,  # an ONNX file is limited to 2 GB
                verbose=False,
            )
        if source.dtype == "int8":
            _quantize_onnx(whole)

    def start(self, source: Source) -> Forward:
        """Open a session with this worker's share of the cores."""
        session = open_session(in_archive(self, source, self.file))
        inputs = [entry.name for entry in session.get_inputs()]
        outputs = [entry.name for entry in session.get_outputs()]
        return by_name_on_arrays(lambda arrays: session.run(outputs, arrays), inputs, outputs)


class OpenVino(Engine):
    """OpenVINO on the CPU, over ``openvino_model.xml``."""

    name = "openvino"
    needs = ("openvino",)
    remedy = "pip install 'tsbatch[openvino]'"
    cpu_only = True
    exports = True
    file: ClassVar[str] = "openvino_model.xml"

    def export(self, source: Source) -> None:
        """Convert with open batch size and length."""
        import openvino

        model = Positional(source)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            example = tuple(source.batch.values())
            converted = openvino.convert_model(model, example_input=example)
        for ports, names in ((converted.inputs, model.inputs), (converted.outputs, model.outputs)):
            for port, name in zip(ports, names, strict=True):
                port.get_tensor().set_names({name})
        openvino.save_model(converted, source.folder / self.file, compress_to_fp16=False)

    def start(self, source: Source) -> Forward:
        """Compile for this worker's share of the cores."""
        import openvino

        options = {
            "INFERENCE_PRECISION_HINT": "f32",  # newer CPUs would use bfloat16 by default
            "INFERENCE_NUM_THREADS": torch.get_num_threads(),
            "ENABLE_CPU_PINNING": False,  # two workers would be pinned to the same cores
            "PERFORMANCE_HINT": "LATENCY",
        }
        compiled = openvino.Core().compile_model(in_archive(self, source, self.file), "CPU", options)
        inputs = [port.get_any_name() for port in compiled.inputs]
        outputs = [port.get_any_name() for port in compiled.outputs]
        return by_name_on_arrays(lambda arrays: compiled(arrays).to_tuple(), inputs, outputs)


def in_archive(engine: Engine, source: Source, name: str) -> Path:
    """Return the path of the engine's file in the unpacked archive.

    Raises:
        LoadError: it was not exported.
    """
    if not (source.folder / name).is_file():
        raise LoadError(f"{name}: not in the archive; pack it with: tsbatch package --engine {engine.name}")
    return source.folder / name


def _quantize_onnx(file: Path) -> None:
    from onnxruntime.quantization import QuantType, quantize_dynamic

    small = file.with_suffix(".int8.onnx")
    quantize_dynamic(file, small, weight_type=QuantType.QInt8, per_channel=True)
    for old in file.parent.glob(f"{file.name}*"):
        old.unlink()
    small.replace(file)
