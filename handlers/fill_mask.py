"""Fill mask for torch-model-archiver: ``--handler $(tsbatch handler-path fill-mask)``.

TorchServe imports this file by its bare name and wants exactly one class defined in it; the code is in
tsbatch.tasks.fill_mask.
"""

from __future__ import annotations

from tsbatch.tasks.fill_mask import FillMaskHandler


class FillMask(FillMaskHandler):
    """The handler TorchServe starts."""
