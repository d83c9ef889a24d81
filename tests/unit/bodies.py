"""Requests as a running TorchServe 0.12.0 hands them over, for the tests of reading."""

from __future__ import annotations

from tsbatch.protocol.payload import read_payload
from tsbatch.protocol.request import Headers, Request

JSON = "application/json"
FORM = "application/x-www-form-urlencoded"


def raw(body, content_type="", **headers):
    """A raw body, its content type as TorchServe gives it: without parameters on the field, whole in the headers."""
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return Request(
        fields={"body": body},
        headers=Headers({"Content-Type": content_type, **names}),
        content_types={"body": content_type.partition(";")[0]},
    )


def form(content_type=FORM, **fields):
    return Request(fields=fields, headers=Headers({"Content-Type": content_type}))


def texts(request, **options):
    return read_payload(request, wants="text", item_ndim=0, **options)
