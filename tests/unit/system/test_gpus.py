"""What GPUs have and hold."""

from __future__ import annotations

import os

import pytest

from tests.unit.system.fake_gpus import stand_in
from tsbatch.system import gpus

MIB = 1 << 20
pytestmark = pytest.mark.skipif(os.name == "nt", reason="the stand-in for nvidia-smi is a shell script")


def test_what_each_process_holds_of_each_gpu(tmp_path, monkeypatch):
    rows = [
        ("GPU-a", 7, 3000),
        ("GPU-b", 7, 50),
        ("GPU-a", 7, 10),
        ("GPU-a", 8, 1),
        ("GPU-a", 9, "[N/A]"),
        ("x", "y", 1),
    ]
    stand_in(tmp_path, monkeypatch, apps=rows)
    held = gpus.held({7, 8, 9, 10})
    assert held == {7: {"GPU-a": 3010 * MIB, "GPU-b": 50 * MIB}, 8: {"GPU-a": MIB}}
    assert gpus.together(held.values()) == {"GPU-a": 3011 * MIB, "GPU-b": 50 * MIB}
    assert gpus.held({10}) == {}


def test_what_there_is(tmp_path, monkeypatch):
    stand_in(tmp_path, monkeypatch, free={"GPU-a": 5, "GPU-b": "[N/A]"}, total={"GPU-a": 9})
    assert gpus.free() == {"GPU-a": 5 * MIB}
    assert gpus.total() == {"GPU-a": 9 * MIB}


@pytest.mark.parametrize("program", [None, "#!/bin/sh\nexit 9\n", "no program at all"])
def test_where_it_cannot_tell_nothing_is_known(tmp_path, monkeypatch, program):
    monkeypatch.setenv("PATH", str(tmp_path))
    if program is not None:
        (tmp_path / "nvidia-smi").write_text(program)
        (tmp_path / "nvidia-smi").chmod(0o755)
    assert (gpus.held({os.getpid()}), gpus.free(), gpus.total()) == ({}, {}, {})
