"""Requests of the task benchmark: 32 different ones for each task."""

from __future__ import annotations

import io
import random
import wave
from collections.abc import Sequence
from functools import cache
from typing import Any, Final

import numpy as np
from _corpus import BLOCK, corpora, minilm_tokens
from _systems import model_dir
from _task_models import NEW_TOKENS

BATCH: Final = 32
RATE: Final = 16_000
"""Audio samples per second."""
GENERATING: Final = {"max_new_tokens": NEW_TOKENS, "min_new_tokens": NEW_TOKENS}
TOPICS: Final = ("business", "politics", "sports", "technology")
PASSAGES: Final = 4


def requests(task: str) -> list[Any]:
    """Build request bodies as clients send them: JSON, or the bytes of a file."""
    if task.startswith("image-") or task == "object-detection":
        return pictures()
    if task in ("speech-recognition", "audio-classification"):
        return recordings()
    if task == "tensor":
        return [{"inputs": [row]} for row in np.random.default_rng(0).normal(size=(BATCH, 64)).round(4).tolist()]
    return _of_texts(task, texts())


def _of_texts(task: str, found: Sequence[str]) -> list[Any]:
    if task == "question-answering":
        return [{"inputs": {"question": "What did they say?", "context": text}} for text in found]
    if task == "fill-mask":
        return [{"inputs": f"{text} It was a [MASK] day."} for text in found]
    if task == "zero-shot-classification":
        return [{"inputs": text, "parameters": {"candidate_labels": list(TOPICS)}} for text in found]
    if task == "reranking":
        repeated = [*found, *found]
        groups = (repeated[start : start + PASSAGES] for start in range(BATCH))
        return [{"inputs": {"query": f"What about {group[0][:40]}", "texts": group}} for group in groups]
    if task in ("summarization", "translation", "text-generation"):
        return [{"inputs": text, "parameters": GENERATING} for text in found]
    return [{"inputs": text} for text in found]


@cache
def texts() -> tuple[str, ...]:
    """Select sentences and paragraphs of news articles, of mixed lengths."""
    mixed = corpora(BLOCK, minilm_tokens(model_dir()))["mixed"]
    return tuple(mixed[:BATCH])


@cache
def pictures() -> list[bytes]:
    """Create 640 × 480 JPEG files with shapes and noise, so that decoding them is as expensive as decoding photos."""
    from PIL import Image

    found = []
    for seed in range(BATCH):
        numbers = np.random.default_rng(seed)
        coarse = Image.fromarray(numbers.integers(0, 256, (12, 16, 3), dtype=np.uint8)).resize((640, 480))
        noisy = np.asarray(coarse, dtype=np.int16) + numbers.integers(-20, 21, (480, 640, 3), dtype=np.int16)
        stream = io.BytesIO()
        Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(stream, "JPEG", quality=90)
        found.append(stream.getvalue())
    return found


@cache
def recordings() -> list[bytes]:
    """Create WAV files of 1 to 4 seconds: tones that rise and fall, with noise."""
    found = []
    for seed in range(BATCH):
        numbers = np.random.default_rng(seed)
        time = np.arange(int(RATE * random.Random(seed).uniform(1, 4))) / RATE
        tone = np.sin(2 * np.pi * numbers.uniform(100, 800) * time) * np.sin(2 * np.pi * 3 * time) ** 2
        samples = 8000 * tone + numbers.normal(0, 300, len(time))
        stream = io.BytesIO()
        with wave.open(stream, "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(RATE)
            file.writeframes(samples.astype("<i2").tobytes())
        found.append(stream.getvalue())
    return found
