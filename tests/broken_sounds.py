"""Sound files that are broken, disguised or hostile, and the statuses that each may get."""

from __future__ import annotations

import io
import struct

import numpy as np

from tests.varied_sounds import encoded, speech

RATE = 16_000
KINDS = {
    "wav": ("WAV", "PCM_16"),
    "flac": ("FLAC", "PCM_16"),
    "ogg": ("OGG", "VORBIS"),
    "opus": ("OGG", "OPUS"),
    "mp3": ("MP3", "MPEG_LAYER_III"),
}
BROKEN, UNKNOWN, LONG = {400, 415, 422}, {415}, {413}


def catalogue():
    """By name: the bytes, and the statuses that are right."""
    found = {"zero bytes": (b"", {400})}
    for name, (kind, subtype) in KINDS.items():
        raw = encoded(speech(2.0, RATE, seed=3), RATE, kind=kind, subtype=subtype)
        for tenth in range(1, 10):
            found[f"{name} cut at {tenth}0 %"] = (raw[: len(raw) * tenth // 10], BROKEN)
        found[f"{name}: its first 16 bytes and nonsense"] = (raw[:16] + np.random.default_rng(0).bytes(4_000), BROKEN)
        found[f"{name}: too long"] = (encoded(np.zeros(8_000 * 90), 8_000, kind=kind, subtype=subtype), LONG)
    found |= _disguised() | _lying()
    found["flac: an hour of silence"] = (_bomb(), LONG)
    return found


def _disguised():
    """Files of other kinds under the name of a sound; the name is the client's affair, so the bytes decide."""
    return {
        "a PNG": (b"\x89PNG\r\n\x1a\n" + bytes(200), UNKNOWN),
        "a text": (b"This is no sound.", UNKNOWN),
        "an AVI": (b"RIFF\x24\x00\x00\x00AVI " + bytes(200), UNKNOWN),
        "an AIFF": (b"FORM\x00\x00\x00\x20AIFF" + bytes(200), UNKNOWN),
        "one byte": (b"\xff", UNKNOWN),
        "zeros": (bytes(10_000), UNKNOWN),
    }


def _lying():
    """Headers that say what is not so."""
    wav = encoded(speech(0.5, RATE, seed=3), RATE)
    rate, channels, size = 24, 22, wav.index(b"data") + 4
    flac = bytearray(encoded(speech(0.5, RATE, seed=3), RATE, kind="FLAC"))
    struct.pack_into(">I", flac, 22, RATE * 30)  # STREAMINFO: the number of samples
    return {
        "wav of no rate": (_with(wav, rate, "<I", 0), BROKEN),
        "wav of a rate of two thousand million": (_with(wav, rate, "<I", 2**31 - 1), BROKEN),
        "wav of no channel": (_with(wav, channels, "<H", 0), BROKEN),
        "wav of 65535 channels": (_with(wav, channels, "<H", 65_535), BROKEN),
        "wav of more than there is": (_with(wav, size, "<I", 1_000_000_000), BROKEN),
        "wav without samples": (encoded(np.zeros(0), RATE), BROKEN),
        "wav too short for the model": (encoded(np.zeros(10), RATE), BROKEN),
        "flac of more than there is": (bytes(flac), BROKEN),
    }


def _with(raw, place, layout, value):
    return raw[:place] + struct.pack(layout, value) + raw[place + struct.calcsize(layout) :]


def _bomb():
    import soundfile

    file = io.BytesIO()
    with soundfile.SoundFile(file, "w", 8_000, 1, format="FLAC", subtype="PCM_16") as bomb:
        for _ in range(60):
            bomb.write(np.zeros(8_000 * 60, np.int16))
    return file.getvalue()
