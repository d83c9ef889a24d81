"""Decode bytes with a content type into text, JSON or bytes; every failure is a 4xx that says what to send.

TorchServe 0.12 has already parsed ``application/json`` and decoded ``text/*`` as UTF-8 if possible
(ts/protocol/otf_message_handler.py); anything it could not read arrives here as bytes with the same content type.
"""

from __future__ import annotations

import base64
import binascii
import codecs
import json
import re
from typing import Any

from tsbatch.errors import BadRequest, UnsupportedMedia

SEND_TEXT = "plain text with -H 'Content-Type: text/plain', or valid JSON with -H 'Content-Type: application/json'"
UNDECLARED = frozenset({"", "application/octet-stream", "application/x-www-form-urlencoded", "multipart/form-data"})
"""Content types that do not describe the bytes."""

_CHARSET = re.compile(r"""charset\s*=\s*["']?([^"';\s]+)""", re.IGNORECASE)
_DATA_URL = re.compile(r"data:[^,]{0,200},")
_UTF8 = frozenset({"utf-8", "utf8", "us-ascii", "ascii"})
_NO_CHARSETS = frozenset({"idna", "punycode", "raw-unicode-escape", "undefined", "unicode-escape"})
"""Python codecs in which nobody sends text; punycode takes minutes for a few megabytes."""


def media_type(header: str) -> tuple[str, str]:
    """Return the bare content type and the charset of a Content-Type header, in lower case; "" if not given."""
    kind, _, rest = header.partition(";")
    found = _CHARSET.search(rest) if rest else None
    return kind.strip().lower(), found.group(1).lower() if found else ""


def is_json(kind: str) -> bool:
    """Whether a bare content type is JSON (RFC 8259, and the +json suffix of RFC 6839)."""
    return kind in ("application/json", "text/json") or kind.endswith("+json")


def decode_text(raw: bytes | bytearray | str, charset: str, where: str) -> str:
    """Decode ``raw`` to text.

    Args:
        raw: the bytes; a ``str`` was decoded as UTF-8 by TorchServe and is decoded again if that was wrong.
        charset: the declared charset, lower case; "" for UTF-8.
        where: a description of the bytes, for messages.

    Raises:
        BadRequest: the bytes are not text in this charset.
        UnsupportedMedia: the charset is unknown.
    """
    utf8 = not charset or charset in _UTF8
    if isinstance(raw, str):
        if utf8:
            return raw
        raw = raw.encode("utf-8", "surrogatepass")
    try:
        if not utf8 and codecs.lookup(charset).name.replace("_", "-") in _NO_CHARSETS:
            raise LookupError
        return raw.decode("utf-8-sig" if utf8 else charset)
    except (LookupError, ValueError, TypeError) as error:
        if isinstance(error, UnicodeDecodeError):
            message = f"{where} is not {charset or 'UTF-8'} text: byte {error.start} cannot be decoded"
            raise BadRequest(message, expected="text in UTF-8, or the right charset in the content type") from None
        message = f"{where} has the charset {charset[:40]!r}, which is not supported"
        raise UnsupportedMedia(message, expected="text in UTF-8") from None


def parse_json(raw: bytes | bytearray | str, where: str, charset: str = "") -> Any:
    """Parse ``raw`` as JSON, as leniently as TorchServe (NaN and Infinity are numbers).

    Raises:
        BadRequest: not valid JSON; the message gives line and column.
    """
    text = decode_text(raw, charset, where) if isinstance(raw, (bytes, bytearray)) else raw
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        problem = f"{error.msg} at line {error.lineno}, column {error.colno}"
    except RecursionError:
        problem = "it is nested too deeply"
    except ValueError:  # an integer of thousands of digits (sys.set_int_max_str_digits)
        problem = "a number in it is too long"
    raise BadRequest(f"{where} is not valid JSON: {problem}", expected=SEND_TEXT)


def read_undeclared(raw: bytes | bytearray, where: str, *, text_allowed: bool) -> Any:
    """Read bytes without a content type: as JSON if they are JSON, as text otherwise.

    Args:
        raw: the bytes, not empty.
        where: a description of the bytes, for messages.
        text_allowed: False if text is not accepted, so that anything other than JSON is an error.

    Returns:
        The parsed JSON, or a ``str``.

    Raises:
        BadRequest: neither JSON nor text, or a broken JSON object.
    """
    first = raw.lstrip(b" \t\r\n\xef\xbb\xbf")[:1]
    if not text_allowed or first == b"{":
        return parse_json(raw, where)
    if first in (b"[", b'"'):
        try:
            return parse_json(raw, where)
        except BadRequest:
            pass  # a text may start with a bracket or a quotation mark
    return decode_text(raw, "", where)


def decode_base64(text: str, where: str) -> bytes:
    """Decode base64, standard or URL-safe, with or without padding, or a ``data:`` URL.

    Raises:
        BadRequest: it is none of these.
    """
    prefix = _DATA_URL.match(text)
    if prefix:
        text = text[prefix.end() :]
    text = "".join(text.split()).replace("-", "+").replace("_", "/")
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError) as error:
        message = f"{where} is not base64: {error}"
        raise BadRequest(message, expected="base64, or a data: URL with base64") from None
