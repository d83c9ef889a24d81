"""Scanning malicious and damaged archives."""

from __future__ import annotations

import gzip
import io
import struct
import tarfile
import zipfile
import zlib

import pytest

from tests.unit.archive.archives import contents, make, rewrite
from tsbatch.archive import reader as module
from tsbatch.archive.reader import scan
from tsbatch.archive.verification import verify
from tsbatch.errors import UsageError


def findings(path):
    return {(finding.file, finding.what) for finding in verify(scan(path))}


def flip(path, at):
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def entry_and_offset(path, name):
    with zipfile.ZipFile(path) as archive:
        entry = archive.getinfo(name)
    return entry, entry.header_offset + 30 + len(name)


def test_a_changed_byte_is_found_by_the_checksum(tmp_path):
    path = make(tmp_path)
    flip(path, entry_and_offset(path, "w.bin")[1])
    assert findings(path) == {("w.bin", "damaged")}


def test_a_changed_byte_with_the_checksum_corrected_in_both_places(tmp_path):
    path = make(tmp_path)
    entry, at = entry_and_offset(path, "w.bin")
    flip(path, at)
    data = bytearray(path.read_bytes())
    crc = struct.pack("<I", zlib.crc32(data[at : at + entry.file_size]))
    old = struct.pack("<I", entry.CRC)
    assert data.count(old) == 2
    path.write_bytes(bytes(data).replace(old, crc))
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
    assert findings(path) == {("w.bin", "changed")}


def test_a_header_that_contradicts_the_directory(tmp_path):
    """Java reads the header, Python the directory."""
    path = make(tmp_path)
    entry, _ = entry_and_offset(path, "w.bin")
    flip(path, entry.header_offset + 14)
    assert findings(path) == {("w.bin", "container")}


