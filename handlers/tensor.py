"""Tensor for torch-model-archiver: ``--handler $(tsbatch handler-path tensor)``.

TorchServe imports this file by its bare name and wants exactly one class defined in it; the code is in
tsbatch.tasks.tensor.
"""

from __future__ import annotations

from tsbatch.tasks.tensor import TensorHandler


class Tensor(TensorHandler):
    """The handler TorchServe starts."""
