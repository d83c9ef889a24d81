"""Files and folders that appear whole or not at all."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest

from tsbatch.system.atomic_write import atomic_file, atomic_folder


@pytest.fixture(params=["nameless", "named"])
def either_way(request, monkeypatch):
    if request.param == "named":
        monkeypatch.delattr(os, "O_TMPFILE", raising=False)


@pytest.mark.usefixtures("either_way")
def test_the_file_appears_whole_and_replaces_the_old_one(tmp_path):
    target = tmp_path / "m.mar"
    target.write_bytes(b"old")
    with atomic_file(target) as stream:
        stream.write(b"new")
        stream.flush()
        assert target.read_bytes() == b"old"
    assert target.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.usefixtures("either_way")
def test_its_mode_is_that_of_any_new_file(tmp_path):
    with atomic_file(tmp_path / "m.mar") as stream:
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
    with atomic_file(target) as stream:
        stream.write(b"half")
        raise error


KILLED = """
import os, signal, sys
from pathlib import Path
from tsbatch.system.atomic_write import atomic_file
with atomic_file(Path(sys.argv[1])) as stream:
    stream.write(b"half" * 100_000)
    stream.flush()
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.skipif(not hasattr(os, "O_TMPFILE"), reason="only Linux has files without a name")
def test_a_killed_writer_leaves_nothing(tmp_path):
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "m.mar")], timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("either_way")
def test_without_leave_nobody_s_place_is_taken(tmp_path):
    target = tmp_path / "m.mar"
    with pytest.raises(FileExistsError):
        _be_slower_than_another(target)
    assert target.read_bytes() == b"another's"
    assert list(tmp_path.iterdir()) == [target]


def _be_slower_than_another(target):
    with atomic_file(target, replace=False) as stream:
        stream.write(b"mine")
        target.write_bytes(b"another's")


def test_a_file_system_without_hard_links(tmp_path, monkeypatch):
    monkeypatch.delattr(os, "O_TMPFILE", raising=False)
    monkeypatch.setattr(os, "link", lambda *names: (_ for _ in ()).throw(OSError("no links")))
    with atomic_file(tmp_path / "m", replace=False) as stream:
        stream.write(b"1")
    with pytest.raises(FileExistsError), atomic_file(tmp_path / "m", replace=False):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


def fill(folder, text):
    (folder / "deep").mkdir()
    (folder / "deep" / "file").write_text(text)


def test_a_folder_appears_whole_and_replaces_the_old_one(tmp_path):
    target = tmp_path / "m"
    for text in ("old", "new"):
        with atomic_folder(target) as folder:
            fill(folder, text)
            assert not (target / "deep").exists() or (target / "deep" / "file").read_text() == "old"
    assert (target / "deep" / "file").read_text() == "new"
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize("what", ["folder", "file", "empty"])
def test_a_folder_takes_nobody_s_place_without_leave(tmp_path, what):
    target = tmp_path / "m"
    if what == "file":
        target.touch()
    elif what == "folder":
        target.mkdir()
        fill(target, "old")
    else:
        target.mkdir()
    if what == "empty":
        with atomic_folder(target, replace=False) as folder:
            fill(folder, "new")
        assert (target / "deep" / "file").read_text() == "new"
    else:
        with pytest.raises(FileExistsError), atomic_folder(target, replace=False) as folder:
            fill(folder, "new")
        assert target.is_file() or (target / "deep" / "file").read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_an_interruption_leaves_the_old_folder_and_nothing_else(tmp_path):
    target = tmp_path / "m"
    with atomic_folder(target) as folder:
        fill(folder, "old")
    with pytest.raises(KeyboardInterrupt):
        interrupt(target)
    assert (target / "deep" / "file").read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def interrupt(target):
    with atomic_folder(target) as folder:
        fill(folder, "new")
        raise KeyboardInterrupt


def at_once(write):
    failed = []

    def attempt(text):
        try:
            write(text)
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=attempt, args=(str(number),)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return failed


def test_folders_of_one_name_written_at_once_do_not_meet(tmp_path):
    def write(text):
        with atomic_folder(tmp_path / "m") as folder:
            fill(folder, text)

    assert at_once(write) == []
    assert (tmp_path / "m" / "deep" / "file").read_text() in {str(number) for number in range(20)}
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


@pytest.mark.usefixtures("either_way")
def test_files_of_one_name_written_at_once_do_not_meet(tmp_path):
    def write(text):
        with atomic_file(tmp_path / "m") as stream:
            stream.write(text.encode())

    assert at_once(write) == []
    assert (tmp_path / "m").read_text() in {str(number) for number in range(20)}
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


KILLED_FOLDER = KILLED.replace("atomic_file", "atomic_folder").replace(
    """    stream.write(b"half" * 100_000)
    stream.flush()
""",
    """    (stream / "half").write_bytes(b"half")
""",
)


@pytest.mark.skipif(os.name == "nt", reason="Windows keeps no lock that tells whether the writer lives")
def test_what_a_killed_writer_leaves_is_hidden_and_goes_with_the_next(tmp_path):
    target = tmp_path / "m"
    done = subprocess.run([sys.executable, "-c", KILLED_FOLDER, str(target)], timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL
    [part] = tmp_path.iterdir()
    assert part.name.startswith(".m.")
    with atomic_folder(target) as folder, atomic_folder(target) as other:
        fill(folder, "new")
        fill(other, "neither removes the other, which lives")
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


@pytest.mark.skipif(os.name == "nt", reason="Windows keeps no lock that tells whether the writer lives")
def test_a_file_whose_writer_lives_stays(tmp_path, monkeypatch):
    monkeypatch.delattr(os, "O_TMPFILE", raising=False)
    with atomic_file(tmp_path / "m") as first:
        first.write(b"first")
        with atomic_file(tmp_path / "m") as second:
            second.write(b"second")
        assert (tmp_path / "m").read_bytes() == b"second"
    assert (tmp_path / "m").read_bytes() == b"first"


def test_parts_that_were_never_locked_go_when_they_are_old(tmp_path):
    new = tmp_path / f".m.{'0' * 16}.new"
    new.touch()
    with atomic_folder(tmp_path / "m"):
        pass
    assert new.exists(), "its writer may be about to lock it"
    os.utime(new, (0, 0))
    with atomic_folder(tmp_path / "m"):
        pass
    assert not new.exists()


def test_other_names_parts_stay(tmp_path):
    others = [tmp_path / f".{name}.{'0' * 16}.part" for name in ("mm", "m.mar", "[m]")]
    for other in others:
        other.touch()
    with atomic_folder(tmp_path / "m"):
        pass
    assert all(other.exists() for other in others)
    with atomic_file(tmp_path / "[m]"):
        pass
    assert [other.exists() for other in others] == [True, True, False]
