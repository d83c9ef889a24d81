"""The audio front end: what every task on sound shares.

A request's sound files become samples when it is decoded; samples become a model's features window by window, those of
one length in one call of the feature extractor for the whole batch. Windows of different lengths share a forward pass
where the model gives the same answers for them padded and alone, which it has to show at load; models with a group norm
over time (``feat_extract_norm: group``, wav2vec2-base) do not. Otherwise windows of one shape share one.
"""

from __future__ import annotations

import inspect
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field

from tsbatch.batching.strategy import Choice
from tsbatch.errors import PayloadTooLarge, SettingsError, Unprocessable
from tsbatch.protocol.request import Item, Request
from tsbatch.settings import Section
from tsbatch.tasks.audio.sound_files import Samples, check_installed, decode_sound
from tsbatch.tasks.shared.equal_shapes import Groups, run_groups, same_shape
from tsbatch.tasks.shared.pretrained import PretrainedHandler
from tsbatch.tasks.shared.pretrained_folder import PROCESSOR_FILES
from tsbatch.worker.resources import to_device

Wish = tuple[Any, ...]

PASS_SECONDS = 480
"""Sound in one forward pass: sixteen windows of 30 seconds. A wav2vec2-base holds some 200 MB for each meanwhile."""
SAME = 1e-3
"""The most that padding may change, as a part of the largest number. What padding spoils, it changes by far more."""
EXAMPLE_SECONDS = (0.5, 1.0, 2.0)


class AudioOptions(Section):
    """The section ``handler:`` of model-config.yaml.

    Attributes:
        max_seconds: a longer sound is refused with a 413.
        max_request_seconds: so is a request whose sounds are longer together; never less than ``max_seconds``.
    """

    max_seconds: float = Field(default=60.0, gt=0, description="seconds of sound in one item")
    max_request_seconds: float = Field(default=1800.0, gt=0, description="seconds of sound in one request")


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """A stretch of sound as the model takes it.

    Attributes:
        arrays: the model's inputs by name, without the dimension of the batch.
        samples: how many samples it stands for, those that fill it up included.
        wish: what its request wants of the model; windows of different wishes are computed apart.
    """

    arrays: Mapping[str, Samples]
    samples: int
    wish: Wish = ()


