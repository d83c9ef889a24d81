"""The file formats of models. Imports nothing, so that the command line can use it without torch."""

from __future__ import annotations

from typing import Final

STATE_DICTS: Final = (".safetensors", ".pt", ".pth", ".bin", ".ckpt")
"""Weights without the model class."""

PROGRAMS: Final = (".pt", ".pt2", ".onnx")
"""TorchScript, exported programs and ONNX graphs: loaded without the model class."""
