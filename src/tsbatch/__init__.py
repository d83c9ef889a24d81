"""tsbatch: batch-aware handlers for TorchServe, and the tools to package, check, serve, measure and tune them.

The names below are the public ones. They are imported when first used, so that ``import tsbatch`` and the
command line stay fast (torch alone takes seconds).
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

from tsbatch._version import __version__

if TYPE_CHECKING:
    from tsbatch.emulation.runner import HandlerRunner
    from tsbatch.errors import (
        BadRequest,
        HandlerError,
        LoadError,
        NotSupported,
        PayloadTooLarge,
        RequestError,
        SettingsError,
        TsbatchError,
        Unprocessable,
        UnsupportedMedia,
    )
    from tsbatch.handler import BatchHandler
    from tsbatch.protocol.reply import Reply
    from tsbatch.protocol.request import Headers, Item, Request
    from tsbatch.worker.context import ModelContext

__all__ = [
    "BadRequest",
    "BatchHandler",
    "HandlerError",
    "HandlerRunner",
    "Headers",
    "Item",
    "LoadError",
    "ModelContext",
    "NotSupported",
    "PayloadTooLarge",
    "Reply",
    "Request",
    "RequestError",
    "SettingsError",
    "TsbatchError",
    "Unprocessable",
    "UnsupportedMedia",
    "__version__",
]

_HOMES = {
    "BatchHandler": "handler",
    "HandlerRunner": "emulation.runner",
    "Headers": "protocol.request",
    "Item": "protocol.request",
    "ModelContext": "worker.context",
    "Reply": "protocol.reply",
    "Request": "protocol.request",
}

if importlib.util.find_spec("tsbatch._bundled_for") is not None:
    from tsbatch._bundled import check

    check()


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES.get(name, 'errors')}"), name)


def __dir__() -> list[str]:
    return __all__
