"""Serve an archive on Ray Serve: each replica loads it and answers through the handler's own loop.

::

    HTTP ─ Ray's proxy ─ replica: routes → http_requests → Ray's batching → batches ─ handler.run_batch ─ reply

``tsbatch ray deploy`` deploys from the command line; :func:`deployment` is for applications written in Python.
Requires the extra ``tsbatch[ray]``. docs/ray.md has the mapping of the settings.
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tsbatch.ray.application import deployment

__all__ = ["deployment"]


def __getattr__(name: str) -> Any:
    if name == "deployment":
        if importlib.util.find_spec("ray") is None:
            raise ImportError('tsbatch.ray needs Ray Serve, which is not installed: pip install "tsbatch[ray]"')
        from tsbatch.ray.application import deployment

        return deployment
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
