"""curl commands to copy, which keep working when tokens are renewed."""

from __future__ import annotations

import json
import shlex
from typing import Any

from tsbatch.serving.instance import Instance
from tsbatch.serving.tokens import TokenType


def curl_line(instance: Instance, path: str, *, data: Any = None, kind: TokenType = "inference") -> str:
    """Write a curl command that reads its token from a file when it is run.

    Args:
        instance: the server.
        path: as ``/predictions/embed``.
        data: JSON data to send; a GET request if None.
        kind: the address, and so the token.
    """
    words = ["curl"]
    if instance.token_lifetime:
        words += ["-H", f"@{instance.keys.header_file(kind)}"]
    if data is not None:
        words += ["-H", "Content-Type: application/json", "-d", json.dumps(data, ensure_ascii=False)]
    address = instance.inference_address if kind == "inference" else instance.management_address
    return shlex.join([*words, address + path])
