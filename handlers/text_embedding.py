"""Text embedding for torch-model-archiver: ``--handler $(tsbatch handler-path text-embedding)``.

TorchServe imports this file by its bare name and wants exactly one class defined in it; the code is in
tsbatch.tasks.text_embedding.
"""

from __future__ import annotations

from tsbatch.tasks.text_embedding import TextEmbeddingHandler


class TextEmbedding(TextEmbeddingHandler):
    """The handler TorchServe starts."""
