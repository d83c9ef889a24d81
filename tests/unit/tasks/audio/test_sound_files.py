from __future__ import annotations

import importlib.util
import io
import struct
import tracemalloc

import numpy as np
import pytest
from scipy import signal

from tests.varied_sounds import encoded, heard, noise, sounds, speech, tone
from tsbatch.errors import LoadError, PayloadTooLarge, RequestError, Unprocessable, UnsupportedMedia
from tsbatch.tasks.audio import sound_files
from tsbatch.tasks.audio.sound_files import check_installed, decode_sound

RATE = 16_000
FORMATS = {
    "WAV": "PCM_16",
    "FLAC": "PCM_16",
    "OGG": "VORBIS",
    "OPUS": "OPUS",
    "MP3": "MPEG_LAYER_III",
}


def decode(raw, *, rate=RATE, max_seconds=60.0):
    return decode_sound(raw, rate=rate, max_seconds=max_seconds)


def file_of(name, samples, rate=RATE):
    return encoded(samples, rate, kind="OGG" if name == "OPUS" else name, subtype=FORMATS[name])


@pytest.mark.parametrize("block", [sound_files.BLOCK, 4_096])
def test_blocks_give_what_the_whole_gives(monkeypatch, block):
    monkeypatch.setattr(sound_files, "BLOCK", block)
    for raw in sounds():
        expected = heard(raw, RATE)
        found = decode(raw)
        assert found.dtype == np.float32
        assert found.shape == expected.shape
        assert np.abs(found - expected).max() < 1e-6


@pytest.mark.parametrize("rate", [8_000, 11_025, 22_050, 44_100, 48_000, 96_000, 192_000])
def test_another_rate_keeps_the_sound(rate):
    # Against scipy's polyphase filter, away from the ends, where both have to make up what was before and after.
    samples = tone(1.0, rate, 440) + tone(1.0, rate, 1_100, volume=0.2)
    found = decode(encoded(samples, rate, subtype="FLOAT"))
    expected = signal.resample_poly(samples, RATE, rate)
    assert abs(len(found) - RATE) <= 1
    inner = slice(1_000, 15_000)
    assert np.abs(found[inner] - expected[inner]).max() < 2e-3


def test_channels_become_their_mean():
    left, right = speech(0.5, RATE, seed=1).clip(-1, 1), tone(0.5, RATE, 300)
    for kind in ("WAV", "FLAC"):
        found = decode(encoded(np.stack([left, right], axis=1), RATE, kind=kind))
        assert np.abs(found - (left + right) / 2).max() < 1e-4
    eight = decode(encoded(np.stack([left] * 8, axis=1), RATE))
    assert np.abs(eight - left).max() < 1e-4


@pytest.mark.parametrize("subtype", ["PCM_U8", "PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE", "ULAW", "ALAW"])
def test_every_kind_of_sample_is_from_minus_one_to_one(subtype):
    samples = tone(0.2, RATE, 500)
    found = decode(encoded(samples, RATE, subtype=subtype))
    assert np.abs(found - samples).max() < (0.03 if subtype in ("PCM_U8", "ULAW", "ALAW") else 1e-4)


