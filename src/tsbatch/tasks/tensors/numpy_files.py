"""``.npy`` and ``.npz`` bodies to arrays and back, without pickle and without trusting a header.

The header of a ``.npy`` says how many numbers follow; they are counted before any room is made for them, and what an
``.npz`` unpacks to is bounded while it is unpacked. (NumPy's own reader makes room for what the header says.)
"""

from __future__ import annotations

import io
import math
import zipfile
import zlib
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from tsbatch.errors import BadRequest, PayloadTooLarge, Unprocessable

Array = np.ndarray[Any, Any]

NPY: Final = np.lib.format.MAGIC_PREFIX
NPZ: Final = b"PK\x03\x04"
MEMBERS: Final = 64
"""Arrays in one ``.npz``."""

_KINDS: Final = "biuf"
_EXPECTED: Final = "what numpy.save writes of an array of numbers"


def is_numpy(raw: Any) -> bool:
    """Whether these are the bytes of an ``.npy`` or ``.npz`` file."""
    return isinstance(raw, (bytes, bytearray)) and bytes(raw[:6]).startswith((NPY, NPZ))


def read_arrays(raw: bytes, *, max_bytes: int) -> Array | dict[str, Array]:
    """The array of an ``.npy``, or the arrays of an ``.npz`` by name.

    Args:
        raw: the file.
        max_bytes: what an ``.npz`` may unpack to.

    Raises:
        BadRequest: broken or cut off.
        Unprocessable: not plain numbers.
        PayloadTooLarge: it unpacks to more.
    """
    if not raw.startswith(NPZ):
        return read_npy(raw, "the .npy body")
    try:
        with zipfile.ZipFile(io.BytesIO(raw)) as archive:
            members = archive.infolist()
            if len(members) > MEMBERS:
                raise PayloadTooLarge(f"the .npz has {len(members):,} arrays", expected=f"at most {MEMBERS}")
            arrays, left = {}, max_bytes
            for member in members:
                name, unpacked = member.filename, _unpack(archive, member, left + 1)
                left -= len(unpacked)
                if left < 0:
                    message = f"the .npz unpacks to more than {max_bytes:,} bytes"
                    raise PayloadTooLarge(message, expected=f"{max_bytes:,} bytes or fewer (handler.max_bytes)")
                arrays[name.removesuffix(".npy")] = read_npy(unpacked, f"{name[:40]!r} of the .npz")
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError, NotImplementedError, RuntimeError) as error:
        raise BadRequest(f"the .npz body is broken: {str(error)[:100]}", expected="what numpy.savez writes") from None
    if not arrays:
        raise BadRequest("the .npz body has no array", expected="what numpy.savez writes")
    return arrays


def _unpack(archive: zipfile.ZipFile, member: zipfile.ZipInfo, most: int) -> bytes:
    """The first bytes of a member. Not of bzip2 and LZMA: Python unpacks as much of those at once as they say."""
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError("neither stored nor deflated")
    with archive.open(member) as file:
        return file.read(most)


def read_npy(raw: bytes, where: str) -> Array:
    """The array of an ``.npy`` file, in this machine's byte order.

    Args:
        raw: the file.
        where: what it is, for messages.

    Raises:
        BadRequest: broken or cut off.
        Unprocessable: not plain numbers.
    """
    file = io.BytesIO(raw)
    try:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, column_first, dtype = read(file)
    except Exception:  # whatever Python's parser says of what is no header
        raise BadRequest(f"{where} has no header that NumPy can read", expected=_EXPECTED) from None
    if dtype.kind not in _KINDS or dtype.itemsize > 8:
        raise Unprocessable(f"{where} holds {str(dtype)[:40]}", expected="numbers or truth values")
    start, count = file.tell(), math.prod(shape)
    if count * dtype.itemsize != len(raw) - start:
        message = f"{where} has {len(raw) - start:,} bytes of data, and its shape needs {count * dtype.itemsize:,}"
        raise BadRequest(message, expected=_EXPECTED)
    try:
        array = np.frombuffer(raw, dtype, count, start).reshape(shape, order="F" if column_first else "C")
    except ValueError:  # a shape like (0, 2**62, 2**62)
        raise BadRequest(f"{where} has a shape that cannot be", expected=_EXPECTED) from None
    return array.astype(dtype.newbyteorder("="))


def write_npy(array: Array) -> bytes:
    """An array as ``.npy`` file."""
    file = io.BytesIO()
    np.lib.format.write_array(file, np.asarray(array, order="C"), allow_pickle=False)
    return file.getvalue()


def write_npz(arrays: Mapping[str, Array]) -> bytes:
    """Arrays as ``.npz`` file."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, array in arrays.items():
            archive.writestr(f"{name}.npy", write_npy(array))
    return file.getvalue()
