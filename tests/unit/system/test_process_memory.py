from __future__ import annotations

import os
import subprocess
import sys

import psutil
import pytest

from tsbatch.system import process_memory

MB = 1 << 20
HOLDS = """
import mmap, sys
own = bytearray(80 * 2**20)
with open(sys.argv[1], "rb") as file:
    mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    sum(mapped[place] for place in range(0, len(mapped), 4096))
    print(flush=True)
    sys.stdin.read()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="page sharing is told by /proc")
def test_what_two_processes_map_is_shared_and_the_rest_is_private(tmp_path):
    file = tmp_path / "weights"
    file.write_bytes(os.urandom(100 * MB))
    command = [sys.executable, "-c", HOLDS, str(file)]
    two = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(2)]
    try:
        for process in two:
            process.stdout.readline()
        found = [process_memory.memory_of(process.pid) for process in two]
    finally:
        for process in two:
            process.communicate()
    for one in found:
        assert 80 * MB < one.private < 110 * MB
        assert one.shared > 100 * MB
        assert one.peak >= one.private + one.shared


def test_where_there_is_no_proc(monkeypatch, tmp_path):
    monkeypatch.setattr(process_memory, "Path", lambda text: tmp_path / "none")
    whole = psutil.Process().memory_full_info()
    found = process_memory.memory_of(os.getpid())
    assert found.private == pytest.approx(whole.uss, rel=0.2)
    assert found.peak >= found.private


def test_the_control_groups_limit_counts(monkeypatch, tmp_path):
    monkeypatch.setattr(
        process_memory, "CGROUPS", ((tmp_path / "none", "max", "current"), (tmp_path, "max", "current"))
    )
    (tmp_path / "max").write_text("3000000\n")
    (tmp_path / "current").write_text("1500000\n")
    (tmp_path / "memory.stat").write_text("anon 700000\ninactive_file 500000\n")
    assert process_memory.available() == 2_000_000
    (tmp_path / "max").write_text("max\n")
    assert process_memory.available() > 2_000_000


def test_kills_for_memory_are_counted(monkeypatch, tmp_path):
    monkeypatch.setattr(process_memory.sys, "platform", "linux")
    monkeypatch.setattr(process_memory, "OOM_COUNTER", tmp_path / "vmstat")
    assert process_memory.kills() is None
    (tmp_path / "vmstat").write_text("pgfault 12\noom_kill 3\n")
    assert process_memory.kills() == 3
    monkeypatch.setattr(process_memory.sys, "platform", "win32")
    assert process_memory.kills() is None
