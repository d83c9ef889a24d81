"""The audio front end: code that all audio tasks share.

Sound files are decoded to samples with their request; samples become a model's features window by window, those of one
length in one call of the feature extractor for the whole batch. Windows of different lengths share a forward pass if a
test at load shows that the model's answers are the same padded and alone; those of models with a group norm over time
(``feat_extract_norm: group``, wav2vec2-base) are not. Otherwise windows of one shape share a pass.
"""

from __future__ import annotations

import inspect
import io
import wave
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from pydantic import Field

from tsbatch.batching.strategy import Choice
from tsbatch.errors import PayloadTooLarge, SettingsError, Unprocessable
from tsbatch.protocol.request import Item, Request
from tsbatch.settings import Section
from tsbatch.tasks.audio.sound_files import Samples, check_installed, decode_sound
from tsbatch.tasks.shared.grouping import Groups, collate_groups, map_groups, run_groups
from tsbatch.tasks.shared.pretrained import PretrainedHandler
from tsbatch.tasks.shared.pretrained_folder import PROCESSOR_FILES
from tsbatch.worker.resources import to_device

Options = tuple[Any, ...]
"""What a forward pass needs besides tensors; windows with different options are computed separately."""

PASS_SECONDS = 480
"""Sound in one forward pass: sixteen windows of 30 seconds. A wav2vec2-base needs some 200 MB for each."""
TOLERANCE = 1e-3
"""The largest change by padding, relative to the largest number. Where padding matters, it changes far more."""
EXAMPLE_SECONDS = (0.5, 1.0, 2.0)


class AudioOptions(Section):
    """The section ``handler:`` of model-config.yaml.

    Attributes:
        max_seconds: a longer sound gets a 413.
        max_request_seconds: the same limit for the sounds of a request together; at least ``max_seconds``.
    """

    max_seconds: float = Field(default=60.0, gt=0, description="seconds of sound in one item")
    max_request_seconds: float = Field(default=1800.0, gt=0, description="seconds of sound in one request")


class Decoding(NamedTuple):
    """What a request asks of the model.

    Attributes:
        options: the options of its forward pass.
        arrays: further inputs of the model, without the dimension of the batch.
    """

    options: Options = ()
    arrays: Mapping[str, Samples] = MappingProxyType({})


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """The features of a part of a sound.

    Attributes:
        arrays: the model's inputs by name, without the dimension of the batch.
        samples: the number of samples, padding by the feature extractor included.
        options: the options of its forward pass.
    """

    arrays: Mapping[str, Samples]
    samples: int
    options: Options = ()


