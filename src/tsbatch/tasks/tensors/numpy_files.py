"""Read and write ``.npy`` and ``.npz`` bodies, without pickle and without trusting a header.

The header of an ``.npy`` says how many numbers follow; they are counted before memory is allocated, and an ``.npz`` is
unpacked up to a limit. (NumPy's own reader allocates what the header says.)
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
MAX_ARRAYS: Final = 64
"""Arrays in one ``.npz``."""

_KINDS: Final = "biuf"
_EXPECTED: Final = "what numpy.save writes of an array of numbers"


def is_numpy(raw: Any) -> bool:
    """Whether these are the bytes of an ``.npy`` or ``.npz`` file."""
    return isinstance(raw, (bytes, bytearray)) and bytes(raw[:6]).startswith((NPY, NPZ))


def read_arrays(raw: bytes, *, max_bytes: int) -> Array | dict[str, Array]:
    """Read the array of an ``.npy``, or the arrays of an ``.npz`` by name.

    Args:
        raw: the file.
        max_bytes: the limit for an unpacked ``.npz``.

    Raises:
        BadRequest: the file is broken or cut off.
        Unprocessable: it has other values than numbers.
        PayloadTooLarge: it unpacks to more.
    """
    if not raw.startswith(NPZ):
        return read_npy(raw, "the .npy body")
    try:
        with zipfile.ZipFile(io.BytesIO(raw)) as archive:
            members = archive.infolist()
            if len(members) > MAX_ARRAYS:
                raise PayloadTooLarge(f"the .npz has {len(members):,} arrays", expected=f"at most {MAX_ARRAYS}")
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


def _unpack(archive: zipfile.ZipFile, member: zipfile.ZipInfo, limit: int) -> bytes:
    """The first bytes of a member. Not of bzip2 and LZMA, of which Python unpacks whole blocks at once."""
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError("neither stored nor deflated")
    with archive.open(member) as file:
        return file.read(limit)


def read_npy(raw: bytes, where: str) -> Array:
    """Read the array of an ``.npy`` file, in this machine's byte order.

    Args:
        raw: the file.
        where: names the file in messages.

    Raises:
        BadRequest: the file is broken or cut off.
        Unprocessable: it has other values than numbers.
    """
    file = io.BytesIO(raw)
    try:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, column_first, dtype = read(file)
    except Exception:  # Python's parser may raise anything for a broken header
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
        raise BadRequest(f"{where} has an impossible shape", expected=_EXPECTED) from None
    return array.astype(dtype.newbyteorder("="))


def write_npy(array: Array) -> bytes:
    """Encode an array as an ``.npy`` file."""
    file = io.BytesIO()
    np.lib.format.write_array(file, np.asarray(array, order="C"), allow_pickle=False)
    return file.getvalue()


def write_npz(arrays: Mapping[str, Array]) -> bytes:
    """Encode arrays as an ``.npz`` file."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, array in arrays.items():
            archive.writestr(f"{name}.npy", write_npy(array))
    return file.getvalue()
