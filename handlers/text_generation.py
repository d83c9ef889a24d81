"""Text generation for torch-model-archiver: ``--handler $(tsbatch handler-path text-generation)``.

TorchServe imports this file by its name and requires exactly one class in it; the code is in
tsbatch.tasks.text_generation.
"""

from __future__ import annotations

from tsbatch.tasks.text_generation import TextGenerationHandler


class TextGeneration(TextGenerationHandler):
    """The handler that TorchServe starts."""
