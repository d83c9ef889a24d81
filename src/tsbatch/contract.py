"""What the loop needs from a handler, and the check that a subclass provides it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from tsbatch.batching.cost import PassCost
from tsbatch.batching.memory_cap import MemoryCap
from tsbatch.batching.strategy import Choice
from tsbatch.errors import LoadError
from tsbatch.protocol.encoding import ModelIdentity
from tsbatch.protocol.reply import Reply
from tsbatch.protocol.request import Item, Request
from tsbatch.settings import Settings

STAGE_ARGUMENTS = {"preprocess": ("items",), "inference": ("tensors",), "postprocess": ("outputs", "items")}
"""The arguments of the stages that TorchServe's BaseHandler has too; its postprocess takes one argument less."""


class Stages(Protocol):
    """The part of a loaded handler that the loop and the warm-up use; ``BatchHandler`` documents each member."""

    settings: Settings
    identity: ModelIdentity
    choice: Choice
    memory: MemoryCap
    pass_cost: PassCost
    batch_size: int

    @property
    def deduplicates(self) -> bool: ...  # noqa: D102 - documented on BatchHandler, as are all members below
    @property
    def buckets(self) -> bool: ...  # noqa: D102
    def examples(self) -> Sequence[Any]: ...  # noqa: D102
    def answer(self, requests: Sequence[Request]) -> list[Reply]: ...  # noqa: D102
    def decode_request(self, request: Request) -> list[Item]: ...  # noqa: D102
    def preprocess(self, items: Sequence[Item]) -> Any: ...  # noqa: D102
    def lengths(self, features: Sequence[Any]) -> Sequence[int] | None: ...  # noqa: D102
    def collate(self, features: Sequence[Any]) -> Any: ...  # noqa: D102
    def inference(self, tensors: Any) -> Any: ...  # noqa: D102
    def postprocess(self, outputs: Any, items: Sequence[Item]) -> Any: ...  # noqa: D102
    def explain_items(self, items: Sequence[Item]) -> Sequence[Any]: ...  # noqa: D102
    def encode_response(self, results: Sequence[Any], request: Request) -> Reply: ...  # noqa: D102
    def describe_handle(self) -> dict[str, Any]: ...  # noqa: D102


def check_contract(handler: Any, base: type) -> None:
    """Refuse a handler whose batches could not be answered.

    Args:
        handler: a handler that is about to load.
        base: the class whose ``handle`` is the batch loop.

    Raises:
        LoadError: ``handle`` is overridden, or a stage cannot be called as the loop calls it.
    """
    name = type(handler).__name__
    if type(handler).handle is not base.handle:  # type: ignore[attr-defined]  # BatchHandler, which imports this module
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
