"""Fill mask for torch-model-archiver: ``--handler $(tsbatch handler-path fill-mask)``.

TorchServe imports this file by its name and requires exactly one class in it; the code is in
tsbatch.tasks.fill_mask.
"""

from __future__ import annotations

from tsbatch.tasks.fill_mask import FillMaskHandler


class FillMask(FillMaskHandler):
    """The handler that TorchServe starts."""
