"""The bytes of an archive, format by format."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import tarfile
import zipfile

import pytest

from tsbatch.archive import writer
from tsbatch.archive.writer import HASHES_NAME, ArchiveInput, sha256, write_folder, write_tar, write_zip
from tsbatch.errors import UsageError


def files_in(folder):
    (folder / "w").write_bytes(os.urandom(3_000_000))
    return {"z/ü.txt": b"1", "a": folder / "w", "M/x": b""}


def contents(files):
    return {name: file if isinstance(file, bytes) else file.read_bytes() for name, file in files.items()}


def check_hashes(document, files):
    found = json.loads(document)
    assert found["schema"] == 1
    assert found["files"] == {
        name: {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        for name, content in contents(files).items()
    }


def test_entries_are_stored_sorted_and_without_a_time(tmp_path):
    stream, counted = io.BytesIO(), []
    write_zip(ArchiveInput(files_in(tmp_path), on_bytes=counted.append), stream)
    with zipfile.ZipFile(stream) as archive:
        assert archive.testzip() is None
        assert archive.namelist() == ["M/x", "a", "z/ü.txt", HASHES_NAME]
        assert archive.read("z/ü.txt") == b"1"
        for entry in archive.infolist():
            assert entry.compress_type == zipfile.ZIP_STORED
            assert entry.date_time == (1980, 1, 1, 0, 0, 0)
            assert (entry.create_system, entry.external_attr >> 16) == (3, 0o100644)
            assert not entry.flag_bits & 0x08  # Java's ZipInputStream refuses a stored entry with a data descriptor
    assert sum(counted) == 3_000_001
    assert max(counted) <= writer.CHUNK


def test_sha256_is_that_of_the_file(tmp_path):
    path, counted = tmp_path / "f", []
    path.write_bytes(bytes(range(256)) * 10_000)
    assert sha256(path, counted.append) == hashlib.sha256(path.read_bytes()).hexdigest()
    assert sum(counted) == 2_560_000
    assert sha256(path) == sha256(path, counted.append)


@pytest.mark.parametrize("compress", [False, True])
def test_a_zip_holds_the_files_and_their_hashes(tmp_path, compress):
    files, stream = files_in(tmp_path), io.BytesIO()
    write_zip(ArchiveInput(files, {"python": "cp311"}), stream, compress=compress)
    with zipfile.ZipFile(stream) as archive:
        assert {name: archive.read(name) for name in files} == contents(files)
        check_hashes(archive.read(HASHES_NAME), files)
        assert json.loads(archive.read(HASHES_NAME))["python"] == "cp311"
        kinds = {entry.compress_type for entry in archive.infolist()}
    assert kinds == {zipfile.ZIP_DEFLATED if compress else zipfile.ZIP_STORED}


def test_a_tar_has_one_folder_and_the_manifest_first(tmp_path):
    files, stream, counted = files_in(tmp_path), io.BytesIO(), []
    files["MAR-INF/MANIFEST.json"] = b"{}"
    write_tar(ArchiveInput(files, on_bytes=counted.append), stream, "m")
    stream.seek(0)
    with tarfile.open(fileobj=stream, mode="r:gz") as archive:
        names = archive.getnames()
        assert {name: archive.extractfile(f"m/{name}").read() for name in files} == contents(files)
        check_hashes(archive.extractfile(f"m/{HASHES_NAME}").read(), files)
        assert {(entry.mtime, entry.uid, entry.uname, entry.mode) for entry in archive} == {
            (writer.LONG_AGO, 0, "", 0o644)
        }
    assert names == ["m/MAR-INF/MANIFEST.json", "m/M/x", "m/a", "m/z/ü.txt", f"m/{HASHES_NAME}"]
    assert sum(counted) == 3_000_003
    assert gzip.decompress(stream.getvalue())
    assert stream.getvalue()[4:8] == bytes(4), "no time in the gzip header"


@pytest.mark.parametrize("how", ["copy", "plain copy", "link"])
def test_a_folder_holds_the_files_and_their_hashes(tmp_path, monkeypatch, how):
    if how == "plain copy":
        monkeypatch.delattr(os, "copy_file_range", raising=False)
    (tmp_path / "from").mkdir()
    (tmp_path / "to").mkdir()
    files, folder = files_in(tmp_path / "from"), tmp_path / "to"
    write_folder(ArchiveInput(files), folder, link=how == "link")
    assert {name: (folder / name).read_bytes() for name in files} == contents(files)
    check_hashes((folder / HASHES_NAME).read_bytes(), files)
    assert (folder / "a").samefile(files["a"]) == (how == "link")


def test_a_hard_link_that_cannot_be_made(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    (tmp_path / "to").mkdir()
    with pytest.raises(UsageError, match=r"w: no hard link can be made .*leave out --link"):
        write_folder(ArchiveInput(files_in(tmp_path)), tmp_path / "to", link=True)


def test_a_file_that_changes_meanwhile_is_named(tmp_path):
    path = tmp_path / "w"
    path.write_bytes(b"12345")
    for content in (b"1234567", b"1"):
        reading = ArchiveInput({"w": path})
        reading.size = lambda name: 5  # what it was a moment ago
        path.write_bytes(content)
        with pytest.raises(UsageError, match="w: changed while it was packed"):
            list(reading.blocks("w"))
