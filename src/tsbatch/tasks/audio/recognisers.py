"""Recognisers of speech: CTC models, Whisper (Radford et al., 2022) and other encoder-decoders.

Beams and length of generated text are by default those of transformers' pipeline: five beams, 256 tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from tsbatch.errors import Unprocessable
from tsbatch.tasks.audio.handler import Decoding, Options
from tsbatch.tasks.audio.speech_windows import Span
from tsbatch.tasks.generation.generation_config import SPEECH_REFUSED, check_supported
from tsbatch.tasks.shared.task_handler import read_json

DEFAULTS = {"max_new_tokens": 256, "num_beams": 5}
"""The pipeline's defaults for what the generation config does not set (AutomaticSpeechRecognitionPipeline)."""


class Ctc:
    """Transcribes with a CTC model: connectionist temporal classification (Graves et al., 2006), one letter a frame.

    For Wav2Vec2, HuBERT, WavLM and similar models, decoded as in transformers' pipeline
    (automatic_speech_recognition.py).

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
        chunks = []
        for offset in decoded[f"{unit}_offsets"]:
            frames = (int(offset["start_offset"]), int(offset["end_offset"]))
            seconds = [float(frame * self.align / self._rate) for frame in frames]
            chunks.append({"text": offset[unit], "timestamp": seconds})
        return {"text": decoded["text"], "chunks": chunks}


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


class Generator:
    """Transcribes with an encoder-decoder, each sound as a whole.

    Args:
        handler: the handler, with model and tokenizer.

    Attributes:
        align: samples of one frame of the model; any number.
        windowed: whether long sounds can be divided into windows.
    """

    windowed = False
    align = 1

    def __init__(self, handler: Any) -> None:
        self._handler = handler
        self._model, self._tokenizer = handler.model, handler.tokenizer
        read_json(handler.model_dir / "generation_config.json")  # transformers ignores a broken file
        check_supported(self._model.generation_config, SPEECH_REFUSED)
        self._model.generation_config.return_dict_in_generate = False
        configured = self._model.generation_config.to_diff_dict()
        self._defaults = {name: value for name, value in DEFAULTS.items() if name not in configured}
        if "max_length" in configured:
            self._defaults.pop("max_new_tokens", None)
        if self._tokenizer.pad_token_id is not None and "pad_token_id" not in configured:
            self._defaults["pad_token_id"] = self._tokenizer.pad_token_id
        options = handler.options
        for name in DEFAULTS:
            if getattr(options, name) is not None:
                self._defaults[name] = getattr(options, name)

    def decoding(self, parameters: Any) -> Decoding:
        """The same for all parameters.

        Raises:
            Unprocessable: a parameter for Whisper.
        """
        for name in ("return_timestamps", "language", "task"):
            if getattr(parameters, name):
                raise Unprocessable(f"parameters.{name}: this model does not take it", expected="no such parameter")
        return Decoding()

    def outputs(self, batch: Mapping[str, torch.Tensor], options: Options) -> list[Any]:
        """Generated token ids of each row."""
        del options
        return list(self._model.generate(**batch, **self._defaults).cpu())

    def logits(self, batch: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
        """None: padding would reach the decoder."""
        del batch
        return []

    def answer(self, outputs: Sequence[Any], spans: Sequence[Span], parameters: Any) -> dict[str, Any]:
        """The text of one sound."""
        del spans, parameters
        return {"text": self._tokenizer.decode(outputs[0], skip_special_tokens=True)}


class Whisper(Generator):
    """Transcribes with Whisper, in windows, with its languages, tasks and timestamps."""

    windowed = True

    def __init__(self, handler: Any) -> None:
        super().__init__(handler)
        config = self._model.generation_config
        self._languages = _languages(getattr(config, "lang_to_id", None) or {})
        self._tasks = sorted(getattr(config, "task_to_id", None) or {})
        if getattr(config, "is_multilingual", None) is False:
            self._languages, self._tasks = {}, []
        self._codes = sorted(set(self._languages.values()))
        self._precision = handler.extractor.chunk_length / self._model.config.max_source_positions

    def decoding(self, parameters: Any) -> Decoding:
        """Task, timestamps, and whether the language is given, with which the decoder begins; and the language.

        The language is an array, its index among the codes, so that requests of different languages share a pass.

        Raises:
            Unprocessable: the model does not know the language, or does not support the task or timestamps.
        """
        language, task, timestamps = parameters.language, parameters.task, parameters.return_timestamps
        if language is not None and _bare(language) not in self._languages:
            raise Unprocessable("parameters.language: this model does not know it", expected=self._choice(self._codes))
        if task is not None and task not in self._tasks:
            raise Unprocessable("parameters.task: this model does not do it", expected=self._choice(self._tasks))
        if timestamps == "char":
            message = "parameters.return_timestamps: this model has none for letters"
            raise Unprocessable(message, expected='true or "word"')
        if timestamps == "word" and not getattr(self._model.generation_config, "alignment_heads", None):
            message = "parameters.return_timestamps: the model's generation_config.json has no alignment_heads"
            raise Unprocessable(message, expected="true")
        options = task, timestamps or False, language is not None
        if language is None:
            return Decoding(options)
        return Decoding(options, {"language": np.array([self._codes.index(self._languages[_bare(language)])])})

    def outputs(self, batch: Mapping[str, torch.Tensor], options: Options) -> list[Any]:
        """Generated token ids of each row; with timestamps of words a pair of ids and seconds."""
        task, timestamps, _ = options
        given = dict(batch)
        asked: dict[str, Any] = {"task": task} if task else {}
        if "language" in given:
            asked["language"] = [self._codes[index] for index in given.pop("language").flatten().tolist()]
        if timestamps:
            asked["return_timestamps"] = True
        if timestamps != "word":
            return list(self._model.generate(**given, **self._defaults, **asked).cpu())
        asked |= {"return_token_timestamps": True, "return_segments": True}
        with _restored_attention(self._model):
            generated = self._model.generate(**given, **self._defaults, **asked)
        seconds = [torch.cat([part["token_timestamps"] for part in parts]).cpu() for parts in generated["segments"]]
        return list(zip(generated["sequences"].cpu(), seconds, strict=True))

    def answer(self, outputs: Sequence[Any], spans: Sequence[Span], parameters: Any) -> dict[str, Any]:
        """The text of one sound, its windows joined where they overlap, and if asked for its chunks with timestamps."""
        timestamps, rate = parameters.return_timestamps or False, self._handler.rate
        windows: list[dict[str, Any]] = []
        for output, span in zip(outputs, spans, strict=True):
            ids, seconds = output if timestamps == "word" else (output, None)
            stride = (span.stop - span.start) / rate, span.left / rate, span.right / rate
            windows.append({"tokens": ids[None], "stride": stride})
            if seconds is not None:
                windows[-1]["token_timestamps"] = seconds[None]
        # transformers joins windows of Whisper only here; the name is the same in 4.57 and 5.
        text, more = self._tokenizer._decode_asr(  # noqa: SLF001
            windows, return_timestamps=timestamps, return_language=None, time_precision=self._precision
        )
        return {"text": text, **more}

    @staticmethod
    def _choice(names: Sequence[str]) -> str:
        return f"one of: {', '.join(names)}" if names else "no such parameter: it only knows English"


@contextmanager
def _restored_attention(model: Any) -> Iterator[None]:
    """Restore the attention: for timestamps of words transformers switches it to one that returns its weights."""
    config = model.config
    before = config._attn_implementation  # noqa: SLF001  # there is no public name
    try:
        yield
    finally:
        config._attn_implementation = before  # noqa: SLF001


def _bare(language: str) -> str:
    return language.lower().removeprefix("<|").removesuffix("|>")


def _languages(ids: Mapping[str, int]) -> dict[str, str]:
    """The code of each language that a model knows, by name and by code."""
    from transformers.models.whisper.tokenization_whisper import TO_LANGUAGE_CODE

    codes = {_bare(token) for token in ids}
    return {code: code for code in codes} | {name: code for name, code in TO_LANGUAGE_CODE.items() if code in codes}
