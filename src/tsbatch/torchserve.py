"""The adapter: TorchServe's rows and context to requests, replies to TorchServe's context.

The only file of the core that knows ``ts``; without it, a small stand-in is the base class. What TorchServe
does with an answer, and what it dies of, decides most lines here: ts/service.py, ts/context.py and
ts/protocol/otf_message_handler.py of version 0.12.0.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tsbatch.answer import encode_error
from tsbatch.context import ModelContext
from tsbatch.errors import STOPS, LoadError, StageFailed
from tsbatch.request import Headers, Kind, Request
from tsbatch.response import JSON, Reply
from tsbatch.telemetry import COUNTERS, REQUEST_START, BatchRecord, emit, parse_request_start

if TYPE_CHECKING:
    from tsbatch.handler import BatchHandler

logger = logging.getLogger("tsbatch")


_NOT_IN_A_NAME = re.compile(r"[^0-9A-Za-z!#$%&'*+.^_`|~-]")
"""What a header's name cannot hold (RFC 9110, 5.6.2): Netty refuses it and the worker dies."""
_SERVERS_OWN = frozenset({"content-type", "content-length", "transfer-encoding", "connection", "ts_stream_next"})
"""Headers that frame the answer: TorchServe sets them, and a handler's would break the answer or replace its type."""


class StandInBase:
    """What BatchHandler needs of TorchServe's BaseHandler, for scripts and engines without TorchServe."""

    def __init__(self) -> None:
        self.model: Any = None
        self.device: Any = None
        self.initialized = False
        self.context: Any = None
        self.manifest: Any = None


if TYPE_CHECKING:
    BaseHandler = StandInBase
else:
    try:
        from ts.torch_handler.base_handler import BaseHandler
    except ImportError:
        BaseHandler = StandInBase


def model_context(context: Any) -> ModelContext:
    """TorchServe's context at load time, as the core wants it.

    Raises:
        LoadError: model-config.yaml does not hold a mapping.
    """
    properties = context.system_properties
    config = getattr(context, "model_yaml_config", None) or {}
    if not isinstance(config, Mapping):
        raise LoadError(f"model-config.yaml: expected keys and values, got {type(config).__name__}")
    section = (context.manifest or {}).get("model", {})
    return ModelContext(
        model_dir=Path(properties["model_dir"]),
        model_name=context.model_name,
        model_version=str(section.get("modelVersion", "1.0")),
        batch_size=properties.get("batch_size") or 1,
        gpu_id=properties.get("gpu_id"),
        config=config,
        manifest=section,
    )


def requests_from(rows: Sequence[Mapping[str, Any]], context: Any) -> list[Request]:
    """TorchServe's rows as requests.

    Headers and the content types of the fields share one mapping there (``Service.retrieve_data_for_inference``):
    the content types are the entries that are mappings themselves.
    """
    now = time.time()
    requests = []
    for index, fields in enumerate(rows):
        properties = context.get_all_request_header(index)
        headers = Headers({name: value for name, value in properties.items() if isinstance(value, str)})
        types = {name: value.get("content-type", "") for name, value in properties.items() if isinstance(value, dict)}
        requests.append(
            Request(
                fields=fields,
                headers=headers,
                content_types=types,
                index=index,
                id=context.get_request_id(index) or "",
                arrival=parse_request_start(headers.get(REQUEST_START), now),
                kind=_kind(headers),
            )
        )
    return requests


def _kind(headers: Headers) -> Kind:
    # Both are request headers that the frontend adds, and any client may send them: each request for itself.
    if headers.get("describe") == "True":
        return "describe"
    return "explain" if headers.get("explain") == "True" else "predict"


