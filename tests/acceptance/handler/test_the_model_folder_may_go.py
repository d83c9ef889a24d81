"""Once a handler is loaded, its model folder may go."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import psutil
import pytest

from tests.acceptance.support import CLOSE, OneByOne, SamePid, batch_of, cosine, model_folder
from tests.e2e.support import at_once, get, post
from tsbatch import ModelContext, Request
from tsbatch.archive.model_config import ModelConfig
from tsbatch.packaging.builder import package
from tsbatch.tasks.text_embedding import TextEmbeddingHandler

BATCHES = 100
LABELS = {"low": [0, 1], "high": ["a", "b"]}

HANDLER = """
from tsbatch.tasks.text_embedding import TextEmbeddingHandler


class ShowsItsObjects(TextEmbeddingHandler):
    def describe_handle(self):
        kept = {name: id(getattr(self, name)) for name in ("aux", "tokenizer", "model", "settings")}
        return {**super().describe_handle(), "ids": kept, "aux": dict(self.aux)}
"""


@pytest.fixture(scope="module")
def oracle():
    return OneByOne()


@pytest.fixture
def labels(tmp_path):
    path = tmp_path / "labels.json"
    path.write_text(json.dumps(LABELS))
    return path


def texts(number: int) -> list[str]:
    """One batch of eight; every batch has other texts, of other lengths."""
    return [f"Sentence {place} of batch {number}" + " and more" * (place * number % 8) for place in range(8)]


def worst(vectors: list, oracle: OneByOne, wanted: list[str]) -> float:
    return min(cosine(vector, oracle(text)) for vector, text in zip(vectors, wanted, strict=True))


def test_line_6_in_process(tmp_path, labels, oracle, record_property):
    folder = tmp_path / "model"
    shutil.copytree(model_folder(), folder)
    shutil.copy(labels, folder)
    handler = TextEmbeddingHandler()
    config = {"tsbatch": {"schema": 1, "aux": {"labels": "labels.json"}}}
    handler.load(ModelContext(model_dir=folder, batch_size=8, config=config))
    kept = (handler.aux, handler.tokenizer, handler.model)

    shutil.rmtree(folder)

    closest = 1.0
    for number in range(BATCHES):
        replies = handler.answer([Request.of({"inputs": text}) for text in texts(number)])
        assert [reply.status for reply in replies] == [200] * 8
        if number % 20 == 0:
            closest = min(
                closest, worst([json.loads(reply.body)["embedding"] for reply in replies], oracle, texts(number))
            )
    assert not folder.exists()
    assert closest >= CLOSE
    now = (handler.aux, handler.tokenizer, handler.model)
    assert all(after is before for after, before in zip(now, kept, strict=True))
    assert handler.aux["labels"] == LABELS
    record_property("line6_in_process", f"{BATCHES} batches of 8, smallest cosine {closest:.8f}")
    print(f"{BATCHES} batches of 8 without the folder, smallest cosine {closest:.8f}")


def test_line_6_on_a_server(server_factory, tmp_path, labels, oracle, record_property):
    source = tmp_path / "shows_its_objects.py"
    source.write_text(HANDLER)
    archive = package(
        name="embed", model_dir=model_folder(), handler=source, aux={"labels": labels}, output_dir=tmp_path,
        config=ModelConfig(workers=1, batch_size=8, max_batch_delay=20),
    )  # fmt: skip
    with server_factory(models=[archive]) as server:
        worker = SamePid(server, "embed")
        folder = Path(psutil.Process(worker.pid).cwd())
        assert (folder / "model.safetensors").is_file()
        before = described(server)
        assert before["aux"]["labels"] == LABELS

        shutil.rmtree(folder.resolve())

        sizes = []
        closest = 1.0
        for number in range(BATCHES):
            calls = [lambda text=text: post(server, "embed", {"inputs": text}) for text in texts(number)]
            answers = at_once(calls)
            assert [answer.status for answer in answers] == [200] * 8, answers[0].body[:500]
            sizes += [batch_of(answer) for answer in answers]
            if number % 20 == 0:
                closest = min(closest, worst([answer.json()["embedding"] for answer in answers], oracle, texts(number)))
        assert not folder.exists()
        assert closest >= CLOSE
        assert described(server)["ids"] == before["ids"]
        worker.check()
    full = sizes.count("8/8")
    record_property("line6_on_a_server", f"{len(sizes)} requests in {BATCHES} rounds, smallest cosine {closest:.8f}")
    print(f"{len(sizes)} requests in {BATCHES} rounds ({full} of them in full batches), smallest cosine {closest:.8f}")


def described(server) -> dict:
    """What the handler says about itself."""
    (model,) = get(server, "/models/embed?customized=true", management=True).json()
    found = model["customizedMetadata"]
    return json.loads(found) if isinstance(found, str) else found
