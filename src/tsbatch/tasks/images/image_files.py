"""From the bytes of a file to an upright RGB image; every way in which a file can be bad is a 4xx.

The kind is read from the first bytes alone, never from a name or content type; the number of pixels from the header,
before anything is decoded. Pillow does the rest. Colours become what transformers' ``load_image``
(transformers/image_utils.py) makes of them: turned as EXIF says, alpha dropped, grey and palettes spread over three
channels. Only 16-bit grey differs: scaled to 8 bits here, where Pillow cuts everything over 255 off.
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

__all__ = ["EXPECTED", "KINDS", "Image", "decode_image", "guarded"]

KINDS: Final = {
    "JPEG": (b"\xff\xd8\xff",),
    "PNG": (b"\x89PNG\r\n\x1a\n",),
    "WebP": (b"RIFF",),
    "GIF": (b"GIF87a", b"GIF89a"),
    "BMP": (b"BM",),
    "TIFF": (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"),
}
"""The kinds of files that are read, and how each begins."""
EXPECTED: Final = "a JPEG, PNG, WebP, GIF (its first frame), BMP or TIFF file"
_TILE_WIDTH, _TILE_LENGTH = 322, 323  # tags of TIFF 6.0


def decode_image(data: bytes, max_pixels: int) -> Image.Image:
    """The upright RGB image in ``data``; of several frames the first.

    Args:
        data: a file of one of :data:`KINDS`.
        max_pixels: the most that are decoded.

    Raises:
        UnsupportedMedia: not such a file.
        PayloadTooLarge: more pixels than that, by its header.
        Unprocessable: broken, cut off, or empty.
    """
    if not data:
        raise Unprocessable("the item is empty", expected=EXPECTED)
    kind = next((kind for kind, beginnings in KINDS.items() if data.startswith(beginnings)), None)
    if kind is None:
        raise UnsupportedMedia("the item is no image of a kind that is read here", expected=EXPECTED)
    try:
        image = Image.open(io.BytesIO(data), formats=[kind.upper()])
        _check_pixels(_pixels(image), max_pixels)
        image.load()
        return _rgb(_upright(image))
    except (Unprocessable, PayloadTooLarge, MemoryError):
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise _too_many("too many", max_pixels) from None
    except UnidentifiedImageError:
        raise Unprocessable(f"the item begins as a {kind} file, and its header is broken", expected=EXPECTED) from None
    except Exception as error:  # a broken file makes Pillow raise anything
        message = f"the {kind} file is broken or cut off ({type(error).__name__})"
        raise Unprocessable(message, expected=EXPECTED) from None


@contextmanager
def guarded(max_pixels: int) -> Iterator[None]:
    """Pillow kept to ``max_pixels`` and silent; around the decoding of a batch, whatever threads do it.

    Its own limit is the process's: WebP allocates when a file is opened, so that ours alone would come too late. What
    it warns of lies in the clients' files and is answered to them; the operator's log is no place for it.
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


def _check_pixels(pixels: int, max_pixels: int) -> None:
    if pixels > max_pixels:
        raise _too_many(f"{pixels:,}", max_pixels)


def _too_many(pixels: str, max_pixels: int) -> PayloadTooLarge:
    return PayloadTooLarge(f"the image has {pixels} pixels, and at most {max_pixels:,} are taken")


def _upright(image: Image.Image) -> Image.Image:
    try:
        ImageOps.exif_transpose(image, in_place=True)
    except MemoryError:
        raise
    except Exception:  # noqa: S110  unreadable EXIF says nothing about the pixels
        pass
    return image


def _rgb(image: Image.Image) -> Image.Image:
    image.info.pop("transparency", None)  # dropped like alpha
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format == "PNG"):  # Pillow up to 10 has "I" there
        grey = np.asarray(image).astype(np.uint16) >> 8
        image = Image.fromarray(grey.astype(np.uint8))
    return image if image.mode == "RGB" else image.convert("RGB")