class ContextSink:
    """Writes replies into TorchServe's context, so that nothing it does with them can fail."""

    def __init__(self, context: Any, count: int) -> None:
        self._context = context
        self.bodies: list[bytes] = [b""] * count
        self.missing = set(range(count))

    def send(self, index: int, reply: Reply) -> None:
        """Take the reply of request ``index``: status, fixed ASCII phrase, ASCII headers, bytes."""
        self.bodies[index] = reply.body
        self.missing.discard(index)
        if reply.status != 200:
            self._context.set_response_status(reply.status, _phrase(reply.status), index)
        self._context.set_response_content_type(index, _ascii(reply.content_type) or JSON)
        for name, value in reply.headers.items():
            key = _NOT_IN_A_NAME.sub("-", str(name))
            if key and key.lower() not in _SERVERS_OWN:
                self._context.set_response_header(index, key, _ascii(value))


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Unknown"


def _ascii(value: Any) -> str:
    """Text that may stand in a header: printable ASCII, no line breaks (Netty refuses them and the worker dies)."""
    text = str(value)
    if text.isascii() and text.isprintable():
        return text
    return "".join(character if " " <= character <= "~" else "?" for character in text)


def serve_batch(handler: BatchHandler, rows: Any, context: Any) -> list[bytes]:
    """``handle``: answers for all rows, whatever happens.

    TorchServe turns an exception, another type or another length into a 503 for the whole batch, and some answers
    into the death of the worker; so this returns a list of bytes, always.
    """
    rows = rows if isinstance(rows, list) else []
    sink = ContextSink(context, len(rows))
    requests = [Request(fields={}) for _ in rows]
    with handler.on_duty(getattr(context, "cl_socket", None)):
        try:
            requests = requests_from(rows, context)
            _end_streams(requests, context)
            record = handler.run_batch(requests, sink)
            _emit(handler, record, context)
        except STOPS:
            raise
        except BaseException as error:
            logger.exception("the batch loop failed; this is a defect of tsbatch")
            failure = StageFailed(f"the batch loop raised {type(error).__name__}")
            for index in sorted(sink.missing):
                sink.send(index, encode_error(failure, requests[index], handler.identity))
    handler.free_since = time.time()
    return sink.bodies


def _end_streams(requests: Sequence[Request], context: Any) -> None:
    """Say of each gRPC call that its first answer is its last.

    StreamPredictions reaches a worker like Predictions; without this header its answer is a null pointer in the
    frontend, which ends the worker (GRPCJob.java). Only gRPC calls have no headers of their own.
    """
    for request in requests:
        if not request.headers:
            context.set_response_header(request.index, "ts_stream_next", "false")


def _emit(handler: BatchHandler, record: BatchRecord, context: Any) -> None:
    try:
        emit(record, TorchServeMetrics(context.metrics), everything=handler.settings.telemetry.metrics)
    except Exception:  # figures are never worth an answer
        logger.exception("the metrics of a batch could not be emitted")


class TorchServeMetrics:
    """A metric sink over TorchServe's metric cache.

    A fresh list of dimensions for every call: the cache appends to the list it is given, its own default
    argument included (ts/metrics/metric_cache_abstract.py), so one model's name would stick to all.
    """

    def __init__(self, cache: Any) -> None:
        self._cache = cache
        self.knows_ours = any(name in metrics for metrics in getattr(cache, "cache", {}).values() for name in COUNTERS)

    def count(self, name: str, value: float, dimensions: Mapping[str, str]) -> None:
        """Add ``value`` to the counter ``name``, under the batch's first request id."""
        self._cache.add_counter(name, value, idx=0, dimensions=_dimensions(dimensions))

    def gauge(self, name: str, value: float, unit: str) -> None:
        """Set the gauge ``name``; a time carries all request ids, as BaseHandler.handle emits it."""
        if unit == "ms":
            self._cache.add_time(name, value, None, unit, dimensions=[])
        else:
            self._cache.add_percent(name, value, idx=0, dimensions=[])


def _dimensions(values: Mapping[str, str]) -> list[Any]:
    if not values:
        return []
    from ts.metrics.dimension import Dimension

    return [Dimension(name, value) for name, value in values.items()]
