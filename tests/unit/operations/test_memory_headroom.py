"""Memory for a second version."""

from __future__ import annotations

import os
import re

import pytest

from tests.unit.system.fake_gpus import stand_in
from tsbatch.operations import memory_headroom
from tsbatch.operations.memory_headroom import lack_for_more, lack_of_room
from tsbatch.system.process_memory import Memory

ME = {"pid": os.getpid(), "gpu": False}


def model(*workers):
    return {"workers": list(workers)}


def test_room_is_what_the_workers_hold_alone(monkeypatch):
    monkeypatch.setattr(memory_headroom, "available", lambda: 10**12)
    assert lack_of_room(model(ME)) is None
    monkeypatch.setattr(memory_headroom, "available", lambda: 10**6)
    # How much this process holds depends on what ran in it before.
    assert re.search(r"both versions need \d+\.\d GB more memory, but only 0\.0 GB is free", lack_of_room(model(ME)))


def test_what_counts_is_how_many_workers_come(monkeypatch):
    monkeypatch.setattr(memory_headroom, "memory_of", lambda pid: Memory(private=10**9, shared=0, peak=0))
    monkeypatch.setattr(memory_headroom, "available", lambda: 3 * 10**9)
    assert lack_of_room(model(ME, ME)) is None
    assert lack_of_room(model(ME), workers=2) is None
    assert lack_of_room(model(ME), workers=4) == "both versions need 4.4 GB more memory, but only 3.0 GB is free"
    assert lack_of_room(model(*[ME] * 4), workers=2) is None


def test_workers_that_are_gone_or_starting(monkeypatch):
    monkeypatch.setattr(memory_headroom, "available", lambda: 0)
    assert lack_of_room(model({"pid": -1, "gpu": False})) is None
    assert lack_of_room(model({"pid": 2**22 + 5, "gpu": False})) is None


@pytest.mark.skipif(os.name == "nt", reason="the stand-in for nvidia-smi is a shell script")
@pytest.mark.parametrize("free, enough", [(4000, True), (3100, False)])
def test_room_on_the_gpu(tmp_path, monkeypatch, free, enough):
    apps = [("GPU-a", os.getpid(), 3000), ("GPU-b", 1, 9000)]
    stand_in(tmp_path, monkeypatch, apps=apps, free={"GPU-a": free, "GPU-b": "[N/A]"})
    lack = lack_of_room(model({**ME, "gpu": True}))
    assert (lack is None) == enough
    if lack:
        assert lack == "both versions need 3.5 GB more memory on GPU-a, but only 3.3 GB is free"
    assert lack_of_room(
        model({**ME, "gpu": True}), workers=2
    ) == "both versions need 6.9 GB more memory on GPU-a, but only " + (
        "4.2 GB is free" if enough else "3.3 GB is free"
    )
    assert lack_of_room(model(ME)) is None, "not asked for workers without a GPU"


def test_room_for_more_workers(monkeypatch):
    monkeypatch.setattr(memory_headroom, "memory_of", lambda pid: Memory(private=10**9, shared=0, peak=0))
    monkeypatch.setattr(memory_headroom, "available", lambda: 2 * 10**9)
    assert lack_for_more(model(ME), 1) is None
    assert lack_for_more(model(ME, ME), 1) is None
    assert lack_for_more(model(ME), 3) == "3 more workers need 3.3 GB more memory, but only 2.0 GB is free"
    monkeypatch.setattr(memory_headroom, "available", lambda: 10**9)
    assert lack_for_more(model(ME, ME), 1) == "1 more worker needs 1.1 GB more memory, but only 1.0 GB is free"


@pytest.mark.skipif(os.name == "nt", reason="the stand-in for nvidia-smi is a shell script")
def test_room_for_one_more_worker_on_any_gpu(tmp_path, monkeypatch):
    """TorchServe deals its workers out to the GPUs in turn: what the fullest one has left is no matter."""
    on_gpu = model({**ME, "gpu": True})
    stand_in(tmp_path, monkeypatch, apps=[("GPU-a", os.getpid(), 3000)], free={"GPU-a": 1000, "GPU-b": 4000})
    assert lack_for_more(on_gpu, 1) is None
    stand_in(tmp_path, monkeypatch, apps=[("GPU-a", os.getpid(), 3000)], free={"GPU-a": 1000, "GPU-b": 3200})
    assert (
        lack_for_more(on_gpu, 1) == "one more worker needs 3.5 GB of GPU memory, but the emptiest GPU has 3.4 GB free"
    )
    assert lack_for_more(model(ME), 1) is None


def test_without_nvidia_smi_nobody_knows(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert lack_of_room(model({**ME, "gpu": True})) is None
    assert lack_for_more(model({**ME, "gpu": True}), 1) is None
