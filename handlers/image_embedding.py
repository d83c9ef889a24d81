"""Image embedding for torch-model-archiver: ``--handler $(tsbatch handler-path image-embedding)``.

TorchServe imports this file by its name and requires exactly one class in it; the code is in
tsbatch.tasks.image_embedding.
"""

from __future__ import annotations

from tsbatch.tasks.image_embedding import ImageEmbeddingHandler


class ImageEmbedding(ImageEmbeddingHandler):
    """The handler that TorchServe starts."""
