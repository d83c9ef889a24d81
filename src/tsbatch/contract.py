"""What a subclass must keep to, checked when it loads: a clear line then, instead of a failing batch later."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tsbatch.errors import LoadError

if TYPE_CHECKING:
    from tsbatch.handler import BatchHandler

STAGE_ARGUMENTS = {"preprocess": ("items",), "inference": ("tensors",), "postprocess": ("outputs", "items")}
"""How the stages that TorchServe's BaseHandler has too are called here; its postprocess takes one argument less."""


def check_contract(handler: BatchHandler) -> None:
    """Refuse a handler whose batches could not be answered.

    Raises:
        LoadError: ``handle`` is overridden, or a stage cannot be called as the loop calls it.
    """
    from tsbatch.handler import BatchHandler

    name = type(handler).__name__
    if type(handler).handle is not BatchHandler.handle:
        raise LoadError(
            f"{name} overrides handle, which is the batch loop; override the stages "
            "(decode_item, preprocess, inference, postprocess, encode_response) instead"
        )
    for stage, arguments in STAGE_ARGUMENTS.items():
        if not _takes(getattr(handler, stage), len(arguments)):
            call = f"{stage}({', '.join(arguments)})"
            signature = f"def {stage}({', '.join(('self', *arguments))})"
            raise LoadError(f"{name}.{stage} cannot be called as {call}; write: {signature}")


def _takes(method: Callable[..., Any], count: int) -> bool:
    try:
        inspect.signature(method).bind(*range(count))
    except TypeError:
        return False
    return True
