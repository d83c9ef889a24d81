"""Eight concurrent requests, three of them bad, on a real TorchServe."""

from __future__ import annotations

import pytest

from tests.acceptance.support import (
    CLOSE,
    OneByOne,
    SamePid,
    cosine,
    embedding_archive,
    handler_times,
    in_one_batch,
    wait_for,
)
from tests.e2e.support import post

TEXTS = (
    "The cat sits outside.",
    "Ein Mann spielt in Zürich Gitarre.",
    "A plane is taking off while the sun goes down behind the long row of hangars at the end of the field.",
    "新しい映画は素晴らしい。",
    "Batching is worth its trouble only when nobody else's mistake can spoil your answer. " * 12,
)
BROKEN = b'{"inputs": "half a sent'
LONG = "long " * 600_000
JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def server(server_factory, tmp_path_factory):
    archive = embedding_archive(tmp_path_factory.mktemp("line3"), batch_size=8, delay=300)
    with server_factory(models=[archive]) as server:
        yield server


def test_line_3_one_batch_of_eight_with_three_bad_requests(server, record_property):
    assert len(LONG) == 3_000_000
    with server.management() as management:
        effective = management.describe("embed")
    assert (effective["batchSize"], effective["maxBatchDelay"]) == (8, 300)
    bodies = [
        *({"inputs": text} for text in TEXTS[:2]),
        BROKEN,
        {"inputs": TEXTS[2]},
        [],
        {"inputs": TEXTS[3]},
        {"inputs": LONG},
        {"inputs": TEXTS[4]},
    ]
    worker = SamePid(server, "embed")

    answers = in_one_batch([lambda body=body: post(server, "embed", body, JSON) for body in bodies])

    broken, empty, long = answers[2], answers[4], answers[6]
    good = [answer for answer in answers if answer not in (broken, empty, long)]
    assert [answer.status for answer in good] == [200] * 5
    oracle = OneByOne()
    cosines = [cosine(answer.json()["embedding"], oracle(text)) for answer, text in zip(good, TEXTS, strict=True)]
    assert min(cosines) >= CLOSE
    reasons = [(answer.status, answer.json()["error"]) for answer in (broken, empty, long)]
    assert [status for status, _ in reasons] == [400, 400, 413]
    for (status, error), why in zip(reasons, ("not valid JSON", "empty", "3,000,000 characters"), strict=True):
        assert error["status"] == status
        assert why in error["message"]
    assert "limit of 100,000" in reasons[2][1]["message"]

    ids = {answer.headers["x-request-id"] for answer in answers}
    assert len(ids) == 8
    lines = wait_for(lambda: [found for found in handler_times(server, "embed") if ids & set(found)])
    assert [set(found) for found in lines] == [ids]
    assert len(lines[0]) == 8
    worker.check()

    record_property("line3_statuses", str([answer.status for answer in answers]))
    record_property("line3_smallest_cosine", f"{min(cosines):.8f}")
    record_property("line3_worker_pid", str(worker.pid))
    print("statuses", [answer.status for answer in answers], "cosines", [f"{value:.8f}" for value in cosines])
    for _, error in reasons:
        print(error)