def test_silence_is_sound():
    for name in FORMATS:
        assert np.abs(decode(file_of(name, np.zeros(8_000)))).max() < 1e-9


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("tenth", range(1, 10))
def test_cut_off_files_are_4xx(name, tenth):
    raw = file_of(name, speech(2.0, RATE, seed=3))
    with pytest.raises((Unprocessable, UnsupportedMedia)):
        decode(raw[: len(raw) * tenth // 10])


@pytest.mark.parametrize("name", FORMATS)
def test_one_byte_less_is_noticed(name):
    raw = file_of(name, speech(1.0, RATE, seed=3))
    decode(raw)
    with pytest.raises(Unprocessable):
        decode(raw[:-1])


@pytest.mark.parametrize(
    "raw",
    [
        b"x",
        b"RIFF",
        b"\xff",
        b"ID",
        b"\x89PNG\r\n\x1a\n" + bytes(100),
        b"RIFF\x24\x00\x00\x00AVI " + bytes(100),
        b"GIF89a" + bytes(50),
        b"caff" + bytes(100),
        b"FORM\x00\x00\x00\x20AIFF" + bytes(100),
        b".snd" + bytes(100),
        b"PK\x03\x04" + bytes(100),
        b"<html></html>",
    ],
)
def test_what_is_no_sound_is_415(raw):
    with pytest.raises(UnsupportedMedia, match="not a sound file"):
        decode(raw)


@pytest.mark.parametrize("start", [b"RIFF\x24\x00\x00\x00WAVE", b"fLaC", b"OggS", b"ID3", b"\xff\xfb", b"\xff\xf3"])
@pytest.mark.parametrize("rest", [b"", bytes(300), b"\xff" * 300, np.random.default_rng(0).bytes(3_000)])
def test_the_beginning_of_a_sound_and_nonsense_is_4xx(start, rest):
    with pytest.raises(RequestError):
        decode(start + rest)


def test_flipped_bytes_are_answered_or_4xx():
    numbers = np.random.default_rng(0)
    for name in FORMATS:
        raw = file_of(name, speech(0.5, RATE, seed=3))
        for _ in range(60):
            broken = bytearray(raw)
            for place in numbers.integers(0, len(raw) if numbers.random() < 0.5 else 80, 4):
                broken[place] = numbers.integers(0, 256)
            try:
                found = decode(bytes(broken), max_seconds=10)
            except RequestError:
                continue
            assert np.isfinite(found).all()
            assert len(found) <= 10 * RATE + 1


def test_no_samples_and_no_numbers_are_422():
    with pytest.raises(Unprocessable, match="no sound in it"):
        decode(encoded(np.zeros(0), RATE))
    samples = tone(0.1, RATE, 400).astype(np.float32)
    raw = encoded(samples, RATE, subtype="FLOAT")
    place = raw.index(b"data") + 8 + 400
    with pytest.raises(Unprocessable, match="not numbers"):
        decode(raw[:place] + struct.pack("<f", float("nan")) + raw[place + 4 :])


def test_rates_and_channels_of_no_recording_are_422():
    raw = encoded(noise(0.1, RATE), RATE)
    for rate in (0, 10, 999, 192_001, 2**31 - 1):
        with pytest.raises((Unprocessable, UnsupportedMedia)):
            decode(raw[:24] + struct.pack("<I", rate) + raw[28:])
    with pytest.raises(Unprocessable, match="9 channels"):
        decode(encoded(np.zeros((100, 9)), RATE))


def test_a_wav_of_a_pipe_does_not_know_its_size():
    samples = speech(0.5, RATE, seed=3).clip(-1, 1)
    raw = encoded(samples, RATE)
    place = raw.index(b"data") + 4
    for size in (0xFFFF_FFFF, 0x7FFF_FFFF - 36):
        found = decode(raw[:place] + struct.pack("<I", size) + raw[place + 4 :])
        assert np.abs(found - samples).max() < 1e-4


@pytest.mark.parametrize("name", FORMATS)
def test_too_long_is_413_and_not_decoded(name, monkeypatch):
    raw = file_of(name, tone(3.0, RATE, 440))
    assert len(decode(raw, max_seconds=3.2)) >= 3 * RATE - 100
    monkeypatch.setattr(sound_files, "_mono", None)
    with pytest.raises(PayloadTooLarge, match="over the limit of 2"):
        decode(raw, max_seconds=2.0)


def test_a_flac_that_decodes_to_hours_is_refused_without_room_for_it():
    import soundfile

    file = io.BytesIO()
    with soundfile.SoundFile(file, "w", 8_000, 1, format="FLAC", subtype="PCM_16") as bomb:
        for _ in range(60):
            bomb.write(np.zeros(8_000 * 60, np.int16))
    raw = file.getvalue()
    assert len(raw) < 200_000
    for max_seconds in (60.0, 3_599.0):
        tracemalloc.start()
        with pytest.raises(PayloadTooLarge):
            decode(raw, max_seconds=max_seconds)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
        tracemalloc.stop()


def test_a_header_that_lies_about_the_length_is_4xx():
    raw = bytearray(encoded(tone(2.0, RATE, 440), RATE, kind="FLAC"))
    # STREAMINFO: the low 32 of the 36 bits of the total number of samples.
    assert struct.unpack_from(">I", raw, 22)[0] == 2 * RATE
    struct.pack_into(">I", raw, 22, 3 * RATE)
    with pytest.raises(Unprocessable, match=r"cut off|broken"):
        decode(bytes(raw))
    struct.pack_into(">I", raw, 22, RATE * 3_600)
    with pytest.raises(PayloadTooLarge):
        decode(bytes(raw))


def test_memory_is_bounded_by_what_is_kept():
    # Eight channels at 96 kHz: 92 MB decoded at once as float32, 2 MB kept.
    import soundfile

    file = io.BytesIO()
    with soundfile.SoundFile(file, "w", 96_000, 8, format="FLAC", subtype="PCM_16") as long:
        for _ in range(30):
            long.write(np.zeros((96_000, 8), np.int16))
    tracemalloc.start()
    decode(file.getvalue())
    assert tracemalloc.get_traced_memory()[1] < 12_000_000
    tracemalloc.stop()


def test_a_missing_package_is_named(monkeypatch):
    check_installed()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "soxr" else object())
    with pytest.raises(LoadError, match=r"soxr: pip install 'tsbatch\[audio\]'"):
        check_installed()
