"""curl lines to copy, which go on working when the tokens are renewed."""

from __future__ import annotations

import json
import shlex
from typing import Any

from tsbatch.serving.instance import Instance
from tsbatch.serving.tokens import TokenType


def curl_line(instance: Instance, path: str, *, data: Any = None, kind: TokenType = "inference") -> str:
    """A curl call of the server; its token is read from a file when it runs.

    Args:
        instance: the server.
        path: as ``/predictions/embed``.
        data: what to send, as JSON; a GET when left out.
        kind: which address, and so which token.
    """
    words = ["curl"]
    if instance.token_lifetime:
        words += ["-H", f"@{instance.keys.header_file(kind)}"]
    if data is not None:
        words += ["-H", "Content-Type: application/json", "-d", json.dumps(data, ensure_ascii=False)]
    address = instance.inference_address if kind == "inference" else instance.management_address
    return shlex.join([*words, address + path])
