"""Speech recognition by connectionist temporal classification (Graves et al., 2006): one letter or blank a frame.

For Wav2Vec2, HuBERT, WavLM and similar models, decoded as in transformers' pipeline (automatic_speech_recognition.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from tsbatch.errors import Unprocessable
from tsbatch.tasks.audio.handler import Decoding, Options
from tsbatch.tasks.audio.speech_windows import Span


class Ctc:
    """Decodes a CTC model's windows.

    Args:
        handler: the handler, with model and tokenizer.

    Attributes:
        align: samples of one frame of the model.
        windowed: whether long sounds can be divided into windows.
    """

    windowed = True

    def __init__(self, handler: Any) -> None:
        self._handler = handler
        self._rate = handler.rate
        self.align: int = getattr(handler.model.config, "inputs_to_logits_ratio", 1)

    def decoding(self, parameters: Any) -> Decoding:
        """The same for all parameters, since the frames give the timestamps too.

        Raises:
            Unprocessable: a parameter for models that generate.
        """
        if parameters.return_timestamps not in (None, False, "word", "char"):
            message = "parameters.return_timestamps: this model transcribes letters"
            raise Unprocessable(message, expected='"word" or "char"')
        for name in ("language", "task"):
            if getattr(parameters, name) is not None:
                raise Unprocessable(f"parameters.{name}: this model knows one language", expected="no such parameter")
        return Decoding()

    def outputs(self, batch: Mapping[str, torch.Tensor], options: Options) -> list[torch.Tensor]:
        """For each row the best token of each of its frames, shape (frames,)."""
        del options
        return [row.argmax(-1).cpu() for row in self.logits(batch)]

    def logits(self, batch: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
        """For each row the logits of its frames, shape (frames, tokens)."""
        logits = self._handler.model(**batch).logits
        mask = batch.get("attention_mask")
        if mask is None or not self._handler.layers:
            return list(logits)
        return [row[:frames] for row, frames in zip(logits, self._handler.frames(mask.sum(-1)).tolist(), strict=True)]

    def answer(self, outputs: Sequence[torch.Tensor], spans: Sequence[Span], parameters: Any) -> dict[str, Any]:
        """The text of one sound, and if asked for the timestamps of its words or letters."""
        ids, tokenizer = _joined(outputs, spans, self.align), self._handler.tokenizer
        unit = parameters.return_timestamps
        if not unit:
            return {"text": tokenizer.decode(ids)}
        decoded = tokenizer.decode(ids, **{f"output_{unit}_offsets": True})
        chunks = [
            {"text": offset[unit], "timestamp": [self._seconds(offset[f"{end}_offset"]) for end in ("start", "end")]}
            for offset in decoded[f"{unit}_offsets"]
        ]
        return {"text": decoded["text"], "chunks": chunks}

    def _seconds(self, frame: int) -> float:
        return float(int(frame) * self.align / self._rate)


def _joined(ids: Sequence[torch.Tensor], spans: Sequence[Span], align: int) -> torch.Tensor:
    """Join the frames of a sound's windows, without those of the strides."""
    if len(ids) == 1:
        return ids[0]
    kept = []
    for row, span in zip(ids, spans, strict=True):
        samples = span.stop - span.start
        frames = round(samples / align)
        left, right = (round(stride / samples * frames) for stride in (span.left, span.right))
        kept.append(row[left : frames - right])
    return torch.cat(kept)
