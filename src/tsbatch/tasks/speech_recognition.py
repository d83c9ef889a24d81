"""speech-recognition: the words in a sound, with a transformers folder of a CTC model or an encoder-decoder.

Input: a sound file (WAV, FLAC, OGG, MP3), or a list of them. Parameters: ``return_timestamps``, ``chunk_length_s``,
``stride_length_s``, and for Whisper ``language`` and ``task``. Output for each sound, as in transformers' pipeline::

    {"text": "the cat sat"}
    {"text": "the cat sat", "chunks": [{"text": "the", "timestamp": [0.1, 0.28]}, …]}     with timestamps

CTC models (Wav2Vec2, HuBERT, WavLM ...) give timestamps of each ``word`` or ``char``, Whisper of segments (true) or of
each ``word``. Sounds over 30 seconds are divided into overlapping windows; those of all requests share forward passes.

Limits: ``handler.max_seconds`` of sound in an item, by default 600; ``handler.max_request_seconds`` in a request, 1800;
``handler.max_window_seconds`` in one window, 60.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field

from tsbatch.errors import SettingsError, Unprocessable
from tsbatch.protocol.request import Item
from tsbatch.settings import Section
from tsbatch.tasks.audio.handler import AudioHandler, AudioOptions, Options, Window
from tsbatch.tasks.audio.recognisers import Ctc, Generator, Whisper
from tsbatch.tasks.audio.speech_windows import Cutting
from tsbatch.tasks.shared.pretrained_folder import read_config
from tsbatch.tasks.shared.schemas import STRING, array_of, object_of

Seconds = Annotated[float, Field(ge=0, le=86_400)]
DEFAULT_WINDOW = 30.0


class SpeechOptions(AudioOptions):
    """The section ``handler:`` of model-config.yaml.

    Attributes:
        max_seconds: a longer sound gets a 413.
        max_request_seconds: the same limit for the sounds of a request together; at least ``max_seconds``.
        chunk_length_s: the length of the windows of long sounds, unless the request sets it; 0: no windows.
        max_window_seconds: the longest window, and the longest sound without windows.
        num_beams: for generating models; 1 is several times faster than the pipeline's five.
        max_new_tokens: for generating models, in each window.
    """

    max_seconds: float = Field(default=600.0, gt=0, description="seconds of sound in one item")
    chunk_length_s: Seconds | None = Field(default=None, description="default: 30, or the longest window of Whisper")
    max_window_seconds: float = Field(default=60.0, gt=0)
    num_beams: int | None = Field(default=None, ge=1)
    max_new_tokens: int | None = Field(default=None, ge=1)


class SpeechParameters(Section):
    """Parameters of a request.

    Attributes:
        return_timestamps: ``word`` or ``char`` (CTC); true for segments or ``word`` (Whisper).
        chunk_length_s: length of a window; 0 for the whole sound in one.
        stride_length_s: how much of each end of a window only serves as context; a number, or left and right.
        language: the spoken language, as ``en`` or ``english``; by default Whisper detects it.
        task: ``transcribe``, or ``translate`` into English.
    """

    return_timestamps: bool | Literal["word", "char"] | None = None
    chunk_length_s: Seconds | None = None
    stride_length_s: Seconds | Annotated[list[Seconds], Field(min_length=2, max_length=2)] | None = None
    language: str | None = Field(default=None, max_length=40)
    task: Literal["transcribe", "translate"] | None = None


class SpeechRecognitionHandler(AudioHandler):
    """Transcribes speech. See the module for input, output and parameters."""

    task: ClassVar[str] = "speech-recognition"
    output_schema: ClassVar[Any] = object_of(
        {"text": STRING},
        {"chunks": array_of(object_of({}, {"text": STRING, "timestamp": array_of({"type": ["number", "null"]})}))},
    )
    parameters_class: ClassVar[Any] = SpeechParameters
    settings_class: ClassVar[Any] = SpeechOptions
    max_window: float
    default_window: float

    def load_model(self) -> Any:
        """Load the model with the Auto class for its config."""
        from transformers import AutoConfig, AutoModelForCTC, AutoModelForSpeechSeq2Seq
        from transformers.models.auto.modeling_auto import MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING

        read_config(self.model_dir)
        config = self.from_folder("config", AutoConfig)
        self.generates = type(config) in MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING
        return self.load_pretrained(AutoModelForSpeechSeq2Seq if self.generates else AutoModelForCTC, complete=True)

    def load_tokenizer(self) -> Any:
        """Load the tokenizer of the model folder."""
        return self.load_pretrained_tokenizer()

    def prepare(self) -> None:
        """Load the feature extractor, choose the recogniser, and determine the length of windows.

        Raises:
            SettingsError: ``handler.chunk_length_s`` is over the longest window.
        """
        super().prepare()
        limit: float = self.options.max_window_seconds
        padded = getattr(self.extractor, "n_samples", None)  # Whisper's pads windows to 30 seconds
        self.max_window = min(limit, padded / self.rate) if padded else limit
        asked = self.options.chunk_length_s
        self.default_window = min(DEFAULT_WINDOW, self.max_window) if asked is None else asked
        if self.default_window > self.max_window:
            message = f"handler.chunk_length_s: over the longest window, {self.max_window:g} seconds"
            raise SettingsError(f"model-config.yaml: {message}")

    @cached_property
    def recogniser(self) -> Ctc | Generator:
        """Turns the model's outputs into text."""
        if not self.generates:
            return Ctc(self)
        return Whisper(self) if self.model.config.model_type == "whisper" else Generator(self)

    def check_item(self, item: Item) -> None:
        """Check that the model supports the item's parameters, and divide its sound into windows."""
        self.recogniser.decoding(item.parameters)
        window, strides = item.parameters.chunk_length_s, item.parameters.stride_length_s
        if not self.recogniser.windowed:
            if window or strides:
                message = "parameters.chunk_length_s: this model takes a sound as a whole"
                raise Unprocessable(message, expected="no such parameter")
            window = 0
        cutting = Cutting(
            window=self.default_window if window is None else window,
            strides=[strides, strides] if isinstance(strides, float | int) else strides,
            longest=self.max_window,
            align=self.recogniser.align,
            shortest=self.min_samples,
        )
        item.state = cutting.spans(len(item.value), self.rate)

    def preprocess(self, items: Sequence[Item]) -> list[list[Window]]:
        """Make the windows of each item."""
        sounds = [item.value[span.start : span.stop] for item in items for span in item.state]
        decodings = [self.recogniser.decoding(item.parameters) for item in items for _ in item.state]
        ready = iter(self.windows(sounds, decodings))
        return [[next(ready) for _ in item.state] for item in items]

    def outputs(self, batch: Mapping[str, torch.Tensor], options: Options = ()) -> Sequence[Any]:
        """The recogniser's output for each window."""
        return self.recogniser.outputs(batch, options)

    def logits(self, batch: Mapping[str, torch.Tensor]) -> Sequence[torch.Tensor]:
        """The logits of a CTC model; none for one that generates."""
        return self.recogniser.logits(batch)

    def postprocess(self, outputs: Sequence[Sequence[Any]], items: Sequence[Item]) -> list[dict[str, Any]]:
        """Turn the outputs of each item's windows into its text."""
        return [
            self.recogniser.answer(windows, item.state, item.parameters)
            for windows, item in zip(outputs, items, strict=True)
        ]

    def describe_handle(self) -> dict[str, Any]:
        """Describe the task's input and output, and this model's settings."""
        return {**super().describe_handle(), "max_window_seconds": self.max_window}
