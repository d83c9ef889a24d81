"""Queue wait, assembly wait and handler time, each for itself, against known answers.

A model that takes 40 ms a batch on a real TorchServe; the client is a single thread with raw sockets.
"""

from __future__ import annotations

import statistics
import time

import pytest

from tests.e2e import timing
from tests.e2e.timing import BATCH, DELAY, load
from tsbatch.serving.server import Server

WARM_UP = 10_000
MOST = 0.95
"""Of the requests for which a figure must hold."""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    archives = timing.archives(tmp_path_factory.mktemp("timing"))
    with Server.start(models=archives, name="acceptance-timing") as server:
        timing.warm_up(server, WARM_UP)
        yield server


@pytest.fixture(scope="module")
def alone(server):
    """Batch size 1, four requests at once, twenty times."""
    return [load(server, "one", 4) for _ in range(20)]


@pytest.fixture(scope="module")
def lonely(server):
    """Batch size 8, one request, twenty times."""
    return [load(server, "eight", 1)[0] for _ in range(20)]


@pytest.fixture(scope="module")
def loaded(server):
    """Batch size 8 and 24 clients, each with its next request at once; the first rounds only fill the queue."""
    return load(server, "eight", 24, 20)[72:]


def share(answers, holds):
    return sum(map(holds, answers)) / len(answers)


def quartiles(values):
    ordered = sorted(values)
    return [round(ordered[len(ordered) * part // 100], 1) for part in (5, 50, 95)]


def test_four_at_once_wait_for_none_one_two_and_three_batches(alone, record_property):
    ranked = list(zip(*[sorted(answer.parts["queue"] for answer in answers) for answers in alone], strict=True))
    waits = [statistics.median(rank) for rank in ranked]
    record_property("queue_waits_of_four", [round(wait, 1) for wait in waits])
    for place, wait in enumerate(waits):
        # A batch takes its 40 ms and some for the way to the worker and back.
        assert place * BATCH - 1 <= wait <= place * BATCH * 1.1 + 3


def test_a_lonely_request_waits_out_the_delay(lonely, record_property):
    record_property("lonely_assembly", quartiles(answer.parts["assembly"] for answer in lonely))
    record_property("lonely_queue", quartiles(answer.parts["queue"] for answer in lonely))
    assert share(lonely, lambda answer: abs(answer.parts["assembly"] - DELAY) <= 5) >= MOST
    assert share(lonely, lambda answer: answer.parts["queue"] < 3) >= MOST


def test_under_load_the_wait_is_two_batches_of_queue_and_no_assembly(loaded, record_property):
    record_property("loaded_assembly", quartiles(answer.parts["assembly"] for answer in loaded))
    record_property("loaded_queue", quartiles(answer.parts["queue"] for answer in loaded))
    assert share(loaded, lambda answer: answer.batch == 8) >= MOST
    assert share(loaded, lambda answer: answer.parts["assembly"] < 5) >= MOST
    assert 2 * BATCH - 2 <= statistics.median(answer.parts["queue"] for answer in loaded) <= 2 * BATCH * 1.2


def test_the_parts_add_up_to_what_the_client_measured(alone, lonely, loaded, record_property):
    answers = [answer for four in alone for answer in four] + lonely + loaded
    agreement = share(answers, lambda answer: answer.agrees)
    record_property("requests", len(answers))
    record_property("within_5_ms_or_5_percent", round(agreement, 4))
    record_property("client_minus_parts", quartiles(answer.total - answer.told for answer in answers))
    assert agreement >= MOST


def test_torchserves_own_log_gives_the_same_split(server, alone, lonely, loaded, record_property):
    time.sleep(1)  # its last lines are written
    for model, answers in (("one", [answer for four in alone for answer in four]), ("eight", lonely + loaded)):
        logged = timing.split_of_log(server.log_dir / "ts_log.log", model)
        pairs = [(answer, logged[answer.id]) for answer in answers if answer.id in logged]
        assert len(pairs) >= MOST * len(answers)
        queue = statistics.median(answer.parts["queue"] - log.queue for answer, log in pairs)
        assembly = statistics.median(answer.parts["assembly"] - log.assembly for answer, log in pairs)
        record_property(f"{model}_minus_log", {"queue": round(queue, 1), "assembly": round(assembly, 1)})
        # Ours ends when the worker has the batch, the log's when TorchServe begins to send it.
        assert abs(queue) <= 3
        assert -1 <= assembly <= 5
