"""Broken and hostile sounds against a real TorchServe: no 5xx, no worker death, memory bounded."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.acceptance.support import SamePid
from tests.broken_sounds import catalogue
from tests.e2e.support import post, post_at_once, worker_pids
from tests.tiny_audio import save_waveform_model
from tests.varied_sounds import encoded, noise, sounds
from tsbatch.archive.model_config import ModelConfig
from tsbatch.packaging.builder import package

OCTETS = {"Content-Type": "application/octet-stream"}
MEGABYTES = 500
"""What the worst of these may add to a worker: eight sounds of a minute, 4 MB each, and the tiny model."""


@pytest.fixture(scope="module")
def server(server_factory, tmp_path_factory):
    folder, store = tmp_path_factory.mktemp("sounds"), tmp_path_factory.mktemp("store")
    save_waveform_model(folder, "Wav2Vec2ForSequenceClassification", feat_extract_norm="layer", head=3.0)
    config = ModelConfig(workers=1, batch_size=8, max_batch_delay=300)
    archive = package(name="sounds", model_dir=folder, task="audio-classification", config=config, output_dir=store)
    with server_factory(models=[archive]) as server:
        yield server


def peak(server) -> float:
    """The most memory that the worker ever had, in MB."""
    [pid] = worker_pids(server, "sounds")
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def test_the_catalogue_one_by_one_and_in_batches(server, record_property):
    worker, broken, good = SamePid(server, "sounds"), catalogue(), sounds()[20]
    right = post(server, "sounds", good, OCTETS).json()[0]["label"]
    before = peak(server)
    for name, (data, statuses) in broken.items():
        assert post(server, "sounds", data, OCTETS).status in statuses, name
    after_catalogue = peak(server)
    bodies = [data for data, _ in broken.values() if data]
    for start in range(0, len(bodies), 7):
        first, *others = post_at_once(server, "sounds", [good, *bodies[start : start + 7]], OCTETS)
        assert first.status == 200
        assert first.json()[0]["label"] == right
        assert all(400 <= other.status < 500 for other in others)
    longest = encoded(noise(59.0, 16_000), 16_000)
    assert [answer.status for answer in post_at_once(server, "sounds", [longest] * 8, OCTETS)] == [200] * 8
    record_property("files", len(broken))
    record_property("peak_before_mb", round(before))
    record_property("peak_after_catalogue_mb", round(after_catalogue))
    record_property("peak_after_longest_mb", round(peak(server)))
    assert after_catalogue - before < MEGABYTES
    worker.check()


def test_good_sounds_of_every_kind_are_answered(server):
    assert {post(server, "sounds", data, OCTETS).status for data in sounds()} == {200}
