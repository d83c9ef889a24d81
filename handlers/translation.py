"""Translation for torch-model-archiver: ``--handler $(tsbatch handler-path translation)``.

TorchServe imports this file by its name and requires exactly one class in it; the code is in
tsbatch.tasks.translation.
"""

from __future__ import annotations

from tsbatch.tasks.translation import TranslationHandler


class Translation(TranslationHandler):
    """The handler that TorchServe starts."""
