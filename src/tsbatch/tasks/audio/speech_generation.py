"""Speech by generation: Whisper (Radford et al., 2022) and other encoder-decoders.

Beams and length are those of transformers' pipeline unless the operator sets others: five beams, 256 tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from tsbatch.errors import Unprocessable
from tsbatch.tasks.audio.handler import Wish
from tsbatch.tasks.audio.speech_windows import Span
from tsbatch.tasks.shared.task_handler import read_json

USUAL = {"max_new_tokens": 256, "num_beams": 5}
"""What the pipeline sets where the model's generation config does not (AutomaticSpeechRecognitionPipeline)."""


class Generator:
    """Decodes an encoder-decoder's sounds, each heard as a whole.

    Args:
        handler: whose model and tokenizer these are.

    Attributes:
        align: samples for which the model makes one frame; any.
        windowed: long sounds can be cut.
    """

    windowed = False
    align = 1

    def __init__(self, handler: Any) -> None:
        self._handler = handler
        self._model, self._tokenizer = handler.model, handler.tokenizer
        read_json(handler.model_dir / "generation_config.json")  # transformers passes over one that is broken
        set_already = self._model.generation_config.to_diff_dict()
        self._usual = {name: value for name, value in USUAL.items() if name not in set_already}
        if "max_length" in set_already:
            self._usual.pop("max_new_tokens", None)
        if self._tokenizer.pad_token_id is not None and "pad_token_id" not in set_already:
            self._usual["pad_token_id"] = self._tokenizer.pad_token_id
        options = handler.options
        for name in USUAL:
            if getattr(options, name) is not None:
                self._usual[name] = getattr(options, name)

    def wish(self, parameters: Any) -> Wish:
        """Nothing.

        Raises:
            Unprocessable: a parameter for Whisper.
        """
        for name in ("return_timestamps", "language", "task"):
            if getattr(parameters, name):
                raise Unprocessable(f"parameters.{name}: this model has none", expected="no such parameter")
        return ()

    def arrays(self, parameters: Any) -> dict[str, Any]:
        """No further input of the model."""
        del parameters
        return {}

    def outputs(self, batch: Mapping[str, torch.Tensor], wish: Wish) -> list[Any]:
        """Generated token ids of each row."""
        del wish
        return list(self._model.generate(**batch, **self._usual).cpu())

    def proof(self, batch: Mapping[str, torch.Tensor]) -> None:
        """None: padding would reach the decoder."""
        del batch

    def answer(self, outputs: Sequence[Any], spans: Sequence[Span], parameters: Any) -> dict[str, Any]:
        """The text of one sound."""
        del spans, parameters
        return {"text": self._tokenizer.decode(outputs[0], skip_special_tokens=True)}


class Whisper(Generator):
    """Decodes Whisper's windows: languages, tasks and timestamps."""

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

    def wish(self, parameters: Any) -> Wish:
        """Task, timestamps, and whether the language is told: they are the beginning of what the decoder generates.

        Raises:
            Unprocessable: this model has no such language, task or timestamps.
        """
        language, task, timestamps = parameters.language, parameters.task, parameters.return_timestamps
        if language is not None and _bare(language) not in self._languages:
            raise Unprocessable("parameters.language: this model does not know it", expected=self._choice(self._codes))
        if task is not None and task not in self._tasks:
            raise Unprocessable("parameters.task: this model does not do it", expected=self._choice(self._tasks))
        if timestamps == "char":
            message = "parameters.return_timestamps: this model has none of letters"
            raise Unprocessable(message, expected='true or "word"')
        if timestamps == "word" and not getattr(self._model.generation_config, "alignment_heads", None):
            message = "parameters.return_timestamps: the model's generation_config.json has no alignment_heads"
            raise Unprocessable(message, expected="true")
        return task, timestamps or False, language is not None

    def arrays(self, parameters: Any) -> dict[str, Any]:
        """The language, as its place among the codes: requests of different languages share a pass."""
        if parameters.language is None:
            return {}
        return {"language": np.array([self._codes.index(self._languages[_bare(parameters.language)])])}

    def outputs(self, batch: Mapping[str, torch.Tensor], wish: Wish) -> list[Any]:
        """Generated token ids of each row; with timestamps of words a pair of ids and seconds."""
        task, timestamps, _ = wish
        given = dict(batch)
        asked: dict[str, Any] = {"task": task} if task else {}
        if "language" in given:
            asked["language"] = [self._codes[place] for place in given.pop("language").flatten().tolist()]
        if timestamps:
            asked["return_timestamps"] = True
        if timestamps != "word":
            return list(self._model.generate(**given, **self._usual, **asked).cpu())
        asked |= {"return_token_timestamps": True, "return_segments": True}
        with _leaving_attention(self._model):
            told = self._model.generate(**given, **self._usual, **asked)
        seconds = [torch.cat([part["token_timestamps"] for part in parts]).cpu() for parts in told["segments"]]
        return list(zip(told["sequences"].cpu(), seconds, strict=True))

    def answer(self, outputs: Sequence[Any], spans: Sequence[Span], parameters: Any) -> dict[str, Any]:
        """The text of one sound, its windows joined where they say the same, and with timestamps its pieces."""
        timestamps, rate = parameters.return_timestamps or False, self._handler.rate
        windows: list[dict[str, Any]] = []
        for output, span in zip(outputs, spans, strict=True):
            ids, seconds = output if timestamps == "word" else (output, None)
            stride = (span.stop - span.start) / rate, span.left / rate, span.right / rate
            windows.append({"tokens": ids[None], "stride": stride})
            if seconds is not None:
                windows[-1]["token_timestamps"] = seconds[None]
        # The one place where transformers joins windows of Whisper; its own name in 4.57 and 5.
        text, more = self._tokenizer._decode_asr(  # noqa: SLF001
            windows, return_timestamps=timestamps, return_language=None, time_precision=self._precision
        )
        return {"text": text, **more}

    @staticmethod
    def _choice(names: Sequence[str]) -> str:
        return f"one of: {', '.join(names)}" if names else "no such parameter: it knows English alone"


@contextmanager
def _leaving_attention(model: Any) -> Iterator[None]:
    """For times of words transformers switches the model to attention that tells its weights, and leaves it so."""
    config = model.config
    before = config._attn_implementation  # noqa: SLF001  # its only name
    try:
        yield
    finally:
        config._attn_implementation = before  # noqa: SLF001


def _bare(language: str) -> str:
    return language.lower().removeprefix("<|").removesuffix("|>")


def _languages(ids: Mapping[str, int]) -> dict[str, str]:
    """Names and codes of the languages that a model knows, each to its code."""
    from transformers.models.whisper.tokenization_whisper import TO_LANGUAGE_CODE

    codes = {_bare(token) for token in ids}
    return {code: code for code in codes} | {name: code for name, code in TO_LANGUAGE_CODE.items() if code in codes}
