"""Decode sound files for audio models: one channel, float32, at the model's rate.

libsndfile (the package soundfile) reads WAV, FLAC, OGG (Vorbis, Opus, FLAC) and MP3. libsoxr converts rates (the
package soxr) in its quality HQ, as librosa does by default; several channels are averaged. A file is decoded block by
block, so that memory holds only its bytes and the result; one that would decode to hours is refused first.
"""

from __future__ import annotations

import functools
import importlib.util
import io
import struct
from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from tsbatch.errors import LoadError, PayloadTooLarge, Unprocessable, UnsupportedMedia

Samples = np.ndarray[Any, Any]

FORMATS: Final = ("WAV", "FLAC", "OGG", "MP3")
RATES: Final = (1_000, 192_000)
"""Allowed samples a second: fewer cannot hold speech, and no recording has more."""
CHANNELS: Final = 8
BLOCK: Final = 1 << 18
"""Samples of all channels together that are decoded at once."""

_EXPECTED: Final = f"a sound file: {', '.join(FORMATS)}"
_STREAMED: Final = 0x7FFF_0000
"""Programs that write a WAV into a pipe do not know its size, and write 0 or a number over this."""


def check_installed() -> None:
    """Check that the worker can read sound files.

    Raises:
        LoadError: a package is missing.
    """
    missing = [name for name in ("soundfile", "soxr") if importlib.util.find_spec(name) is None]
    if missing:
        raise LoadError(f"this task reads sound files with {' and '.join(missing)}: pip install 'tsbatch[audio]'")


def decode_sound(raw: bytes, *, rate: int, max_seconds: float) -> Samples:
    """Decode the samples of a sound file.

    Args:
        raw: the file.
        rate: samples a second to convert to.
        max_seconds: the limit for its length.

    Returns:
        Float32 of shape (samples,), from -1 to 1 for files of integers.

    Raises:
        UnsupportedMedia: not a sound file of a supported format.
        PayloadTooLarge: longer than ``max_seconds``.
        Unprocessable: a sound file that is broken, cut off or empty, or has an impossible rate or number of channels.
    """
    _check_kind(raw)
    sequential, failure = _reader()
    try:
        with sequential(io.BytesIO(raw)) as file:
            _check_header(file, raw, max_seconds)
            pieces = list(_converted(_mono(file), file.samplerate, rate))
    except failure as error:
        raise Unprocessable(f"the sound file is broken: {_reason(error)}", expected=_EXPECTED) from None
    samples = np.concatenate(pieces) if pieces else np.empty(0, np.float32)
    if not samples.size:
        raise Unprocessable("the sound file has no sound in it", expected="at least one sample")
    if not np.isfinite(samples).all():
        raise Unprocessable("the sound file has samples that are not numbers", expected="samples from -1 to 1")
    return samples


def _reason(error: Exception) -> str:
    """What libsndfile says, without the Python object that soundfile puts before it, whose address helps nobody."""
    return str(getattr(error, "error_string", error))[:200]


@functools.cache
def _reader() -> tuple[type[Any], type[Exception]]:
    """The class that reads a sound file, and the error that it raises."""
    import soundfile

    class Sequential(soundfile.SoundFile):  # type: ignore[misc]  # has no types
        def seekable(self) -> bool:
            # Otherwise it seeks to the current position after each block, and an MP3 loses data of the previous frame.
            return False

    return Sequential, soundfile.SoundFileError


def _check_kind(raw: bytes) -> None:
    """Check the format by the first bytes, before libsndfile tries all that it knows."""
    wav = raw[:4] in (b"RIFF", b"RIFX", b"RF64") and raw[8:12] == b"WAVE"
    mp3 = raw[:3] == b"ID3" or (len(raw) > 1 and raw[0] == 0xFF and raw[1] & 0xE6 in (0xE2, 0xE4, 0xE6))
    if not (wav or mp3 or raw[:4] in (b"fLaC", b"OggS")):
        raise UnsupportedMedia("the bytes are not a sound file", expected=_EXPECTED)


def _check_header(file: Any, raw: bytes, max_seconds: float) -> None:
    kind = "WAV" if file.format in ("WAVEX", "RF64") else file.format
    if kind not in FORMATS:
        raise UnsupportedMedia(f"the sound file is {file.format}", expected=_EXPECTED)
    low, high = RATES
    if not low <= file.samplerate <= high:
        message = f"the sound file has {file.samplerate:,} samples a second"
        raise Unprocessable(message, expected=f"{low:,} to {high:,}")
    if file.channels > CHANNELS:
        raise Unprocessable(f"the sound file has {file.channels} channels", expected=f"1 to {CHANNELS}")
    if (kind == "WAV" and _wav_is_cut(raw)) or (kind == "OGG" and _ogg_is_cut(raw)):
        raise _cut_off()
    seconds = file.frames / file.samplerate
    if seconds > max_seconds:
        message = f"the sound is {seconds:,.1f} seconds long, over the limit of {max_seconds:g}"
        raise PayloadTooLarge(message, expected=f"{max_seconds:g} seconds or less; send longer ones in parts")


def _cut_off() -> Unprocessable:
    return Unprocessable("the sound file is cut off: it has less data than its header says", expected="the whole file")


def _wav_is_cut(raw: bytes) -> bool:
    """Whether a WAV file ends before its data does; libsndfile would read what is there."""
    layout, offset = (">4sI" if raw[:4] == b"RIFX" else "<4sI"), 12
    while offset + 8 <= len(raw):
        name, size = struct.unpack_from(layout, raw, offset)
        if name == b"data":
            return bool(size < _STREAMED and offset + 8 + size > len(raw))
        offset += 8 + size + size % 2
    return True


def _ogg_is_cut(raw: bytes) -> bool:
    """Whether the last page of an OGG file (RFC 3533) is incomplete; libsndfile would ignore it."""
    page = raw.rfind(b"OggS")
    sizes = raw[page + 27 : page + 27 + (raw[page + 26] if page + 26 < len(raw) else 256)]
    return page + 26 >= len(raw) or len(sizes) < raw[page + 26] or page + 27 + len(sizes) + sum(sizes) > len(raw)


def _mono(file: Any) -> Iterator[Samples]:
    """Average the channels, a block at a time.

    Raises:
        Unprocessable: there are fewer samples than the header says.
    """
    seen, size = 0, max(1, BLOCK // file.channels)
    while len(block := file.read(size, dtype="float32", always_2d=True)):
        seen += len(block)
        yield block[:, 0] if file.channels == 1 else block.mean(axis=1)
    if seen < file.frames:
        raise _cut_off()


def _converted(blocks: Iterator[Samples], rate: int, wanted: int) -> Iterator[Samples]:
    if rate == wanted:
        yield from blocks
        return
    import soxr

    stream = soxr.ResampleStream(rate, wanted, 1, dtype="float32", quality="HQ")
    for block in blocks:
        yield stream.resample_chunk(block)
    yield stream.resample_chunk(np.empty(0, np.float32), last=True)
