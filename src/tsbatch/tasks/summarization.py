"""summarization: a short text for a long one, from any encoder-decoder of transformers (BART, Pegasus, T5 ...).

Input: a text, or a list of texts. Parameters: those of ``generation/parameters.py``, and ``truncation``. Output for
each text, as transformers' pipeline has it::

    {"summary_text": "Ada wrote the first program."}

Defaults come from the model folder: generation_config.json, and what config.json says of the task (T5's prefix);
where they say nothing, 256 new tokens and 4 beams, as in the pipeline. A text with more tokens than the model has
positions for gets a 422, or is cut with ``"truncation": true``.
"""

from __future__ import annotations

from typing import Any, ClassVar

from tsbatch.tasks.generation.encoder_decoder import EncoderDecoderHandler


class SummarizationHandler(EncoderDecoderHandler):
    """Sums texts up. See the module for input, output and parameters."""

    task: ClassVar[str] = "summarization"
    answer_key: ClassVar[str] = "summary_text"
    input_schema: ClassVar[Any] = {"type": "string"}
    output_schema: ClassVar[Any] = {
        "type": "object",
        "required": ["summary_text"],
        "properties": {"summary_text": {"type": "string"}},
    }
