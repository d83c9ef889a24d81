"""Varied sounds for the audio tasks: of every format, rate and length, with one channel or two."""

from __future__ import annotations

import io
import warnings

import numpy as np

RATES = (16_000, 8_000, 22_050, 44_100, 48_000, 11_025)


def tone(seconds, rate, hertz, *, volume=0.5):
    return volume * np.sin(2 * np.pi * hertz * np.arange(int(seconds * rate)) / rate)


def chirp(seconds, rate, start, stop):
    times = np.arange(int(seconds * rate)) / rate
    return 0.5 * np.sin(2 * np.pi * (start * times + (stop - start) * times**2 / (2 * seconds)))


def noise(seconds, rate, *, seed=0, volume=0.1):
    return volume * np.random.default_rng(seed).normal(size=int(seconds * rate))


def speech(seconds, rate, *, seed=0):
    """Bursts of harmonics under moving formants, with pauses between: no words, but shaped like speech."""
    numbers = np.random.default_rng(seed)
    parts = []
    while sum(map(len, parts)) < seconds * rate:
        count = int(numbers.uniform(0.05, 0.25) * rate)
        times = np.arange(count) / rate
        pitch = numbers.uniform(90, 250) * (1 + 0.1 * times / times[-1])
        formants = numbers.uniform(300, 3000, 2)
        harmonics = [k for k in range(1, 40) if k * pitch[0] < rate / 2]
        loud = [np.exp(-np.abs(k * pitch[0] - formants).min() / 300) for k in harmonics]
        voice = sum(volume * np.sin(2 * np.pi * k * pitch * times) for k, volume in zip(harmonics, loud, strict=True))
        envelope = np.sin(np.pi * times / times[-1])
        parts += [0.2 * voice * envelope, np.zeros(int(numbers.uniform(0, 0.1) * rate))]
    return np.concatenate(parts)[: int(seconds * rate)]


def encoded(samples, rate, *, kind="WAV", subtype="PCM_16"):
    """A sound file as bytes; ``samples`` of shape (n,) or (n, channels)."""
    import soundfile

    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        soundfile.write(file, np.clip(samples, -1, 1), rate, format=kind, subtype=subtype)
    return file.getvalue()


def heard(raw, rate):
    """A sound file's samples by soundfile and soxr at once, not block by block."""
    import soundfile
    import soxr

    samples, given = soundfile.read(io.BytesIO(raw), dtype="float32", always_2d=True)
    mono = samples.mean(axis=1) if samples.shape[1] > 1 else samples[:, 0]
    return mono if given == rate else soxr.resample(mono, given, rate)


def sounds():
    """45 sound files, from a twentieth of a second to four seconds."""
    clicks = np.zeros(12_000)
    clicks[::1_500] = 0.9
    made = [(tone(0.3 + 0.2 * place, 16_000, hertz), 16_000) for place, hertz in enumerate((110, 440, 1000, 3000))]
    for place, (start, stop) in enumerate(((100, 4000), (4000, 100), (300, 500), (50, 7000))):
        made.append((chirp(0.5 + 0.3 * place, RATES[place], start, min(stop, RATES[place] / 2 - 100)), RATES[place]))
    made += [(noise(0.4 + 0.5 * place, 16_000, seed=place, volume=0.01 * 5**place), 16_000) for place in range(3)]
    made += [(np.zeros(16_000), 16_000), (np.zeros(4_000), 8_000), (clicks, 16_000)]
    made += [(np.concatenate([np.zeros(8_000), tone(0.5, 16_000, 700), np.zeros(8_000)]), 16_000)]
    made += [(np.sign(tone(0.7, 16_000, 220)) * 0.4, 16_000)]
    made += [(speech(0.6 + 0.4 * place, rate, seed=place), rate) for place, rate in enumerate(RATES)]
    lengths = (0.05, 0.1, 0.15, 1.0, 1.0, 4.0)
    made += [(speech(seconds, 16_000, seed=20 + place), 16_000) for place, seconds in enumerate(lengths)]
    made += [(speech(1.7, 16_000, seed=70) + noise(1.7, 16_000, seed=7, volume=0.02), 16_000)]
    made += [(3 * speech(1.2, 16_000, seed=71), 16_000)]
    return [encoded(samples, rate) for samples, rate in made] + _of_other_kinds()


def _of_other_kinds():
    """Other kinds of samples and of files, and two channels."""
    made = []
    for place, subtype in enumerate(("PCM_U8", "PCM_24", "PCM_32", "FLOAT", "DOUBLE", "ULAW")):
        made.append(encoded(speech(0.5 + 0.1 * place, 16_000, seed=30 + place), 16_000, subtype=subtype))
    compressed = (("FLAC", "PCM_16"), ("FLAC", "PCM_24"), ("OGG", "VORBIS"), ("OGG", "OPUS"))
    for place, (kind, subtype) in enumerate(compressed):
        made.append(encoded(speech(0.9 + 0.2 * place, 16_000, seed=40 + place), 16_000, kind=kind, subtype=subtype))
    for place, rate in enumerate((16_000, 44_100)):
        samples = speech(1.1 + 0.3 * place, rate, seed=50 + place)
        made.append(encoded(samples, rate, kind="MP3", subtype="MPEG_LAYER_III"))
    for place, rate in enumerate((16_000, 44_100, 8_000)):
        both = np.stack([speech(0.8, rate, seed=60 + place), tone(0.8, rate, 300)], axis=1)
        made.append(encoded(both, rate, kind="FLAC" if place == 1 else "WAV"))
    return made
