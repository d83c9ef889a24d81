"""A batch of eight of which one is broken, for any ready-made task."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.support import SamePid, in_one_batch
from tests.e2e.support import post
from tests.tiny_tasks import TINY, TinyTask
from tsbatch.archive.model_config import ModelConfig
from tsbatch.emulation.runner import HandlerRunner
from tsbatch.packaging.builder import package
from tsbatch.serving.server import Server

GUILTY = 4
"""The place of the broken one."""


def one_broken_in_eight(server: Server, task: str, folder: Path) -> list[int]:
    """Seven answers are what each gets alone, without a server; the broken one is told why. Returns the statuses."""
    tiny = TINY[task]
    (folder / "model").mkdir()
    tiny.save(folder / "model")
    name = f"tiny-{task}"  # TorchServe has no model whose name begins with "token"
    archive = package(
        name=name,
        task=task,
        model_dir=folder / "model",
        config=ModelConfig(workers=1, batch_size=8, max_batch_delay=300),
        output_dir=folder,
    )
    alone = answers_alone(archive, tiny)
    bodies = [*tiny.good[:GUILTY], tiny.broken, *tiny.good[GUILTY + 1 :]]
    assert len(bodies) == 8
    with server.management() as management:
        management.register(archive.as_uri(), model_name=name)
        try:
            management.wait_ready(name)
            worker = SamePid(server, name)
            answers = in_one_batch([lambda body=body: post(server, name, body, tiny.headers) for body in bodies])
            worker.check()
        finally:
            management.unregister(name)
    for place, answer in enumerate(answers):
        if place != GUILTY:
            assert answer.status == 200, answer.body[:300]
            assert_close(answer.json(), alone[place])
    told = answers[GUILTY]
    assert 400 <= told.status < 500, told.body[:300]
    assert told.json()["error"]["message"]
    return [answer.status for answer in answers]


def answers_alone(archive: Path, tiny: TinyTask) -> list[Any]:
    """What each good request gets alone, in this process; they differ."""
    with HandlerRunner.from_mar(archive) as runner:
        found = [runner.predict_one(body) for body in tiny.good]
    assert [answer.status for answer in found] == [200] * len(found), [answer.body[:300] for answer in found]
    assert len({answer.body for answer in found}) == len(found), "answers that do not differ show nothing"
    return [json.loads(answer.body) for answer in found]


def assert_close(found: Any, expected: Any) -> None:
    """The same shape, numbers within 1e-4."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for key in expected:
            assert_close(found[key], expected[key])
    elif isinstance(expected, list):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_close(one, other)
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, abs=1e-4)
    else:
        assert found == expected
