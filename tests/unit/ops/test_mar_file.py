"""The bytes of an archive and how they reach the disk."""

from __future__ import annotations

import hashlib
import io
import os
import signal
import subprocess
import sys
import zipfile

import pytest

from tsbatch.ops import mar_file
from tsbatch.ops.mar_file import appearing, sha256, write_zip


def test_entries_are_stored_sorted_and_without_a_time(tmp_path):
    (tmp_path / "w").write_bytes(b"x" * 3_000_000)
    stream, counted = io.BytesIO(), []
    write_zip({"z/ü.txt": b"1", "a": tmp_path / "w", "M/x": b""}, stream, counted.append)
    with zipfile.ZipFile(stream) as archive:
        assert archive.testzip() is None
        assert archive.namelist() == ["M/x", "a", "z/ü.txt"]
        assert archive.read("z/ü.txt") == b"1"
        for entry in archive.infolist():
            assert entry.compress_type == zipfile.ZIP_STORED
            assert entry.date_time == (1980, 1, 1, 0, 0, 0)
            assert (entry.create_system, entry.external_attr >> 16) == (3, 0o100644)
            assert not entry.flag_bits & 0x08  # Java's ZipInputStream refuses a stored entry with a data descriptor
    assert sum(counted) == 3_000_001
    assert max(counted) <= mar_file.CHUNK


def test_sha256_is_that_of_the_file(tmp_path):
    path, counted = tmp_path / "f", []
    path.write_bytes(bytes(range(256)) * 10_000)
    assert sha256(path, counted.append) == hashlib.sha256(path.read_bytes()).hexdigest()
    assert sum(counted) == 2_560_000
    assert sha256(path) == sha256(path, counted.append)


@pytest.fixture(params=["nameless", "named"])
def either_way(request, monkeypatch):
    if request.param == "named":
        monkeypatch.delattr(os, "O_TMPFILE", raising=False)


@pytest.mark.usefixtures("either_way")
def test_the_file_appears_whole_and_replaces_the_old_one(tmp_path):
    target = tmp_path / "m.mar"
    target.write_bytes(b"old")
    with appearing(target) as stream:
        stream.write(b"new")
        stream.flush()
        assert target.read_bytes() == b"old"
    assert target.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.usefixtures("either_way")
def test_its_mode_is_that_of_any_new_file(tmp_path):
    with appearing(tmp_path / "m.mar") as stream:
        stream.write(b"new")
    (tmp_path / "other").write_bytes(b"")
    assert (tmp_path / "m.mar").stat().st_mode == (tmp_path / "other").stat().st_mode


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_an_interruption_leaves_the_old_file_and_nothing_else(tmp_path, error):
    target = tmp_path / "m.mar"
    target.write_bytes(b"old")
    with pytest.raises(error):
        _fail_half_way(target, error)
    assert target.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [target]


def _fail_half_way(target, error):
    with appearing(target) as stream:
        stream.write(b"half")
        raise error


KILLED = """
import os, signal, sys
from pathlib import Path
from tsbatch.ops.mar_file import appearing
with appearing(Path(sys.argv[1])) as stream:
    stream.write(b"half" * 100_000)
    stream.flush()
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.skipif(not hasattr(os, "O_TMPFILE"), reason="only Linux has files without a name")
def test_a_killed_writer_leaves_nothing(tmp_path):
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "m.mar")], timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL
    assert list(tmp_path.iterdir()) == []
