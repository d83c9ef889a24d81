"""Find contradictions between a zip's two tables of contents.

Python reads the directory at the end of a zip; TorchServe reads the header of each file, one after the other from the
first byte (frontend/archive/.../utils/ZipUtils.java). A file that only one of them sees would escape every check.
"""

from __future__ import annotations

import struct
import zipfile
from collections.abc import Iterator, Sequence
from typing import BinaryIO

HEADER = struct.Struct("<4s2H H 2H 3L 2H")
SIGNATURE = b"PK\x03\x04"
IN_ZIP64 = 0xFFFFFFFF
SIZES_FOLLOW = 0x08
FOLLOWING = {12, 16, 20, 24}
"""Possible lengths of the record with the sizes that may follow a file."""

READABLE = {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}


def disagreements(stream: BinaryIO, entries: Sequence[zipfile.ZipInfo], end: int) -> Iterator[tuple[str, str]]:
    """Yield each file that TorchServe would unpack differently from the directory, and what is wrong with it.

    Args:
        stream: the zip.
        entries: its directory.
        end: where the directory begins.
    """
    at = 0
    ordered = sorted(entries, key=lambda entry: entry.header_offset)
    for entry, following in zip(ordered, [*(entry.header_offset for entry in ordered[1:]), end], strict=True):
        if entry.header_offset != at:
            yield entry.filename, f"{entry.header_offset - at} bytes before it belong to no listed file"
        stream.seek(entry.header_offset)
        header = stream.read(HEADER.size)
        if len(header) < HEADER.size or not header.startswith(SIGNATURE):
            yield entry.filename, "has no header of its own"
            at = following
            continue
        yield from _own_header(entry, header)
        flags, (name_length, extra_length) = HEADER.unpack(header)[2], HEADER.unpack(header)[-2:]
        at = entry.header_offset + HEADER.size + name_length + extra_length + entry.compress_size
        if flags & SIZES_FOLLOW and following - at in FOLLOWING:
            at = following
    if at != end:
        yield "the archive", f"{end - at} bytes after the last file belong to no listed file"


def _own_header(entry: zipfile.ZipInfo, header: bytes) -> Iterator[tuple[str, str]]:
    _, _, flags, method, _, _, crc, packed, size, _, _ = HEADER.unpack(header)
    if entry.compress_type not in READABLE:
        yield (
            entry.filename,
            "is compressed with a method that TorchServe cannot read; package the model with tsbatch package",
        )
    if flags & SIZES_FOLLOW:
        if method == zipfile.ZIP_STORED:
            yield entry.filename, "is stored with its size after its data, which TorchServe cannot read"
        return
    listed = (entry.compress_type, entry.CRC, entry.compress_size, entry.file_size)
    own = (method, crc, packed, size)
    if any(one not in (other, IN_ZIP64) for one, other in zip(own, listed, strict=True)):
        yield entry.filename, "its own header contradicts the zip's directory"
