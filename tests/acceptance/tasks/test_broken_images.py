"""Broken and hostile images against a real TorchServe: no 5xx, no worker death, memory bounded."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.acceptance.support import SamePid
from tests.broken_images import catalogue
from tests.e2e.support import post, post_at_once, worker_pids
from tests.tiny_images import vit
from tests.varied_images import FILES, base64_of, encoded, picture
from tsbatch.archive.model_config import ModelConfig
from tsbatch.packaging.builder import package

OCTETS = {"Content-Type": "application/octet-stream"}
LARGEST = (7000, 7000)
"""Pixels of an image just within the limit of 50 million."""
MEGABYTES = 500
"""What the worst of these may add to a worker: an image of 50 million pixels at 4 bytes, twice, and something over."""


@pytest.fixture(scope="module")
def server(server_factory, tmp_path_factory):
    folder, store = tmp_path_factory.mktemp("vit"), tmp_path_factory.mktemp("store")
    vit(folder)
    config = ModelConfig(workers=1, batch_size=8, max_batch_delay=300)
    archive = package(name="vit", model_dir=folder, task="image-classification", config=config, output_dir=store)
    with server_factory(models=[archive]) as server:
        yield server


def peak(server) -> float:
    """The most memory that the worker ever had, in MB."""
    [pid] = worker_pids(server, "vit")
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def test_the_catalogue_one_by_one_and_in_batches(server, record_property):
    worker, broken = SamePid(server, "vit"), catalogue()
    good = encoded(picture(0), "PNG")
    right = post(server, "vit", good, OCTETS).body
    before = peak(server)
    for name, (data, statuses) in broken.items():
        answers = [post(server, "vit", {"inputs": base64_of(data)})]
        if data:
            answers.append(post(server, "vit", data, OCTETS))
        assert {answer.status for answer in answers} <= statuses, name
    after_catalogue = peak(server)
    bodies = [data for data, _ in broken.values() if data]
    for start in range(0, len(bodies), 7):
        answers = post_at_once(server, "vit", [good, *bodies[start : start + 7]], OCTETS)
        assert answers[0].status == 200
        assert answers[0].body == right or answers[0].json()[0]["label"] in right.decode()
        assert all(answer.status < 500 for answer in answers)
    largest = encoded(picture(0, *LARGEST), "JPEG")
    answers = post_at_once(server, "vit", [largest] * 8, OCTETS)
    assert [answer.status for answer in answers] == [200] * 8
    record_property("files", len(broken))
    record_property("peak_before_mb", round(before))
    record_property("peak_after_catalogue_mb", round(after_catalogue))
    record_property("peak_after_largest_mb", round(peak(server)))
    assert after_catalogue - before < MEGABYTES
    worker.check()


def test_good_images_of_every_kind_are_answered(server):
    assert {post(server, "vit", data, OCTETS).status for data in FILES} == {200}
