"""The demo of text-classification finds an article's topic, served exactly as offline."""

from __future__ import annotations

import importlib
import sys
import time

import pytest

from tests.acceptance.older_transformers import ROOT
from tests.e2e.support import post_at_once
from tsbatch.archive.model_config import ModelConfig
from tsbatch.packaging.builder import package

LEAST = 0.93
TOGETHER = 16


@pytest.fixture(scope="module")
def script():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "scripts"))
        yield importlib.import_module("train_text_classification")
    sys.modules.pop("train_text_classification")


def test_it_learns_the_topics_and_serves_them(script, server_factory, tmp_path, record_property):
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    started = time.monotonic()
    told = script.train(tmp_path / "news")
    seconds = time.monotonic() - started
    seen, held_out = script.split(script.articles())
    texts = [article.text for article in held_out]
    assert not {article.text for article in seen} & set(texts)
    assert {article.topic for article in held_out} == {"business", "entertainment", "politics", "sports", "tech"}

    folder = tmp_path / "news"
    model = AutoModelForSequenceClassification.from_pretrained(folder, local_files_only=True).eval()
    offline = script.predict(model, AutoTokenizer.from_pretrained(folder, local_files_only=True), texts)
    right = sum(topic == article.topic for topic, article in zip(offline, held_out, strict=True))
    assert right / len(texts) == told
    assert told >= LEAST

    config = ModelConfig(workers=1, batch_size=8, max_batch_delay=20)
    archive = package(
        name="news", task="text-classification", model_dir=folder, config=config, output_dir=tmp_path / "store"
    )
    server = server_factory(models=[archive])
    served = []
    for start in range(0, len(texts), TOGETHER):
        bodies = [{"inputs": text} for text in texts[start : start + TOGETHER]]
        answers = post_at_once(server, "news", bodies)
        assert [answer.status for answer in answers] == [200] * len(bodies)
        served += [answer.json()["label"] for answer in answers]
    assert served == offline

    record_property("articles trained on", len(seen))
    record_property("articles held out", len(held_out))
    record_property("accuracy held out", round(told, 4))
    record_property("accuracy served", round(right / len(texts), 4))
    record_property("seconds of training", round(seconds))
