"""Where a request's time went has known answers; the fine print is in the acceptance test of the same lines."""

from __future__ import annotations

import statistics

import pytest

from tests.e2e import timing
from tests.e2e.timing import BATCH, DELAY, load

NOISE = 15
"""Milliseconds by which a busy test machine may be late."""


pytestmark = pytest.mark.alone


@pytest.fixture(scope="module")
def server(server_factory, tmp_path_factory):
    server = server_factory(models=timing.archives(tmp_path_factory.mktemp("timing")))
    timing.warm_up(server, 1000)
    yield server
    server.stop()


def middle(answers, part):
    return statistics.median(answer.parts[part] for answer in answers)


def test_four_at_once_queue_up_behind_each_other(server):
    rounds = [sorted(answer.parts["queue"] for answer in load(server, "one", 4)) for _ in range(5)]
    for place, waits in enumerate(zip(*rounds, strict=True)):
        assert place * BATCH - 3 <= statistics.median(waits) <= place * BATCH * 1.1 + NOISE


def test_a_lonely_request_waits_for_others_that_do_not_come(server):
    answers = [load(server, "eight", 1)[0] for _ in range(8)]
    assert middle(answers, "assembly") == pytest.approx(DELAY, abs=NOISE)
    assert middle(answers, "queue") < 3
    assert middle(answers, "handler") == pytest.approx(BATCH, abs=NOISE)


def test_under_load_requests_wait_in_the_queue_and_batches_are_full(server):
    answers = load(server, "eight", 24, 10)[48:]
    assert {answer.batch for answer in answers} == {8}
    assert middle(answers, "assembly") < NOISE
    assert 2 * BATCH - 3 <= middle(answers, "queue") <= 2 * (BATCH + NOISE)


def test_the_parts_add_up_to_what_the_client_measured(server):
    answers = load(server, "one", 4, 5) + load(server, "eight", 24, 5)
    assert statistics.median(abs(answer.total - answer.told) for answer in answers) < NOISE
    for answer in answers:
        assert answer.told <= answer.total + 1, "the server cannot have spent more than the client saw"
        stages = sum(answer.parts[stage] for stage in ("decode", "preprocess", "inference", "postprocess", "encode"))
        assert stages == pytest.approx(answer.parts["handler"], abs=0.01)
