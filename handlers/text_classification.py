"""Text classification for torch-model-archiver: ``--handler $(tsbatch handler-path text-classification)``.

TorchServe imports this file by its name and requires exactly one class in it; the code is in
tsbatch.tasks.text_classification.
"""

from __future__ import annotations

from tsbatch.tasks.text_classification import TextClassificationHandler


class TextClassification(TextClassificationHandler):
    """The handler that TorchServe starts."""
