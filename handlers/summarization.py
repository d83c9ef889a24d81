"""Summarization for torch-model-archiver: ``--handler $(tsbatch handler-path summarization)``.

TorchServe imports this file by its name and requires exactly one class in it; the code is in
tsbatch.tasks.summarization.
"""

from __future__ import annotations

from tsbatch.tasks.summarization import SummarizationHandler


class Summarization(SummarizationHandler):
    """The handler that TorchServe starts."""
