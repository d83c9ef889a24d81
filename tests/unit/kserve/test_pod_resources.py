"""What a pod asks for, from what was measured."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.kserve import check_of, own_archive
from tsbatch.kserve.archive_facts import facts_of
from tsbatch.kserve.pod_resources import resources

MEBI = 1 << 20


@pytest.fixture
def facts(tmp_path):
    mar = own_archive(tmp_path, workers=1)
    return facts_of(mar, check_of(mar, "m", about={"threads": 2}))


def test_one_worker(facts):
    found = resources(facts)
    # 300 MB private, 100 shared, and 100 more while loading; the frontend's 1 GiB; rounded up to 64 MiB
    assert found.memory == 1600 * MEBI
    assert 1600 * MEBI - (1024 * MEBI + 1.2 * 500e6) < 64 * MEBI
    assert (found.cpu, found.gpus) == (2, 0)
    assert found.as_kubernetes()["requests"]["memory"] == "1600Mi"


def test_each_further_worker_costs_what_the_second_did(facts):
    more = resources(replace(facts, workers=4))
    assert more.cpu == 8
    assert more.memory - resources(facts).memory == pytest.approx(1.2 * 3 * (40 + 100) * 1e6, abs=64 * MEBI)


def test_room_for_the_files_and_the_logs(facts):
    assert resources(facts).disk == pytest.approx(2 * 80e6 + 3e9, abs=64 * MEBI)


def test_limits_are_requests(facts):
    found = resources(facts, gpus=1).as_kubernetes()
    assert found["requests"] == found["limits"]
    assert found["limits"]["nvidia.com/gpu"] == "1"


def test_a_gpu_where_it_was_checked_with_one(facts):
    assert resources(replace(facts, gpu=True)).gpus == 1
    assert resources(replace(facts, gpu=True), gpus=0).gpus == 0
