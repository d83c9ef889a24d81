"""speech-recognition: the words in a sound, from a transformers folder of a CTC model or an encoder-decoder.

Input: a sound file (WAV, FLAC, OGG, MP3), or a list of them. Parameters: ``return_timestamps``, ``chunk_length_s``,
``stride_length_s``, and for Whisper ``language`` and ``task``. Output for each sound, as transformers' pipeline::

    {"text": "the cat sat"}
    {"text": "the cat sat", "chunks": [{"text": "the", "timestamp": [0.1, 0.28]}, …]}     with timestamps

CTC models (Wav2Vec2, HuBERT, WavLM ...) give timestamps of each ``word`` or ``char``, Whisper of stretches (true) or of
each ``word``. Sounds over 30 seconds are heard in overlapping windows; those of all requests share forward passes.

Limits: ``handler.max_seconds`` of sound in an item, 600 unless set; ``handler.max_request_seconds`` in a request, 1800;
``handler.max_window_seconds`` heard at once, 60.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field

from tsbatch.errors import SettingsError, Unprocessable
from tsbatch.protocol.request import Item, Request
from tsbatch.settings import Section
from tsbatch.tasks.audio.ctc import Ctc
from tsbatch.tasks.audio.handler import AudioHandler, AudioOptions, Window, Wish
from tsbatch.tasks.audio.speech_generation import Generator, Whisper
from tsbatch.tasks.audio.speech_windows import Cutting, Span
from tsbatch.tasks.shared.pretrained_folder import read_config

Seconds = Annotated[float, Field(ge=0, le=86_400)]
USUAL_WINDOW = 30.0


class SpeechOptions(AudioOptions):
    """The section ``handler:`` of model-config.yaml.

    Attributes:
        max_seconds: a longer sound is refused with a 413.
        max_request_seconds: so is a request whose sounds are longer together; never less than ``max_seconds``.
        chunk_length_s: windows that long sounds are cut into, unless a request asks for others; 0 for none.
        max_window_seconds: the longest window, and the longest sound heard at once.
        num_beams: of models that generate; 1 is several times faster than the pipeline's five.
        max_new_tokens: of models that generate, for each window.
    """

    max_seconds: float = Field(default=600.0, gt=0, description="seconds of sound in one item")
    chunk_length_s: Seconds | None = Field(default=None, description="left out: 30, or what Whisper hears at once")
    max_window_seconds: float = Field(default=60.0, gt=0)
    num_beams: int | None = Field(default=None, ge=1)
    max_new_tokens: int | None = Field(default=None, ge=1)


class SpeechParameters(Section):
    """What a request may ask for.

    Attributes:
        return_timestamps: ``word`` or ``char`` (CTC); true for stretches or ``word`` (Whisper).
        chunk_length_s: length of a window; 0 for the whole sound in one.
        stride_length_s: how much of either end of a window is heard for context only; a number, or left and right.
        language: what is spoken, as ``en`` or ``english``; Whisper finds out by itself when left out.
        task: ``transcribe``, or ``translate`` into English.
    """

    return_timestamps: bool | Literal["word", "char"] | None = None
    chunk_length_s: Seconds | None = None
    stride_length_s: Seconds | Annotated[list[Seconds], Field(min_length=2, max_length=2)] | None = None
    language: str | None = Field(default=None, max_length=40)
    task: Literal["transcribe", "translate"] | None = None


class SpeechRecognitionHandler(AudioHandler):
    """Writes down speech. See the module for input, output and parameters."""

    task: ClassVar[str] = "speech-recognition"
    output_schema: ClassVar[Any] = {
        "type": "object",
        "required": ["text"],
        "properties": {
            "text": {"type": "string"},
            "chunks": {
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {
                        "text": {"type": "string"},
                        "timestamp": {"type": "array", "items": {"type": ["number", "null"]}},
                    },
                },
            },
        },
    }
    parameters_class: ClassVar[Any] = SpeechParameters
    settings_class: ClassVar[Any] = SpeechOptions
    recogniser: Ctc | Generator
    longest: float
    usual: float

    def load_model(self) -> Any:
        """The model, by what its config is of."""
        from transformers import AutoConfig, AutoModelForCTC, AutoModelForSpeechSeq2Seq
        from transformers.models.auto.modeling_auto import MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING

        read_config(self.model_dir)
        config = self.from_folder("config", AutoConfig)
        self.generates = type(config) in MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING
        return self.load_pretrained(AutoModelForSpeechSeq2Seq if self.generates else AutoModelForCTC, complete=True)

    def load_tokenizer(self) -> Any:
        """The tokenizer of the model folder."""
        return self.load_pretrained_tokenizer()

    def prepare(self) -> None:
        """Load the feature extractor, choose how the model's outputs become text, and how long sounds are cut.

        Raises:
            SettingsError: windows longer than what is heard at once.
        """
        super().prepare()
        limit: float = self.options.max_window_seconds
        filled = getattr(self.extractor, "n_samples", None)  # Whisper's fills windows up to 30 seconds
        self.longest = min(limit, filled / self.rate) if filled else limit
        asked = self.options.chunk_length_s
        self.usual = min(USUAL_WINDOW, self.longest) if asked is None else asked
        if self.usual > self.longest:
            raise SettingsError(
                f"model-config.yaml: handler.chunk_length_s: over what is heard at once, {self.longest:g}"
            )

    def extractor_loaded(self) -> None:
        """Choose how the model's outputs become text, before padding is tried with it."""
        if not self.generates:
            self.recogniser = Ctc(self)
        elif self.model.config.model_type == "whisper":
            self.recogniser = Whisper(self)
        else:
            self.recogniser = Generator(self)

    def decode_request(self, request: Request) -> list[Item]:
        """The items of one request, with parameters that this model has, and the windows of each sound."""
        items = super().decode_request(request)
        for item in items:
            self.recogniser.wish(item.parameters)
            item.state = self._spans(len(item.value), item.parameters)
        return items

    def preprocess(self, items: Sequence[Item]) -> list[list[Window]]:
        """The windows of each item."""
        owners = [item for item in items for _ in item.state]
        stretches = [item.value[span.start : span.stop] for item in items for span in item.state]
        windows = self.windows(stretches, [self.recogniser.wish(item.parameters) for item in owners])
        ready = iter(
            [
                replace(window, arrays={**window.arrays, **self.recogniser.arrays(item.parameters)})
                for window, item in zip(windows, owners, strict=True)
            ]
        )
        return [[next(ready) for _ in item.state] for item in items]

    def outputs(self, batch: Mapping[str, torch.Tensor], wish: Wish) -> Sequence[Any]:
        """What the recogniser makes texts of, for each window."""
        return self.recogniser.outputs(batch, wish)

    def proof(self, batch: Mapping[str, torch.Tensor]) -> Sequence[torch.Tensor] | None:
        """The logits of a CTC model; None for one that generates."""
        return self.recogniser.proof(batch)

    def postprocess(self, outputs: Sequence[Sequence[Any]], items: Sequence[Item]) -> list[dict[str, Any]]:
        """The windows' outputs of each item to its text."""
        return [
            self.recogniser.answer(windows, item.state, item.parameters)
            for windows, item in zip(outputs, items, strict=True)
        ]

    def describe_handle(self) -> dict[str, Any]:
        """What the task takes and gives, and how this model is set."""
        return {**super().describe_handle(), "max_window_seconds": self.longest}

    def _spans(self, samples: int, parameters: SpeechParameters) -> list[Span]:
        window, strides = parameters.chunk_length_s, parameters.stride_length_s
        if not self.recogniser.windowed:
            if window or strides:
                message = "parameters.chunk_length_s: this model hears a sound as a whole"
                raise Unprocessable(message, expected="no such parameter")
            window = 0
        cutting = Cutting(
            window=self.usual if window is None else window,
            strides=[strides, strides] if isinstance(strides, float | int) else strides,
            longest=self.longest,
            align=self.recogniser.align,
            least=self.least,
        )
        return cutting.spans(samples, self.rate)
