"""Image embedding for torch-model-archiver: ``--handler $(tsbatch handler-path image-embedding)``.

TorchServe imports this file by its bare name and wants exactly one class defined in it; the code is in
tsbatch.tasks.image_embedding.
"""

from __future__ import annotations

from tsbatch.tasks.image_embedding import ImageEmbeddingHandler


class ImageEmbedding(ImageEmbeddingHandler):
    """The handler TorchServe starts."""
