from __future__ import annotations

import contextlib
import io
import zipfile

import numpy as np
import pytest

from tsbatch.errors import BadRequest, PayloadTooLarge, RequestError, Unprocessable
from tsbatch.tasks.tensors.numpy_files import is_numpy, read_arrays, write_npy, write_npz


def npy(array, **how):
    file = io.BytesIO()
    np.save(file, array, **how)
    return file.getvalue()


def npz(compressed=False, **arrays):
    file = io.BytesIO()
    (np.savez_compressed if compressed else np.savez)(file, **arrays)
    return file.getvalue()


def read(raw, max_bytes=1_000_000):
    return read_arrays(raw, max_bytes=max_bytes)


@pytest.mark.parametrize("dtype", ["?", "i1", "u2", "<i4", ">i4", "i8", "u8", "f2", "f4", ">f4", "f8"])
@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (0, 4), (2, 1, 2)])
def test_arrays_of_numbers_are_read(dtype, shape):
    array = (np.arange(np.prod(shape, dtype=int)).reshape(shape) % 2).astype(dtype)
    for raw in (npy(array), npy(np.asarray(array, order="F"))):
        assert is_numpy(raw)
        found = read(raw)
        assert found.dtype == array.dtype.newbyteorder("=")
        assert np.array_equal(found, array)
        assert found.flags.writeable
    assert np.array_equal(read(npz(x=array))["x"], array)
    assert np.array_equal(read(npz(compressed=True, x=array))["x"], array)


def test_what_is_written_is_what_numpy_reads():
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert np.array_equal(np.load(io.BytesIO(write_npy(array.T))), array.T)
    found = np.load(io.BytesIO(write_npz({"a": array, "b": array[0]})))
    assert np.array_equal(found["a"], array)
    assert np.array_equal(found["b"], array[0])


@pytest.mark.parametrize("raw", [b"", b"{}", b"\x93NUMP", "text", None, {"a": 1}])
def test_what_is_no_file_of_numpy(raw):
    assert not is_numpy(raw)


def test_cut_off_at_every_byte_is_400():
    for raw in (npy(np.arange(5.0)), npz(x=np.arange(5.0), y=np.arange(3)), npz(compressed=True, x=np.arange(50))):
        for length in range(6, len(raw)):
            with pytest.raises(BadRequest):
                read(raw[:length])


def test_flipped_bytes_are_read_or_4xx():
    numbers = np.random.default_rng(0)
    for raw in (npy(np.arange(20.0)), npz(x=np.arange(20.0)), npz(compressed=True, x=np.arange(200))):
        for _ in range(300):
            broken = bytearray(raw)
            for place in numbers.integers(6, len(raw), 3):
                broken[place] = numbers.integers(0, 256)
            with contextlib.suppress(RequestError):
                read(bytes(broken))


@pytest.mark.parametrize(
    "array",
    [
        np.array([{"a": 1}], dtype=object),
        np.array(["text"]),
        np.array([1 + 2j]),
        np.array(["2020-01-01"], dtype="M8[D]"),
        np.zeros(2, dtype=[("a", "f4")]),
        np.zeros(2, dtype=np.longdouble),
    ],
)
def test_what_is_no_numbers_is_422_and_never_unpickled(array):
    with pytest.raises(Unprocessable, match="holds"):
        read(npy(array, allow_pickle=True))


def test_a_header_that_lies_gets_no_room():
    raw = npy(np.arange(4.0))
    for shape in ("(999999999999,)", "(0, 9223372036854775807, 9223372036854775807)", "(-4,)", "(4, 4)", "(True,)"):
        head = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}"
        lie = raw[:8] + (118).to_bytes(2, "little") + head.ljust(117).encode() + b"\n" + raw[-32:]
        with pytest.raises(BadRequest):
            read(lie)


def test_a_bomb_is_413():
    raw = npz(compressed=True, x=np.zeros(2_000_000))
    assert len(raw) < 20_000
    with pytest.raises(PayloadTooLarge, match="more than 1,000,000 bytes"):
        read(raw)
    several = npz(compressed=True, **{f"x{place}": np.zeros(60_000) for place in range(4)})
    with pytest.raises(PayloadTooLarge, match="more than 1,000,000 bytes"):
        read(several)
    with pytest.raises(PayloadTooLarge, match="65 arrays"):
        read(npz(**{f"x{place}": np.zeros(1) for place in range(65)}))


@pytest.mark.parametrize("compression", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_what_cannot_be_unpacked_piece_by_piece_is_400(compression):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as archive:
        archive.writestr("x.npy", npy(np.zeros(10)))
    with pytest.raises(BadRequest, match="neither stored nor deflated"):
        read(file.getvalue())


def test_an_archive_without_arrays_is_400():
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("readme.txt", "no array")
    with pytest.raises(BadRequest, match="no header"):
        read(file.getvalue())
