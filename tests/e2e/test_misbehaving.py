"""A handful of the misbehaving subclasses of tests/acceptance/catalogue.py, on a real TorchServe."""

from __future__ import annotations

import pytest

from tests.acceptance.catalogue import CATALOGUE
from tests.acceptance.support import misbehaving_model

CHOSEN = {
    "inference-raises": (102, 103, 104, 105, 110, 111, 112),
    "postprocess-too-few": (),
    "postprocess-circular": (),
    "encode-response-line-break": (),
    "encode-response-too-large": (),
}
"""Which subclasses, and which of their guilty values; none means all."""


@pytest.fixture(scope="module")
def server(server_factory):
    with server_factory() as server:
        yield server


@pytest.mark.parametrize("name", CHOSEN)
def test_only_the_guilty_request_is_hurt(server, tmp_path, name):
    (misbehaviour,) = [entry for entry in CATALOGUE if entry.name == name]
    chosen = [trigger for trigger in misbehaviour.triggers if not CHOSEN[name] or trigger.value in CHOSEN[name]]
    with misbehaving_model(server, misbehaviour, tmp_path, delay=150) as model:
        for trigger in chosen:
            model.one_guilty_among_eight(trigger)
        model.eight_guilty(chosen[0])
        model.good_request()
        model.worker.check()
