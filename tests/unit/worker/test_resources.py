"""Cores, threads and device, from files as the kernel writes them."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from tsbatch.errors import SettingsError
from tsbatch.worker.resources import apply_threads, pick_device, threads_for, to_device, usable_cores


@pytest.fixture
def eight_cores(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(8)), raising=False)


@pytest.mark.parametrize(
    "text, cores",
    [
        ("max 100000\n", 8),
        ("200000 100000\n", 2),
        ("250000 100000\n", 2),
        ("50000 100000\n", 1),
        ("1000 100000\n", 1),
        ("9900000 100000\n", 8),
        ("broken\n", 8),
        ("", 8),
    ],
)
def test_control_groups_version_2(tmp_path, eight_cores, text, cores):
    (tmp_path / "cpu.max").write_text(text)
    assert usable_cores(tmp_path) == cores


@pytest.mark.parametrize("quota, cores", [("-1\n", 8), ("300000\n", 3), ("50000\n", 1), ("0\n", 8), ("x\n", 8)])
def test_control_groups_version_1(tmp_path, eight_cores, quota, cores):
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu/cpu.cfs_quota_us").write_text(quota)
    (tmp_path / "cpu/cpu.cfs_period_us").write_text("100000\n")
    assert usable_cores(tmp_path) == cores


def test_no_control_group(tmp_path, eight_cores):
    assert usable_cores(tmp_path) == 8


def test_affinity_is_respected(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {3}, raising=False)
    assert usable_cores(tmp_path) == 1


def test_a_platform_without_affinity(tmp_path, monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    assert usable_cores(tmp_path) == 6
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert usable_cores(tmp_path) == 1


@pytest.mark.parametrize(
    "setting, config, cores, expected",
    [
        ("auto", {}, 8, 8),
        ("auto", {"minWorkers": 2}, 8, 4),
        ("auto", {"minWorkers": 3}, 8, 2),
        ("auto", {"minWorkers": 16}, 8, 1),
        ("auto", {"minWorkers": 0}, 8, 8),
        ("auto", {"minWorkers": "2"}, 8, 8),
        (3, {"minWorkers": 2}, 8, 3),
    ],
)
def test_threads_are_divided_among_the_workers(setting, config, cores, expected):
    assert threads_for(setting, config, cores) == expected


def test_threads_are_applied_to_torch_and_tokenizers():
    before = torch.get_num_threads()
    try:
        apply_threads(1)
        assert torch.get_num_threads() == 1
        assert os.environ["RAYON_NUM_THREADS"] == "1"
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("setting, gpu_id", [("auto", None), ("cpu", None), ("cpu", 0)])
def test_the_cpu(setting, gpu_id):
    assert pick_device(setting, gpu_id) == torch.device("cpu")


@pytest.mark.parametrize("there, expected", [(True, "cuda:1"), (False, "cpu")])
def test_auto_takes_the_gpu_that_was_assigned_if_torch_can_use_it(monkeypatch, there, expected):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: there)
    assert pick_device("auto", 1) == torch.device(expected)


@pytest.mark.parametrize("setting", ["cuda:97", "gpu", "tpu:x", "cpu:x", "mps:5"])
def test_a_device_that_is_not_here(setting):
    with pytest.raises(SettingsError) as caught:
        pick_device(setting, None)
    message = str(caught.value)
    assert f"tsbatch.device: {setting!r}" in message
    assert "\n" not in message


def test_tensors_move_to_the_device_wherever_they_are():
    meta = torch.device("meta")
    moved = to_device({"a": torch.ones(1), "b": (torch.ones(1), [torch.ones(1), "text"])}, meta)
    assert moved["a"].device == moved["b"][0].device == moved["b"][1][0].device == meta
    assert moved["b"][1][1] == "text"
    same = [torch.ones(1)]
    assert to_device(same, torch.device("cpu")) is same


def test_a_copy_to_a_gpu_goes_through_pinned_memory(monkeypatch):
    steps = []
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: steps.append("pinned") or tensor)
    monkeypatch.setattr(torch.Tensor, "to", lambda tensor, device, **how: steps.append((str(device), how)) or tensor)
    to_device([torch.ones(1)], torch.device("cuda", 1))
    assert steps == ["pinned", ("cuda:1", {"non_blocking": True})]
    steps.clear()
    to_device(torch.ones(1), torch.device("meta"))
    assert steps == [("meta", {"non_blocking": True})]


def test_a_worker_runs_one_operator_at_a_time(tmp_path):
    script = tmp_path / "model_service_worker.py"
    script.write_text(
        "import torch\nfrom tsbatch.worker.thread_share import ThreadShare\n"
        "ThreadShare(1, {}, 2)\nprint(torch.get_num_interop_threads())\nThreadShare(1, {}, 2)\n"
    )
    said = subprocess.run([sys.executable, str(script)], check=True, capture_output=True, text=True).stdout
    assert said == "1\n"


def test_a_device_that_holds_no_numbers_is_refused():
    with pytest.raises(SettingsError, match="'meta' cannot be used here"):
        pick_device("meta", None)
