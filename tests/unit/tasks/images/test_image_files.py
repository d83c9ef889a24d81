"""Files to images: every kind as Pillow and transformers open it, and every broken one as a 4xx."""

from __future__ import annotations

import importlib.util
import sys

import numpy as np
import pytest
from PIL import Image

from tests.broken_images import catalogue
from tests.varied_images import IMAGES, encoded, opened, picture, rotated
from tsbatch.errors import LoadError, PayloadTooLarge, RequestError, Unprocessable, UnsupportedMedia
from tsbatch.tasks.images import image_files
from tsbatch.tasks.images.image_files import decode_image, pillow_limits

LIMIT = 50_000_000


def decode(data, limit=LIMIT):
    with pillow_limits(limit):
        return decode_image(data, limit)


@pytest.mark.parametrize("name", IMAGES)
def test_as_transformers_loads_it(name):
    expected = opened(IMAGES[name])
    image = decode(IMAGES[name])
    assert (image.mode, image.size) == ("RGB", expected.size)
    assert np.array_equal(np.asarray(image), np.asarray(expected))


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_sixteen_bits_are_scaled_and_not_cut_off(kind):
    grey = np.linspace(0, 65535, 60 * 40).reshape(40, 60).astype(np.uint16)
    image = decode(encoded(Image.fromarray(grey), kind))
    assert np.array_equal(np.asarray(image), np.repeat((grey >> 8).astype(np.uint8)[:, :, None], 3, axis=2))


def test_a_tiff_of_the_other_byte_order_and_of_floats():
    grey = np.linspace(0, 255, 12).reshape(3, 4)
    floats = decode(encoded(Image.fromarray(grey.astype(np.float32)), "TIFF"))
    assert np.abs(np.asarray(floats)[:, :, 0] - grey).max() <= 1
    big = Image.frombytes("I;16B", (4, 3), (grey.astype(np.uint16) * 256).astype(">u2").tobytes())
    assert np.array_equal(np.asarray(decode(encoded(big, "TIFF")))[:, :, 0], grey.astype(np.uint16))


def test_unreadable_exif_turns_nothing():
    data = rotated(picture(3), 6)
    place = data.index(b"Exif\0\0")
    image = decode(data[: place + 6] + b"\xff" * 8 + data[place + 14 :])
    assert image.size == picture(3).size


@pytest.mark.parametrize("name, entry", catalogue().items())
def test_what_is_broken_is_told_as_a_4xx(name, entry):
    data, statuses = entry
    status, message = outcome(data)
    assert status in statuses, name
    assert "0x" not in message, "no address of an object"


def outcome(data):
    try:
        decode(data)
    except RequestError as error:
        return error.status, error.message
    return 200, ""


def test_the_limit_is_on_the_pixels_of_the_header():
    data = encoded(picture(0, 100, 200), "PNG")
    assert decode(data, 20_000).size == (200, 100)
    with pytest.raises(PayloadTooLarge, match=r"20,000 pixels, over the limit of 19,999"):
        decode(data, 19_999)
    with pytest.raises(PayloadTooLarge):
        decode(data, 100)


def test_pillows_own_limit_is_put_back():
    before = Image.MAX_IMAGE_PIXELS
    with pillow_limits(1000):
        assert Image.MAX_IMAGE_PIXELS == 1000
    assert before == Image.MAX_IMAGE_PIXELS
    with pytest.raises(PayloadTooLarge):
        decode(encoded(picture(0), "PNG"), 10)
    assert before == Image.MAX_IMAGE_PIXELS


@pytest.mark.parametrize(
    "data, error, part",
    [
        (b"", Unprocessable, "empty"),
        (b"hello", UnsupportedMedia, "not an image"),
        (b"\xff\xd8\xff", Unprocessable, "begins as a JPEG file"),
        (encoded(picture(0), "PNG")[:200], Unprocessable, "PNG file is broken or cut off"),
    ],
)
def test_messages_say_what_was_wrong_and_what_is_expected(data, error, part):
    with pytest.raises(error) as caught:
        decode(data)
    assert part in caught.value.message
    assert "JPEG, PNG, WebP, GIF" in caught.value.expected


def test_without_pillow_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    spec = importlib.util.spec_from_file_location("without_pillow", image_files.__file__)
    with pytest.raises(LoadError, match=r"pip install 'tsbatch\[image\]'"):
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


def test_memory_that_runs_out_is_no_fault_of_the_file(monkeypatch):
    monkeypatch.setattr(image_files.ImageOps, "exif_transpose", _out_of_memory)
    with pytest.raises(MemoryError):
        decode(encoded(picture(0), "PNG"))


def _out_of_memory(*_args, **_options):
    raise MemoryError
