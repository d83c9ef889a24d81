"""Decode image files to upright RGB images; a bad file always leads to a 4xx.

The kind of file is detected from the first bytes, never from a name or content type; the number of pixels is read from
the header, before anything is decoded. Pillow does the rest. The result is that of transformers' ``load_image``
(transformers/image_utils.py): rotated by EXIF, alpha dropped, grey and palettes converted to three channels. Only
16-bit grey differs: here it is scaled to 8 bits, while Pillow clips values over 255.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import numpy as np

from tsbatch.errors import LoadError, PayloadTooLarge, Unprocessable, UnsupportedMedia

try:
    from PIL import Image, ImageOps, UnidentifiedImageError
except ImportError:
    raise LoadError("Pillow is not installed, and images need it: pip install 'tsbatch[image]'") from None

__all__ = ["EXPECTED", "KINDS", "Image", "decode_image", "encode_png", "pillow_limits"]

KINDS: Final = {
    "JPEG": (b"\xff\xd8\xff",),
    "PNG": (b"\x89PNG\r\n\x1a\n",),
    "WebP": (b"RIFF",),
    "GIF": (b"GIF87a", b"GIF89a"),
    "BMP": (b"BM",),
    "TIFF": (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"),
}
"""The supported kinds of files, and the bytes that each begins with."""
EXPECTED: Final = "a JPEG, PNG, WebP, GIF (its first frame), BMP or TIFF file"
_TILE_WIDTH, _TILE_LENGTH = 322, 323  # tags of TIFF 6.0


def decode_image(data: bytes, max_pixels: int) -> Image.Image:
    """Decode the upright RGB image in ``data``; of several frames the first.

    Args:
        data: a file of one of :data:`KINDS`.
        max_pixels: the limit for its pixels.

    Raises:
        UnsupportedMedia: another kind of file.
        PayloadTooLarge: more pixels, by its header.
        Unprocessable: broken, cut off, or empty.
    """
    if not data:
        raise Unprocessable("the item is empty", expected=EXPECTED)
    kind = next((kind for kind, beginnings in KINDS.items() if data.startswith(beginnings)), None)
    if kind is None:
        raise UnsupportedMedia("the item is not an image of a supported kind", expected=EXPECTED)
    try:
        image = Image.open(io.BytesIO(data), formats=[kind.upper()])
        if (pixels := _pixels(image)) > max_pixels:
            raise _too_many(f"{pixels:,}", max_pixels)
        image.load()
        return _rgb(_upright(image))
    except (Unprocessable, PayloadTooLarge, MemoryError):
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise _too_many("too many", max_pixels) from None
    except UnidentifiedImageError:
        raise Unprocessable(f"the item begins as a {kind} file, but its header is broken", expected=EXPECTED) from None
    except Exception as error:  # Pillow may raise anything for a broken file
        message = f"the {kind} file is broken or cut off ({type(error).__name__})"
        raise Unprocessable(message, expected=EXPECTED) from None


def encode_png(pixels: np.ndarray[Any, Any]) -> bytes:
    """A PNG file of 8-bit pixels, shape (height, width) for grey, or (height, width, 3)."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


@contextmanager
def pillow_limits(max_pixels: int) -> Iterator[None]:
    """Limit Pillow to ``max_pixels`` and suppress its warnings, while any threads decode a batch.

    Pillow's limit applies to the whole process. It is needed since WebP allocates memory when a file is opened, before
    our own check. The warnings concern the clients' files and are answered to them; they do not belong into the
    operator's log.
    """
    before = Image.MAX_IMAGE_PIXELS
    Image.MAX_IMAGE_PIXELS = max_pixels
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        Image.MAX_IMAGE_PIXELS = before


def _pixels(image: Image.Image) -> int:
    tags: Any = getattr(image, "tag_v2", {})  # the tiles of a TIFF may be larger than the image in them
    return max(image.width * image.height, int(tags.get(_TILE_WIDTH, 0)) * int(tags.get(_TILE_LENGTH, 0)))


def _too_many(pixels: str, max_pixels: int) -> PayloadTooLarge:
    return PayloadTooLarge(f"the image has {pixels} pixels, over the limit of {max_pixels:,}")


def _upright(image: Image.Image) -> Image.Image:
    try:
        ImageOps.exif_transpose(image, in_place=True)
    except MemoryError:
        raise
    except Exception:  # noqa: S110  unreadable EXIF does not affect the pixels
        pass
    return image


def _rgb(image: Image.Image) -> Image.Image:
    image.info.pop("transparency", None)  # dropped like alpha
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format == "PNG"):  # Pillow up to 10 has "I" there
        grey = np.asarray(image).astype(np.uint16) >> 8
        image = Image.fromarray(grey.astype(np.uint8))
    return image if image.mode == "RGB" else image.convert("RGB")
