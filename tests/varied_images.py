"""Varied images for the image tasks: every kind of file, many sizes, each with colours of its own."""

from __future__ import annotations

import base64
import io
import warnings

import numpy as np
from PIL import Image

SIZES = [(32, 32), (48, 64), (64, 48), (30, 90), (90, 30), (150, 200), (224, 224), (9, 7), (121, 120), (65, 33)]
"""Height and width."""


def picture(seed, height=48, width=64):
    """A smooth RGB image of random colours."""
    colors = np.random.default_rng(seed).integers(0, 256, (3, 4, 3), dtype=np.uint8)
    return Image.fromarray(colors).resize((width, height), Image.Resampling.BICUBIC)


def encoded(image, kind, **options):
    """The image as a file."""
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def rotated(image, orientation, kind="JPEG"):
    """A file whose EXIF says that it lies on its side."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    return encoded(image, kind, exif=exif)


def with_alpha(image):
    """The image, more and more transparent to the right."""
    alpha = np.broadcast_to(np.linspace(0, 255, image.width).astype(np.uint8), (image.height, image.width))
    return Image.merge("RGBA", [*image.split(), Image.fromarray(np.ascontiguousarray(alpha))])


def animated(image):
    """A GIF of three frames, the first of which is the image."""
    others = [Image.new("RGB", image.size, color) for color in ("red", "blue")]
    return encoded(image.quantize(64), "GIF", save_all=True, append_images=others, duration=100)


WAYS = {
    "png": lambda image: encoded(image, "PNG"),
    "jpeg": lambda image: encoded(image, "JPEG", quality=92),
    "jpeg, coarse": lambda image: encoded(image, "JPEG", quality=20),
    "jpeg, progressive": lambda image: encoded(image, "JPEG", progressive=True),
    "webp": lambda image: encoded(image, "WEBP"),
    "webp, lossless": lambda image: encoded(image, "WEBP", lossless=True),
    "webp, alpha": lambda image: encoded(with_alpha(image), "WEBP"),
    "gif": lambda image: encoded(image.quantize(64), "GIF"),
    "gif, animated": animated,
    "bmp": lambda image: encoded(image, "BMP"),
    "tiff": lambda image: encoded(image, "TIFF"),
    "tiff, lzw": lambda image: encoded(image, "TIFF", compression="tiff_lzw"),
    "tiff, cmyk": lambda image: encoded(image.convert("CMYK"), "TIFF"),
    "jpeg, cmyk": lambda image: encoded(image.convert("CMYK"), "JPEG"),
    "png, grey": lambda image: encoded(image.convert("L"), "PNG"),
    "jpeg, grey": lambda image: encoded(image.convert("L"), "JPEG"),
    "png, 1 bit": lambda image: encoded(image.convert("1"), "PNG"),
    "png, palette": lambda image: encoded(image.quantize(32), "PNG"),
    "png, transparent palette": lambda image: encoded(image.quantize(32), "PNG", transparency=bytes(range(0, 256, 8))),
    "png, alpha": lambda image: encoded(with_alpha(image), "PNG"),
    "png, grey and alpha": lambda image: encoded(with_alpha(image).convert("LA"), "PNG"),
    "png, one transparent colour": lambda image: encoded(image, "PNG", transparency=image.getpixel((0, 0))),
    **{f"jpeg, rotated {way}": (lambda image, way=way: rotated(image, way)) for way in range(1, 9)},
    "png, rotated": lambda image: rotated(image, 6, "PNG"),
    "webp, rotated": lambda image: rotated(image, 8, "WEBP"),
    "tiff, rotated": lambda image: encoded(image, "TIFF", tiffinfo={0x0112: 6}),
}
"""How an image becomes a file."""

IMAGES = {
    f"{way}, {height} × {width}": make(picture(seed, height, width))
    for seed, (way, make, (height, width)) in enumerate(
        [(way, make, SIZES[place % len(SIZES)]) for place, (way, make) in enumerate(WAYS.items())]
        + [("png", WAYS["png"], size) for size in SIZES[1:]]
    )
}
"""42 files by name; none is like another."""
FILES = list(IMAGES.values())


def base64_of(data):
    return base64.b64encode(data).decode()


def opened(data):
    """As transformers' pipelines open a file."""
    from transformers.image_utils import load_image

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow says what it thinks of transparent palettes
        return load_image(Image.open(io.BytesIO(data)))
