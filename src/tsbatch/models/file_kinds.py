"""The kinds of files that a model comes in. Imports nothing, so that the command line can ask without torch."""

from __future__ import annotations

from typing import Final

STATE_DICTS: Final = (".safetensors", ".pt", ".pth", ".bin", ".ckpt")
"""Weights without their class."""

PROGRAMS: Final = (".pt", ".pt2", ".onnx")
"""TorchScript, exported programs and ONNX graphs: loaded without the model's class."""