class AudioHandler(PretrainedHandler):
    """Base of the audio tasks: decodes files, makes features, and decides which of them share a pass."""

    wants: ClassVar[Literal["text", "bytes", "json"]] = "bytes"
    model_inputs: ClassVar[Sequence[str]] = ("input_values", "input_features")
    input_schema: ClassVar[Any] = {
        "type": "string",
        "contentEncoding": "base64",
        "description": "a sound file (WAV, FLAC, OGG, MP3); also as a raw body, in a form, or as a data: URL",
    }
    settings_class: ClassVar[Any] = AudioOptions
    extractor: Any
    rate: int
    layers: list[tuple[int, int]]
    min_samples: int
    pads: bool
    _decoded = 0

    def prepare(self) -> None:
        """Load the feature extractor, and test whether sounds of different lengths may share a pass."""
        check_installed()
        from transformers import AutoFeatureExtractor

        self.extractor = self.from_folder("feature extractor", AutoFeatureExtractor, files=PROCESSOR_FILES)
        self.rate = self.extractor.sampling_rate
        self._known = frozenset(inspect.signature(self.model.forward).parameters)
        self.layers = self._waveform_layers()
        self.min_samples = self._min_samples()
        self.pads = self._may_pad()
        if self.memory.limit is None:
            self.memory.limit = PASS_SECONDS * self.rate

    def choose_batching(self) -> Choice:
        """Bucketed, by the cost of padding or by equal shape.

        Raises:
            SettingsError: this model does not support the mode in ``tsbatch.batching.mode``.
        """
        if self.pads:
            return super().choose_batching()
        mode = self.settings.batching.mode
        reason = "inputs of one shape share a pass, since padding could change the answers of this model"
        if mode not in ("auto", "bucketed"):
            raise SettingsError(f"model-config.yaml: tsbatch.batching.mode: {mode} cannot be used: {reason}")
        return Choice("bucketed", reason)

    def decode_request(self, request: Request) -> list[Item]:
        """Decode the items of one request, if its sounds are not too long together."""
        self._decoded = 0
        return super().decode_request(request)

    def decode_item(self, value: Any) -> Samples:
        """Decode a sound file at the model's rate.

        Raises:
            RequestError: not a sound file, broken, too long, or too short for the model.
        """
        samples = decode_sound(value, rate=self.rate, max_seconds=self.options.max_seconds)
        self._decoded += len(samples)  # minutes of silence are a few kilobytes as a file, and megabytes as samples
        limit = max(self.options.max_seconds, self.options.max_request_seconds)
        if self._decoded > limit * self.rate:
            message = f"the request's sounds are over {limit:g} seconds long together"
            raise PayloadTooLarge(message, expected="fewer or shorter ones; send the rest in another request")
        if len(samples) < self.min_samples:
            message = f"the sound has {len(samples)} samples at {self.rate:,} a second"
            raise Unprocessable(message, expected=f"at least {self.min_samples}, the minimum for this model")
        return samples

    def examples(self) -> Sequence[Any]:
        """Noise of different lengths, as WAV files."""
        return [wav_file(_noise(int(seconds * self.rate)), self.rate) for seconds in EXAMPLE_SECONDS]

    def windows(self, sounds: Sequence[Samples], decodings: Sequence[Decoding] = ()) -> list[Window]:
        """Make the features of parts of sounds; those of one length in one call, so that none is padded.

        Args:
            sounds: samples, each of shape (samples,).
            decodings: what the request of each asks of the model.
        """
        padded = getattr(self.extractor, "n_samples", None)  # Whisper's pads all to 30 seconds
        extracted = map_groups(sounds, [0 if padded else len(sound) for sound in sounds], self._extract)
        return [
            Window({**arrays, **decoding.arrays}, padded or len(sound), decoding.options)
            for arrays, sound, decoding in zip(extracted, sounds, decodings or [Decoding()] * len(sounds), strict=True)
        ]

    def _extract(self, sounds: Sequence[Samples]) -> list[dict[str, Samples]]:
        """The model's inputs for sounds of one length."""
        encoded = self.extractor(list(sounds), sampling_rate=self.rate, return_tensors="np", return_attention_mask=True)
        names = [name for name in encoded if name in self._known]
        return [{name: encoded[name][row] for name in names} for row in range(len(sounds))]

    def lengths(self, features: Sequence[Window]) -> Sequence[int]:
        """The number of samples of each window."""
        return [feature.samples for feature in features]

    def collate(self, features: Sequence[Window]) -> Groups:
        """Group windows with the same options: padded if the model allows it, else of one shape too."""
        options = [feature.options for feature in features]
        keys = options if self.pads else [(feature.options, _shapes(feature)) for feature in features]
        return collate_groups(features, keys, pad_windows, options)

    def inference(self, tensors: Groups) -> Any:
        """Run each group with :meth:`outputs`; one output a window, in their order."""
        return run_groups(tensors, lambda batch, options: self.outputs(to_device(batch, self.device), options))

    def outputs(self, batch: Mapping[str, torch.Tensor], options: Options = ()) -> Sequence[Any]:
        """One output for each row of a group, without the part that belongs to padding; by default the logits."""
        del options
        return self.logits(batch)

    def logits(self, batch: Mapping[str, torch.Tensor]) -> Sequence[torch.Tensor]:
        """For each row of a batch the logits, which padding must not change; empty for a model that is never padded."""
        del batch
        return []

    def frames(self, samples: torch.Tensor) -> torch.Tensor:
        """The number of frames that a model on waveforms makes of each number of samples (int64, any shape)."""
        for kernel, stride in self.layers:
            samples = (samples - kernel) // stride + 1
        return samples

    def _waveform_layers(self) -> list[tuple[int, int]]:
        """Kernel and stride of each convolution over the waveform; empty for a model on spectrograms."""
        config = getattr(self.model.config, "encoder", self.model.config)
        if "input_values" not in self.extractor.model_input_names or not hasattr(config, "conv_kernel"):
            return []
        return list(zip(config.conv_kernel, config.conv_stride, strict=True))

    def _min_samples(self) -> int:
        """The length of the shortest sound for which the model makes a frame."""
        samples = 1
        for kernel, stride in reversed(self.layers):
            samples = (samples - 1) * stride + kernel
        if self.layers or hasattr(self.extractor, "n_samples"):
            return samples
        return self.rate // 40 + 1  # spectrograms have frames of 25 milliseconds

    def _may_pad(self) -> bool:
        if not self.layers or getattr(self.model.config, "feat_extract_norm", None) == "group":
            return False
        short = self.min_samples
        windows = self.windows([_noise(short + self.rate // 4), _noise(short + self.rate // 7, seed=1)])
        if any("attention_mask" not in window.arrays for window in windows):
            return False
        with torch.inference_mode():
            together, *alone = (
                self.logits(to_device(pad_windows(group), self.device)) for group in (windows, windows[:1], windows[1:])
            )
        return len(together) == len(windows) and all(
            padded.shape == row.shape and float((padded - row).abs().max()) <= TOLERANCE * float(row.abs().max())
            for padded, [row] in zip(together, alone, strict=True)
        )


def _shapes(window: Window) -> tuple[Any, ...]:
    return tuple(array.shape for array in window.arrays.values())


def pad_windows(windows: Sequence[Window]) -> dict[str, torch.Tensor]:
    """Stack windows' arrays, padded with zeros at the end of their first axis; the mask too."""
    batch = {}
    for name, first in windows[0].arrays.items():
        rows = [window.arrays[name] for window in windows]
        table = np.zeros((len(rows), max(map(len, rows)), *first.shape[1:]), first.dtype)
        for target, row in zip(table, rows, strict=True):
            target[: len(row)] = row
        batch[name] = torch.from_numpy(table)
    return batch


def _noise(samples: int, seed: int = 0) -> Samples:
    return np.random.default_rng(seed).normal(0, 0.1, samples).astype(np.float32)


def wav_file(samples: Samples, rate: int) -> bytes:
    """Samples from -1 to 1, of shape (samples,), as a WAV file of 16 bits."""
    file = io.BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setparams((1, 2, rate, 0, "NONE", ""))
        sound.writeframes((samples.clip(-1, 1) * 32_767).astype("<i2").tobytes())
    return file.getvalue()