def hidden_entry(name, content):
    """An entry that no directory lists."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr(name, content)
        end = archive.start_dir
    return stream.getvalue()[:end]


@pytest.mark.parametrize("where", ["before", "after"])
def test_a_file_that_only_java_would_unpack(tmp_path, where):
    path = make(tmp_path)
    with zipfile.ZipFile(path) as archive:
        start = archive.start_dir if where == "after" else 0
    data, extra = path.read_bytes(), hidden_entry("evil.py", b"evil")
    data = bytearray(data[:start] + extra + data[start:])
    end = data.rindex(b"PK\x05\x06")
    struct.pack_into("<I", data, end + 16, struct.unpack_from("<I", data, end + 16)[0] + len(extra))
    path.write_bytes(data)
    if where == "before":
        # The directory's offsets point behind the hidden entry as well.
        at = struct.unpack_from("<I", data, end + 16)[0]
        while data[at : at + 4] == b"PK\x01\x02":
            struct.pack_into("<I", data, at + 42, struct.unpack_from("<I", data, at + 42)[0] + len(extra))
            lengths = struct.unpack_from("<3H", data, at + 28)
            at += 46 + sum(lengths)
        path.write_bytes(data)
    assert any(what == "container" for _, what in findings(path))


def test_a_file_twice(tmp_path):
    path = make(tmp_path)
    with zipfile.ZipFile(path, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr("w.bin", b"other")
    assert {("w.bin", "container"), ("w.bin", "changed")} == findings(path)


def test_a_zip_that_torchserve_cannot_read_is_reported(tmp_path):
    path = make(tmp_path)
    files = contents(path)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_BZIP2) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    assert {what for _, what in findings(path)} == {"container"}
    (tmp_path / "unseekable.mar").write_bytes(unseekable(files))
    texts = [str(finding) for finding in verify(scan(tmp_path / "unseekable.mar"))]
    assert len(texts) == len(files)
    assert all("stored with its size after its data" in text for text in texts)
    path.rename(tmp_path / "m.zip")
    assert ("m.zip", "container") in findings(tmp_path / "m.zip")


def unseekable(files):
    class Pipe(io.RawIOBase):
        def __init__(self):
            self.data = bytearray()

        def writable(self):
            return True

        def write(self, block):
            self.data += block
            return len(block)

    pipe = Pipe()
    with zipfile.ZipFile(pipe, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return bytes(pipe.data)


def test_a_deflated_archive_with_sizes_after_the_data_is_accepted(tmp_path):
    """torch-model-archiver and most zip programs write such archives into a pipe."""
    path = make(tmp_path, "mar-compressed")
    files = contents(path)

    class Pipe(io.BytesIO):
        def seekable(self):
            return False

        def tell(self):
            raise OSError("a pipe")

    pipe = Pipe()
    with zipfile.ZipFile(pipe, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    path.write_bytes(pipe.getvalue())
    assert findings(path) == set()


@pytest.mark.parametrize("name", ["../evil", "/evil", "..\\evil", "C:\\evil", "a/../../evil"])
@pytest.mark.parametrize("form", ["mar", "tar.gz"])
def test_names_that_lead_out_are_refused(tmp_path, form, name):
    path = make(tmp_path, form)
    files = contents(path)
    if form == "mar":
        rewrite(path, {**files, name: b"x"})
    else:
        with tarfile.open(path, "w:gz") as archive:
            entry = tarfile.TarInfo(name)
            archive.addfile(entry)
    with pytest.raises(UsageError, match="would lie outside the folder"):
        scan(path)


def test_links_are_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "m.mar", "w") as archive:
        link = zipfile.ZipInfo("link")
        link.external_attr = 0o120777 << 16
        archive.writestr(link, "/etc/passwd")
    with tarfile.open(tmp_path / "m.tar.gz", "w:gz") as archive:
        entry = tarfile.TarInfo("m/link")
        entry.type, entry.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(entry)
    for name in ("m.mar", "m.tar.gz"):
        with pytest.raises(UsageError, match="is a link"):
            scan(tmp_path / name)


@pytest.mark.parametrize("form", ["mar", "tar.gz"])
def test_bombs_are_refused_before_they_cost_anything(tmp_path, form, monkeypatch):
    monkeypatch.setattr(module, "HARMLESS_BYTES", 1_000_000)
    path = make(tmp_path, form)
    bomb = bytes(20_000_000)
    if form == "mar":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("bomb", bomb)
    else:
        rewrite(path, {"bomb": bomb})
    read = []
    with pytest.raises(UsageError, match="200 times its size"):
        scan(path, read.append)
    assert sum(read) < 8_000_000


def test_a_bomb_after_the_end_of_a_tar(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "HARMLESS_BYTES", 1_000_000)
    path = make(tmp_path, "tar.gz")
    path.write_bytes(path.read_bytes() + gzip.compress(bytes(50_000_000)))
    with pytest.raises(UsageError, match="200 times its size"):
        scan(path)


@pytest.mark.parametrize("form", ["mar", "tar.gz"])
@pytest.mark.parametrize("content", [b"", b"hello", b"PK\x03\x04 and no more", b"\x1f\x8b\x08 and no more"])
def test_files_that_are_not_archives(tmp_path, form, content):
    path = tmp_path / f"m.{form}"
    path.write_bytes(content)
    with pytest.raises(UsageError) as caught:
        scan(path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("form", ["mar", "tar.gz"])
@pytest.mark.parametrize("part", [0.3, 0.9, 0.999])
def test_truncated_archives(tmp_path, form, part):
    path = make(tmp_path, form)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * part)])
    with pytest.raises(UsageError, match=r"m\.(mar|tar\.gz): "):
        scan(path)


def test_a_tar_whose_checksum_is_wrong(tmp_path):
    path = make(tmp_path, "tar.gz")
    flip(path, -6)
    with pytest.raises(UsageError, match="CRC check failed"):
        scan(path)


def test_a_tar_without_a_folder(tmp_path):
    path = tmp_path / "m.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        archive.addfile(tarfile.TarInfo("config.json"))
    assert ("config.json", "container") in findings(path)


def test_an_encrypted_zip(tmp_path):
    path = make(tmp_path)
    data = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as archive:
        at = archive.start_dir
    data[at + 8] |= 1
    path.write_bytes(data)
    with pytest.raises(UsageError, match="is encrypted"):
        scan(path)


def test_a_missing_archive(tmp_path):
    with pytest.raises(UsageError, match=r"none\.mar: no such archive"):
        scan(tmp_path / "none.mar")
