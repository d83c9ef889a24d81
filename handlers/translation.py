"""Translation for torch-model-archiver: ``--handler $(tsbatch handler-path translation)``.

TorchServe imports this file by its bare name and wants exactly one class defined in it; the code is in
tsbatch.tasks.translation.
"""

from __future__ import annotations

from tsbatch.tasks.translation import TranslationHandler


class Translation(TranslationHandler):
    """The handler TorchServe starts."""
