"""Reranking for torch-model-archiver: ``--handler $(tsbatch handler-path reranking)``.

TorchServe imports this file by its name and requires exactly one class in it; the code is in
tsbatch.tasks.reranking.
"""

from __future__ import annotations

from tsbatch.tasks.reranking import RerankingHandler


class Reranking(RerankingHandler):
    """The handler that TorchServe starts."""
