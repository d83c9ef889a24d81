"""Reranking for torch-model-archiver: ``--handler $(tsbatch handler-path reranking)``.

TorchServe imports this file by its bare name and wants exactly one class defined in it; the code is in
tsbatch.tasks.reranking.
"""

from __future__ import annotations

from tsbatch.tasks.reranking import RerankingHandler


class Reranking(RerankingHandler):
    """The handler TorchServe starts."""
