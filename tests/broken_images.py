"""Broken and hostile images, made here; what each may be answered with."""

from __future__ import annotations

import struct
import zlib

from PIL import Image

from tests.varied_images import encoded, picture

KINDS = {
    "PNG": {},
    "JPEG": {},
    "WEBP": {},
    "GIF": {},
    "BMP": {},
    "TIFF": {},
    "TIFF, deflate": {"compression": "tiff_adobe_deflate"},
}
REFUSED = {415, 413, 422, 400}
READ_OR_REFUSED = {200, *REFUSED}


def chunk(name, data):
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def png_bomb(side=30_000):
    """A few kilobytes that are a black image of ``side`` squared."""
    row = zlib.compressobj(9)
    line = b"\0" + b"\0" * (side // 8 + 1)
    packed = b"".join([*(row.compress(line) for _ in range(side // 10)), row.flush()])
    header = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", packed) + chunk(b"IEND", b"")


def png_text_bomb():
    """A small image with a compressed comment of 200 MB."""
    whole = encoded(picture(0), "PNG")
    comment = zlib.compress(b"\0" * 200_000_000, 9)
    return whole[:33] + chunk(b"zTXt", b"comment\0\0" + comment) + whole[33:]


def gif_header(width, height):
    return b"GIF89a" + struct.pack("<HHBBB", width, height, 0, 0, 0)


def gif_with_a_larger_frame():
    """A screen of 1 × 1 with a frame of 65535 × 65535."""
    frame = b"\x2c" + struct.pack("<HHHHB", 0, 0, 65535, 65535, 0x80) + b"\0" * 6 + b"\x02\x02\x44\x01\x00"
    return gif_header(1, 1) + frame + b";"


def bmp_of(width, height):
    """A header that promises pixels which never come."""
    info = struct.pack("<IiiHHIIiiII", 40, width, height, 1, 24, 0, 0, 0, 0, 0, 0)
    return b"BM" + struct.pack("<IHHI", 54, 0, 0, 54) + info


def webp_of(width, height):
    """An extended WebP whose canvas is that large, without a picture."""
    sizes = struct.pack("<I", width - 1)[:3] + struct.pack("<I", height - 1)[:3]
    body = b"WEBPVP8X" + struct.pack("<I", 10) + b"\0\0\0\0" + sizes
    return b"RIFF" + struct.pack("<I", len(body)) + body


def tiff_with_a_huge_tile():
    """An image of 8 × 8 in one tile of 60,000 × 60,000."""
    entries = [
        (256, 8), (257, 8), (258, 8), (259, 8), (262, 1), (277, 1),
        (322, 60_000), (323, 60_000), (324, 8), (325, 60),
    ]  # fmt: skip
    table = struct.pack("<H", len(entries)) + b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in entries)
    return b"II*\0" + struct.pack("<I", 68) + zlib.compress(b"\0" * 10_000).ljust(60, b"\0") + table + b"\0" * 4


def catalogue():
    """By name: the file, and the statuses that are right for it."""
    found = {
        "zero bytes": (b"", {400, 422}),
        "text": (b"this is no image", {415}),
        "html": (b"<!doctype html><html></html>", {415}),
        "svg": (b"<svg xmlns='http://www.w3.org/2000/svg'/>", {415}),
        "pdf": (b"%PDF-1.7\n" + b"x" * 500, {415}),
        "zip": (b"PK\x03\x04" + b"\0" * 500, {415}),
        "zeros": (bytes(5000), {415}),
        "png bomb": (png_bomb(), {413}),
        "png with a comment of 200 MB": (png_text_bomb(), {422}),
        "gif with a larger frame": (gif_with_a_larger_frame(), {413, 422}),
        "gif of 65535 × 65535": (gif_header(65535, 65535) + b";", {413, 422}),
        "bmp of 40000 × 40000": (bmp_of(40_000, 40_000), {413}),
        "bmp without pixels": (bmp_of(40, 40), {422}),
        "bmp of -2³¹ × 2³¹": (bmp_of(-(2**31), 2**31 - 1), REFUSED),
        "webp of 16 million squared": (webp_of(2**24, 2**24), {413, 422}),
        "webp of 16000 × 16000": (webp_of(16_000, 16_000), {413, 422}),
        "tiff with a huge tile": (tiff_with_a_huge_tile(), {413, 422}),
        "1 × 1": (encoded(picture(0, 1, 1), "PNG"), {200}),
        "1 × 20000": (encoded(Image.new("RGB", (20_000, 1), "red"), "PNG"), READ_OR_REFUSED),
        "20000 × 1": (encoded(Image.new("RGB", (1, 20_000), "red"), "JPEG"), READ_OR_REFUSED),
    }
    for name, options in KINDS.items():
        whole = encoded(picture(1, 40, 60), name.partition(",")[0], **options)
        for tenth in range(1, 10):
            # A tail that is not needed may be missing: TIFF's directory comes last, a JPEG's end mark is two bytes.
            found[f"{name}, {tenth} tenths"] = (whole[: len(whole) * tenth // 10], REFUSED)
        found[f"{name}, called PNG"] = (whole, {200})
        found[f"{name}, noise from the middle"] = (
            whole[: len(whole) // 2] + b"\xaa" * (len(whole) // 2),
            READ_OR_REFUSED,
        )
        found[f"{name}, only its first bytes"] = (whole[:12], REFUSED)
    return found
