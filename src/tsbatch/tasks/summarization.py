"""summarization: a short text from a long one, with any encoder-decoder of transformers (BART, Pegasus, T5 ...).

Input: a text, or a list of texts. Parameters: those of ``generation/parameters.py``, and ``truncation``. Output for
each text, as in transformers' pipeline::

    {"summary_text": "Ada wrote the first program."}

Defaults come from the model folder: generation_config.json, and config.json's settings for the task (T5's prefix);
otherwise they are 256 new tokens and 4 beams, as in the pipeline. A text with more tokens than the model has positions
gets a 422, or is cut with ``"truncation": true``.
"""

from __future__ import annotations

from typing import Any, ClassVar

from tsbatch.tasks.generation.encoder_decoder import EncoderDecoderHandler
from tsbatch.tasks.shared.schemas import STRING, object_of


class SummarizationHandler(EncoderDecoderHandler):
    """Summarizes texts. See the module for input, output and parameters."""

    task: ClassVar[str] = "summarization"
    answer_key: ClassVar[str] = "summary_text"
    output_schema: ClassVar[Any] = object_of({"summary_text": STRING})
