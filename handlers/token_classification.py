"""Token classification for torch-model-archiver: ``--handler $(tsbatch handler-path token-classification)``.

TorchServe imports this file by its name and requires exactly one class in it; the code is in
tsbatch.tasks.token_classification.
"""

from __future__ import annotations

from tsbatch.tasks.token_classification import TokenClassificationHandler


class TokenClassification(TokenClassificationHandler):
    """The handler that TorchServe starts."""
