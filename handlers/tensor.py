"""Tensor for torch-model-archiver: ``--handler $(tsbatch handler-path tensor)``.

TorchServe imports this file by its name and requires exactly one class in it; the code is in
tsbatch.tasks.tensor.
"""

from __future__ import annotations

from tsbatch.tasks.tensor import TensorHandler


class Tensor(TensorHandler):
    """The handler that TorchServe starts."""