class AudioHandler(PretrainedHandler):
    """Base of the audio tasks: files to samples, samples to features, and which of them share a pass."""

    wants: ClassVar[Literal["text", "bytes", "json"]] = "bytes"
    item_ndim: ClassVar[int | None] = 0
    deterministic: ClassVar[bool] = True
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
    least: int
    pads: bool
    _decoded = 0

    def prepare(self) -> None:
        """Load the feature extractor, and see whether sounds of different lengths may share a pass."""
        check_installed()
        from transformers import AutoFeatureExtractor

        self.extractor = self.from_folder("feature extractor", AutoFeatureExtractor, files=PROCESSOR_FILES)
        self.rate = self.extractor.sampling_rate
        self.extractor_loaded()
        self._known = frozenset(inspect.signature(self.model.forward).parameters)
        self.layers = self._waveform_layers()
        self.least = self._least_samples()
        self.pads = self._may_pad()
        if self.memory.limit is None:
            self.memory.limit = PASS_SECONDS * self.rate

    def extractor_loaded(self) -> None:
        """For what a task needs before padding is tried; does nothing."""

    def choose_batching(self) -> Choice:
        """Bucketed: by what padding costs, or by equal shape.

        Raises:
            SettingsError: ``tsbatch.batching.mode`` asks for what this model cannot do.
        """
        if self.pads:
            return super().choose_batching()
        mode = self.settings.batching.mode
        reason = "inputs of one shape share a pass, since padding could change what this model answers"
        if mode not in ("auto", "bucketed"):
            raise SettingsError(f"model-config.yaml: tsbatch.batching.mode: {mode} cannot be used: {reason}")
        return Choice("bucketed", reason)

    def decode_request(self, request: Request) -> list[Item]:
        """The items of one request: sounds, and not too much of them."""
        self._decoded = 0
        return super().decode_request(request)

    def decode_item(self, value: Any) -> Samples:
        """The samples of a sound file, at the model's rate.

        Raises:
            RequestError: not a sound file, broken, too long, or too short for the model.
        """
        samples = decode_sound(value, rate=self.rate, max_seconds=self.options.max_seconds)
        self._decoded += len(samples)  # minutes of silence are a file of some kilobytes, and megabytes of samples
        most = max(self.options.max_seconds, self.options.max_request_seconds)
        if self._decoded > most * self.rate:
            message = f"the request's sounds are over {most:g} seconds long together"
            raise PayloadTooLarge(message, expected="fewer or shorter ones; send the rest in another request")
        if len(samples) < self.least:
            message = f"the sound has {len(samples)} samples at {self.rate:,} a second"
            raise Unprocessable(message, expected=f"at least {self.least}, the shortest that this model hears")
        return samples

    def examples(self) -> Sequence[Any]:
        """Noise of some lengths, as WAV files."""
        return [wav_file(_noise(int(seconds * self.rate)), self.rate) for seconds in EXAMPLE_SECONDS]

    def windows(self, stretches: Sequence[Samples], wishes: Sequence[Wish] | None = None) -> list[Window]:
        """Features of stretches of sound; those of one length in one call, so that none is padded for another's sake.

        Args:
            stretches: samples, each of shape (samples,).
            wishes: what each one's request wants of the model; nothing in particular when left out.
        """
        filled = getattr(self.extractor, "n_samples", None)  # Whisper's fills all up to 30 seconds
        found: dict[int, Window] = {}
        for places in same_shape([() if filled else stretch.shape for stretch in stretches]):
            encoded = self.extractor(
                [stretches[place] for place in places],
                sampling_rate=self.rate,
                return_tensors="np",
                return_attention_mask=True,
            )
            named = {name: encoded[name] for name in encoded if name in self._known}
            for row, place in enumerate(places):
                arrays = {name: array[row] for name, array in named.items()}
                found[place] = Window(arrays, filled or len(stretches[place]), wishes[place] if wishes else ())
        return [found[place] for place in range(len(stretches))]

    def lengths(self, features: Sequence[Window]) -> Sequence[int]:
        """Samples of each window."""
        return [feature.samples for feature in features]

    def collate(self, features: Sequence[Window]) -> Groups:
        """Windows to groups of tensors: those of one wish, padded where the model allows, else of one shape too."""
        if self.pads:
            places = same_shape([feature.wish for feature in features])
        else:
            places = same_shape([(feature.wish, _shapes(feature)) for feature in features])
        batches = [pad_windows([features[place] for place in group]) for group in places]
        return Groups(places, batches, [features[group[0]].wish for group in places])

    def inference(self, tensors: Groups) -> Any:
        """Each group through the model: what :meth:`outputs` makes of each window, in their order."""
        return run_groups(tensors, lambda batch, wish: self.outputs(to_device(batch, self.device), wish))

    def outputs(self, batch: Mapping[str, torch.Tensor], wish: Wish) -> Sequence[Any]:
        """One output for each row of a group, what comes of padding cut off."""
        raise NotImplementedError

    def proof(self, batch: Mapping[str, torch.Tensor]) -> Sequence[torch.Tensor] | None:
        """For each row of a batch what padding must not change; None for a model that is never padded."""
        del batch
        return None

    def frames(self, samples: torch.Tensor) -> torch.Tensor:
        """How many frames a model on waveforms makes of so many samples (int64, any shape)."""
        for kernel, stride in self.layers:
            samples = (samples - kernel) // stride + 1
        return samples

    def _waveform_layers(self) -> list[tuple[int, int]]:
        """Kernel and stride of each convolution over the waveform; none for a model on spectrograms."""
        config = getattr(self.model.config, "encoder", self.model.config)
        if "input_values" not in self.extractor.model_input_names or not hasattr(config, "conv_kernel"):
            return []
        return list(zip(config.conv_kernel, config.conv_stride, strict=True))

    def _least_samples(self) -> int:
        """The shortest sound of which the model makes a frame."""
        least = 1
        for kernel, stride in reversed(self.layers):
            least = (least - 1) * stride + kernel
        if self.layers or hasattr(self.extractor, "n_samples"):
            return least
        return self.rate // 40 + 1  # spectrograms have frames of 25 milliseconds

    def _may_pad(self) -> bool:
        if not self.layers or getattr(self.model.config, "feat_extract_norm", None) == "group":
            return False
        stretches = [_noise(self.least + self.rate // 4), _noise(self.least + self.rate // 7, seed=1)]
        windows = self.windows(stretches)
        if any("attention_mask" not in window.arrays for window in windows):
            return False
        with torch.inference_mode():
            together = self._proof(windows)
            alone = [row for window in windows for row in self._proof([window])]
        return len(together) == len(alone) == len(windows) and all(
            one.shape == other.shape and float((one - other).abs().max()) <= SAME * float(other.abs().max())
            for one, other in zip(together, alone, strict=True)
        )

    def _proof(self, windows: Sequence[Window]) -> Sequence[torch.Tensor]:
        return self.proof(to_device(pad_windows(windows), self.device)) or []


def _shapes(window: Window) -> tuple[Any, ...]:
    return tuple(array.shape for array in window.arrays.values())


def pad_windows(windows: Sequence[Window]) -> dict[str, torch.Tensor]:
    """Windows' arrays stacked, shorter ones filled up with zeros at the end of their first axis, the mask's too."""
    batch = {}
    for name, first in windows[0].arrays.items():
        rows = [window.arrays[name] for window in windows]
        table = np.zeros((len(rows), max(map(len, rows)), *first.shape[1:]), first.dtype)
        for place, row in zip(table, rows, strict=True):
            place[: len(row)] = row
        batch[name] = torch.from_numpy(table)
    return batch


def _noise(samples: int, seed: int = 0) -> Samples:
    return np.random.default_rng(seed).normal(0, 0.1, samples).astype(np.float32)


def wav_file(samples: Samples, rate: int) -> bytes:
    """Samples from -1 to 1, of shape (samples,), as a WAV file of 16 bits."""
    data = (samples.clip(-1, 1) * 32_767).astype("<i2").tobytes()
    about = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 1, rate, 2 * rate, 2, 16)
    chunks = about + struct.pack("<4sI", b"data", len(data)) + data
    return struct.pack("<4sI4s", b"RIFF", 4 + len(chunks), b"WAVE") + chunks
