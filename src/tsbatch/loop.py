"""The batch loop: from requests to replies.

:func:`process` makes every decision about a batch, in the order of its lines. It is independent of the server: it gets
requests and a sink, and the stages of the handler do the work. It never raises because of a handler or a client; each
request gets exactly one reply.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch

from tsbatch.batching.deduplication import group_identical
from tsbatch.batching.isolation import Budget, Outcome, isolate
from tsbatch.batching.memory_cap import is_out_of_memory, release_cached_memory
from tsbatch.batching.planning import Bounds, plan, plan_equal, plan_packed
from tsbatch.batching.rows import split, stack, to_cpu
from tsbatch.contract import Stages
from tsbatch.errors import STOPS, AnswerTooLarge, ContractBroken, OutOfMemory, ReplyError, RequestError, StageFailed
from tsbatch.protocol.encoding import encode_error
from tsbatch.protocol.reply import Reply, Sink
from tsbatch.protocol.request import Item, Request
from tsbatch.worker.telemetry import BatchRecord, server_timings

logger = logging.getLogger("tsbatch")

MAX_HEADERS = 32_768
"""Characters in the headers of one reply: clients reject more, and TorchServe kills the worker above some megabytes."""


@dataclass(slots=True, eq=False)
class ItemState:
    """The state of one distinct item during the stages."""

    item: Item
    features: Sequence[Any] = ()
    several: bool = False
    outputs: list[Any] = field(default_factory=list)
    result: Any = None
    error: ReplyError | None = None


def process(handler: Stages, requests: Sequence[Request], sink: Sink, record: BatchRecord) -> None:
    """Answer every request of the batch through the stages of the handler.

    Args:
        handler: a loaded handler.
        requests: the batch; ``index`` is the position of a request in the sink.
        sink: receives one reply per request.
        record: filled with the batch's timings and counts.
    """
    # decode: each request on its own, so that an unreadable request affects only its sender.
    answers = [_decode(handler, request) for request in requests]
    states, twins = _distinct(handler, [item for items in answers if isinstance(items, list) for item in items])
    record.items = len(twins)
    record.mark("decode")
    # From here on, stages see all good items at once. A stage that raises is called again with halves until only bad
    # items fail. Nothing is computed with gradients, except for explanations.
    budget = Budget(handler.settings.batching.isolation_seconds)
    with torch.inference_mode():
        _preprocess(handler, states, budget)
        record.mark("preprocess")
        _infer(handler, states, budget, record)
        _explain(handler, states, budget)
        record.mark("inference")
        _postprocess(handler, states, budget)
        record.mark("postprocess")
    # encode: again each request on its own; a request fails as a whole if one of its items failed.
    finished = iter(twins)
    replies = []
    for request, items in zip(requests, answers, strict=True):
        own = [states[next(finished)] for _ in items] if isinstance(items, list) else []
        replies.append(_reply(handler, request, items, own, record))
    record.mark("encode")
    if handler.settings.telemetry.server_timing:
        replies = [_timed(reply, timing) for reply, timing in zip(replies, server_timings(record), strict=True)]
    for request, reply in zip(requests, replies, strict=True):
        sink.send(request.index, reply)


def _timed(reply: Reply, timing: str) -> Reply:
    """Return a copy with the header, because a subclass may return one Reply for several requests."""
    headers = {**reply.headers, "Server-Timing": timing}
    return Reply(reply.body, reply.status, reply.phrase, reply.content_type, headers)


def _decode(handler: Stages, request: Request) -> list[Item] | ReplyError | None:
    """Return the items of the request, its error, or None if it asks for a description."""
    if request.kind == "describe":
        return None
    try:
        items: Any = handler.decode_request(request)  # a subclass may return anything
        if not (isinstance(items, list) and items and all(isinstance(item, Item) for item in items)):
            raise ContractBroken(
                f"decode_request returned {type(items).__name__}", expected="a list of at least one Item"
            )
        return items
    except STOPS:
        raise
    except BaseException as error:
        return _as_reply_error(handler, error, "decode", 1)


def _distinct(handler: Stages, items: Sequence[Item]) -> tuple[list[ItemState], list[int]]:
    if handler.deduplicates and len(items) > 1:
        distinct, twins = group_identical(items)
        return [ItemState(item) for item in distinct], twins
    return [ItemState(item) for item in items], list(range(len(items)))


def _preprocess(handler: Stages, states: Sequence[ItemState], budget: Budget) -> None:
    def call(part: Sequence[ItemState]) -> list[Any]:
        returned = handler.preprocess([state.item for state in part])
        return split(returned, len(part), stage="preprocess", what="features")

    todo = [state for state in states if state.item.request.kind == "predict"]
    for state, outcome in zip(todo, _isolated(handler, call, todo, "preprocess", budget), strict=True):
        state.error = outcome.error
        if outcome.error is None:
            state.several = isinstance(outcome.result, list)
            state.features = outcome.result if isinstance(outcome.result, list) else [outcome.result]
            state.outputs = [None] * len(state.features)


def _infer(handler: Stages, states: Sequence[ItemState], budget: Budget, record: BatchRecord) -> None:
    """Run the features in micro-batches; a failing one is halved until only bad features fail."""
    slots = [(state, position) for state in states if state.error is None for position in range(len(state.features))]
    record.features = len(slots)
    if not slots:
        return
    features = [state.features[position] for state, position in slots]
    lengths = _lengths(handler, features)
    memory, batching = handler.memory, handler.settings.batching
    caps = [cap for cap in (batching.max_tokens, memory.limit) if cap is not None]
    bounds = Bounds(batching.max_features, min(caps) if caps else None)
    groups = _micro_batches(handler, lengths, len(slots), bounds)
    record.micro_batches = len(groups)

    def call(part: Sequence[int]) -> list[Any]:
        cost = handler.choice.cost([lengths[index] for index in part]) if lengths else len(part)
        record.forward_passes += 1
        started = time.perf_counter()
        try:
            outputs = to_cpu(handler.inference(handler.collate([features[index] for index in part])))
            rows = split(outputs, len(part), stage="inference", what="outputs")
        except Exception as error:
            if is_out_of_memory(error):
                memory.failed()
                release_cached_memory()
            raise
        memory.fitted(cost)
        if lengths:
            handler.pass_cost.observe(cost, time.perf_counter() - started)
            record.length += sum(lengths[index] for index in part)
            record.padded_length += cost
        return rows

    for group in groups:
        memory.begin()
        outcomes = _isolated(handler, call, group, "inference", budget)
        alone = any(isinstance(outcome.error, OutOfMemory) for outcome in outcomes)
        if memory.settle(alone=alone):
            logger.warning("out of memory: micro-batches are limited to a cost of %d from now on", memory.limit)
        for index, outcome in zip(group, outcomes, strict=True):
            state, position = slots[index]
            state.outputs[position] = outcome.result
            state.error = state.error or outcome.error


def _micro_batches(handler: Stages, lengths: list[int] | None, count: int, bounds: Bounds) -> list[list[int]]:
    mode = handler.choice.mode
    if mode == "single" or (mode == "equal" and lengths is None):
        return [[index] for index in range(count)]
    if lengths and mode == "equal":
        return plan_equal(lengths, bounds=bounds)
    if lengths and mode == "packed":
        return plan_packed(lengths, bounds=bounds)
    return plan(lengths, count, bounds=bounds, bucketed=handler.buckets, cost=handler.pass_cost)


def _lengths(handler: Stages, features: Sequence[Any]) -> list[int] | None:
    """Return the lengths of the features; if ``lengths`` fails, planning continues without them."""
    try:
        lengths = handler.lengths(features)
        if lengths is None:
            return None
        measured = [int(length) for length in lengths]
        if len(measured) == len(features):
            return measured
        error: BaseException = ContractBroken(f"lengths returned {len(measured)} numbers for {len(features)} features")
    except STOPS:
        raise
    except BaseException as raised:
        error = raised
    _as_reply_error(handler, error, "lengths", len(features))
    return None


def _postprocess(handler: Stages, states: Sequence[ItemState], budget: Budget) -> None:
    todo = [state for state in states if state.error is None and state.item.request.kind == "predict"]
    several = any(state.several for state in todo)

    def call(part: Sequence[ItemState]) -> list[Any]:
        outputs: Any = [state.outputs if state.several else state.outputs[0] for state in part]
        if not several:
            with suppress(ContractBroken):  # rows of different shapes remain a list
                outputs = stack(outputs, stage="postprocess")
        returned = handler.postprocess(outputs, [state.item for state in part])
        return split(returned, len(part), stage="postprocess", what="results")

    for state, outcome in zip(todo, _isolated(handler, call, todo, "postprocess", budget), strict=True):
        state.error, state.result = outcome.error, outcome.result


def _explain(handler: Stages, states: Sequence[ItemState], budget: Budget) -> None:
    todo = [state for state in states if state.item.request.kind == "explain" and state.error is None]

    def call(part: Sequence[ItemState]) -> list[Any]:
        with torch.inference_mode(False), torch.enable_grad():
            returned = handler.explain_items([state.item for state in part])
        return split(returned, len(part), stage="explain", what="explanations")

    for state, outcome in zip(todo, _isolated(handler, call, todo, "explain", budget), strict=True):
        state.error, state.result = outcome.error, outcome.result


def _reply(handler: Stages, request: Request, decoded: Any, states: Sequence[ItemState], record: BatchRecord) -> Reply:
    error = decoded if isinstance(decoded, ReplyError) else next((state.error for state in states if state.error), None)
    if error is None:
        try:
            results = [handler.describe_handle()] if decoded is None else [state.result for state in states]
            return _checked(handler.encode_response(results, request), handler.settings.limits.response_bytes)
        except STOPS:
            raise
        except BaseException as raised:
            error = _as_reply_error(handler, raised, "encode", 1)
    record.failures[str(error.code)] += 1
    return encode_error(error, request, handler.identity)


def _checked(reply: Any, limit: int) -> Reply:
    if not isinstance(reply, Reply) or not isinstance(reply.body, bytes):
        raise ContractBroken(
            f"encode_response returned {type(reply).__name__}", expected="a Reply whose body is bytes", stage="encode"
        )
    headers: Any = reply.headers
    if type(reply.status) is not int or not 200 <= reply.status <= 599:
        raise ContractBroken("encode_response returned a Reply without a status", expected="a number, 200 to 599")
    if not isinstance(headers, dict) or (headers and not all(isinstance(value, str) for value in headers.values())):
        raise ContractBroken("encode_response returned a Reply with wrong headers", expected="a dict of str to str")
    if not isinstance(reply.content_type, str):
        raise ContractBroken("encode_response returned a Reply with a wrong content type", expected="a str")
    size = len(reply.content_type)
    for name, value in headers.items():
        size += len(str(name)) + len(value)
    if size > MAX_HEADERS:
        raise AnswerTooLarge(
            f"the answer's headers have {size:,} characters, over the limit of {MAX_HEADERS:,}",
            expected="short headers; put long values into the body",
        )
    if len(reply.body) > limit:
        raise AnswerTooLarge(
            f"the answer has {len(reply.body):,} bytes, over the server's limit of {limit:,}",
            expected="fewer items in a request, or a larger max_response_size in config.properties "
            "together with tsbatch.limits.response_bytes in model-config.yaml",
        )
    return reply


def _isolated(
    handler: Stages,
    call: Callable[[Sequence[Any]], list[Any]],
    entries: Sequence[Any],
    stage: str,
    budget: Budget,
) -> list[Outcome[Any]]:
    def explain(error: BaseException) -> ReplyError:
        return _as_reply_error(handler, error, stage, len(entries))

    outcomes = isolate(call, entries, explain=explain, budget=budget)
    for outcome in outcomes:  # a stage that knows the bad item returns the error in its position, without a search
        if isinstance(outcome.result, ReplyError):
            outcome.error, outcome.result = explain(outcome.result), None
    return outcomes


def _as_reply_error(handler: Stages, error: BaseException, stage: str, among: int) -> ReplyError:
    """Convert an exception to the error of an entry; server faults are logged too, without payloads."""
    if isinstance(error, ReplyError):
        reply_error = error
    elif is_out_of_memory(error):
        reply_error = OutOfMemory(f"{stage} ran out of memory", expected="a smaller input")
    else:
        reply_error = StageFailed(f"{stage} raised {type(error).__name__}: {_text(error)}")
    reply_error.stage = reply_error.stage or stage
    if not isinstance(reply_error, RequestError):
        text = f": {_text(error)}" if handler.settings.log_messages else ""
        logger.error("%s failed for one of %d: %s at %s%s", stage, among, type(error).__name__, _location(error), text)
    return reply_error


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # __str__ of an exception may raise
        return "(no text)"


def _location(error: BaseException) -> str:
    """Return file and line of the innermost frame, never its values."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}" if trace else "an unknown place"
