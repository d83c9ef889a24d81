from __future__ import annotations

import os

import pytest

from tsbatch.serving import instance as instances
from tsbatch.serving.load_times import MAX_ARCHIVES, LoadTime, recall, remember
from tsbatch.system.state_directory import state_folder

ENOUGH = 280


@pytest.fixture(autouse=True)
def own_state(tmp_path, monkeypatch):
    monkeypatch.setenv("TSBATCH_STATE_DIR", str(tmp_path / "state"))


@pytest.fixture
def archive(tmp_path):
    path = tmp_path / "m.mar"
    path.write_bytes(b"model")
    return path


def test_what_was_measured_is_known_until_the_archive_changes(archive, tmp_path):
    assert recall(archive) is None
    remember(archive, 183.0, ENOUGH)
    assert recall(archive) == LoadTime(183.0, 280)
    link = tmp_path / "link.mar"
    link.symlink_to(archive)
    assert recall(link) == LoadTime(183.0, 280)
    os.utime(archive, (1, 1))
    assert recall(archive) is None
    archive.unlink()
    assert recall(archive) is None


def test_it_is_no_server(archive):
    remember(archive, 1.0, ENOUGH)
    assert instances.names() == []
    (file,) = state_folder().iterdir()
    assert file.stat().st_mode & 0o077 == 0


def test_the_oldest_are_forgotten(tmp_path):
    archives = [tmp_path / f"{number}.mar" for number in range(MAX_ARCHIVES + 1)]
    for archive in archives:
        archive.write_bytes(b"")
        remember(archive, 1.0, ENOUGH)
    assert recall(archives[0]) is None
    assert recall(archives[1]) is not None


def test_a_broken_or_unwritable_file_does_no_harm(archive, monkeypatch, tmp_path):
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "load-times").write_text("{")
    assert recall(archive) is None
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TSBATCH_STATE_DIR", str(tmp_path / "file"))
    remember(archive, 1.0, ENOUGH)
    assert recall(archive) is None
