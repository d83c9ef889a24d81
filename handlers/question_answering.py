"""Question answering for torch-model-archiver: ``--handler $(tsbatch handler-path question-answering)``.

TorchServe imports this file by its name and requires exactly one class in it; the code is in
tsbatch.tasks.question_answering.
"""

from __future__ import annotations

from tsbatch.tasks.question_answering import QuestionAnsweringHandler


class QuestionAnswering(QuestionAnsweringHandler):
    """The handler that TorchServe starts."""
