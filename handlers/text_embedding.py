"""Text embedding for torch-model-archiver: ``--handler $(tsbatch handler-path text-embedding)``.

TorchServe imports this file by its name and requires exactly one class in it; the code is in
tsbatch.tasks.text_embedding.
"""

from __future__ import annotations

from tsbatch.tasks.text_embedding import TextEmbeddingHandler


class TextEmbedding(TextEmbeddingHandler):
    """The handler that TorchServe starts."""
