"""Misbehaving subclasses on a real TorchServe hurt nobody but the guilty request."""

from __future__ import annotations

import json

import pytest

from tests.acceptance.catalogue import CATALOGUE, triggers
from tests.acceptance.support import misbehaving_model

DELAY = 300


@pytest.fixture(scope="module")
def server(server_factory):
    with server_factory() as server:
        yield server


@pytest.mark.parametrize("misbehaviour", CATALOGUE, ids=lambda entry: entry.name)
def test_line_5_only_the_guilty_request_is_hurt(server, tmp_path, misbehaviour, record_property):
    with misbehaving_model(server, misbehaviour, tmp_path, delay=DELAY) as model:
        for trigger in misbehaviour.triggers:
            told = model.one_guilty_among_eight(trigger)
            model.good_request()
            print(f"{trigger.what:.90} -> {trigger.status} {json.dumps(told, ensure_ascii=False):.160}")
        model.eight_guilty(misbehaviour.triggers[0])
        model.good_request()
        model.worker.check()
    record_property(f"line5_{misbehaviour.name}", f"{len(misbehaviour.triggers)} misbehaviours, pid {model.worker.pid}")


def test_line_5_the_catalogue_is_whole():
    """Every misbehaviour that the issue names is in it."""
    whats = " | ".join(trigger.what for trigger in triggers(CATALOGUE))
    for part in (
        "results[:-1]", "tuple(results)", "dict(", "returns None", "np.float32", "torch.tensor(result)", "nan",
        "\\ud83d", "circle()", "ValueError", "CUDA", "MemoryError", "日本語", "a\\r\\nX-Evil", "7_000_000", "sys.exit",
        "(result for result in results)",
    ):  # fmt: skip
        assert part in whats, part
