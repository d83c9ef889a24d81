"""The adapter between TorchServe and the batch loop: rows and context to requests, replies to the context.

The only module of the core that imports ``ts``; without it, a small stand-in is the base class. Most lines here follow
from what TorchServe does with a response and what kills its worker: ts/service.py, ts/context.py and
ts/protocol/otf_message_handler.py of version 0.12.0.
"""

from __future__ import annotations

import gc
import logging
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from tsbatch.errors import STOPS, LoadError, StageFailed
from tsbatch.protocol.encoding import ModelIdentity, encode_error
from tsbatch.protocol.reply import Reply, sendable_headers, sendable_type
from tsbatch.protocol.request import Headers, Kind, Request
from tsbatch.settings import Settings
from tsbatch.worker.context import ModelContext
from tsbatch.worker.telemetry import COUNTERS, REQUEST_START, BatchRecord, emit, parse_request_start

logger = logging.getLogger("tsbatch")
metric_logger = logging.getLogger("ts.metrics.caching_metric")

OBJECTS = 50_000
"""Threshold of new objects for Python's cyclic garbage collection during a batch.

With the default of 700, Python would scan the objects of a batch several times, although all are released at its end.
"""
READ_AHEAD = 65_536
"""Bytes that are read from the socket at once."""
UNITS = {"ms": "Milliseconds", "percent": "Percent"}
"""Names of units as ts/metrics/unit.py writes them."""


class Servable(Protocol):
    """The part of a loaded handler that this adapter uses; ``BatchHandler`` documents each member."""

    settings: Settings
    identity: ModelIdentity
    free_since: float | None

    def on_duty(self, connection: Any) -> AbstractContextManager[None]: ...  # noqa: D102
    def run_batch(self, requests: Sequence[Request], sink: Any) -> BatchRecord: ...  # noqa: D102


class StandInBase:
    """The part of TorchServe's BaseHandler that BatchHandler needs, for environments without TorchServe."""

    def __init__(self) -> None:
        self.model: Any = None
        self.device: Any = None
        self.initialized = False
        self.context: Any = None
        self.manifest: Any = None


_COMPILERS = ("openvino.torch", "torch_tensorrt")
"""Modules that ts.torch_handler.base_handler imports if available, for a ``torch.compile`` in its own initialize.

They cost each worker seconds and more than 100 MB; torch finds these backends by itself when they are requested.
"""


@contextmanager
def _unavailable(modules: Sequence[str]) -> Iterator[None]:
    """Make the import of these modules raise ImportError, except for those that are already imported."""
    blocked = [name for name in modules if name not in sys.modules]
    sys.modules.update(dict.fromkeys(blocked))  # type: ignore[arg-type]  # None is how Python marks them
    try:
        yield
    finally:
        for name in blocked:
            del sys.modules[name]


if TYPE_CHECKING:
    BaseHandler = StandInBase
else:
    try:
        with _unavailable(_COMPILERS):
            from ts.torch_handler.base_handler import BaseHandler
    except ImportError:
        BaseHandler = StandInBase


def model_context(context: Any) -> ModelContext:
    """Convert TorchServe's context at load time to a ModelContext.

    Raises:
        LoadError: model-config.yaml is not a mapping.
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


def read_ahead() -> None:
    """Let this worker read its socket in large chunks.

    TorchServe reads every number and every text of a message separately (ts/protocol/otf_message_handler.py), about 26
    system calls per request, which takes longer than many small models. Versions other than 0.12 are not changed.
    """
    import ts
    from ts.protocol import otf_message_handler as messages

    original = messages._retrieve_buffer  # noqa: SLF001 - all reads go through this function
    if ts.__version__.startswith("0.12.") and not hasattr(original, "reads_ahead"):
        messages._retrieve_buffer = _reading_ahead(original)  # noqa: SLF001


def _reading_ahead(original: Callable[[Any, int], bytearray]) -> Callable[[Any, int], bytearray]:
    data, position, source = b"", 0, None

    def retrieve(connection: Any, length: int) -> bytearray:
        nonlocal data, position, source
        if connection is not source:
            data, position, source = b"", 0, connection
        if position + length > len(data):
            pieces: list[Any] = [data[position:]]
            missing = length - len(pieces[0])
            while missing > 0:
                # End of stream: the original function ends the worker as usual.
                pieces.append(connection.recv(max(missing, READ_AHEAD)) or original(connection, 1))
                missing -= len(pieces[-1])
            data, position = b"".join(pieces), 0
        position += length
        return bytearray(data[position - length : position])

    retrieve.reads_ahead = True  # type: ignore[attr-defined]  # prevents wrapping it twice
    return retrieve


def requests_from(rows: Sequence[Mapping[str, Any]], context: Any) -> list[Request]:
    """Convert TorchServe's rows to requests.

    Headers and the content types of the fields share one mapping (``Service.retrieve_data_for_inference``): the content
    types are the entries that are mappings.
    """
    now = time.time()
    requests = []
    for index, fields in enumerate(rows):
        given, types = {}, {}
        for name, value in context.get_all_request_header(index).items():
            if isinstance(value, str):
                given[name] = value
            elif isinstance(value, dict):
                types[name] = value.get("content-type", "")
        headers = Headers(given)
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
    # Request headers that the frontend adds; clients may send them too, so each request is checked separately.
    if headers.get("describe") == "True":
        return "describe"
    return "explain" if headers.get("explain") == "True" else "predict"


class ContextSink:
    """Writes replies into TorchServe's context in a form that cannot make TorchServe fail."""

    def __init__(self, context: Any, count: int) -> None:
        self._context = context
        self.bodies: list[bytes] = [b""] * count
        self.missing = set(range(count))

    def send(self, index: int, reply: Reply) -> None:
        """Accept the reply to request ``index``: status, fixed ASCII phrase, ASCII headers, bytes."""
        self.bodies[index] = reply.body
        self.missing.discard(index)
        if reply.status != 200:
            self._context.set_response_status(reply.status, _phrase(reply.status), index)
        self._context.set_response_content_type(index, sendable_type(reply))
        for name, value in sendable_headers(reply).items():
            self._context.set_response_header(index, name, value)


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Unknown"


def serve_batch(handler: Servable, rows: Any, context: Any) -> list[bytes]:
    """Answer all rows, whatever happens; the implementation of ``handle``.

    TorchServe turns an exception, another type or another length into a 503 for the whole batch, and some responses
    kill the worker; so this always returns a list of bytes.
    """
    rows = rows if isinstance(rows, list) else []
    sink = ContextSink(context, len(rows))
    requests: list[Request] = []
    usual = gc.get_threshold()
    with handler.on_duty(getattr(context, "cl_socket", None)):
        try:
            gc.set_threshold(max(usual[0], OBJECTS) if usual[0] else 0, *usual[1:])
            requests = requests_from(rows, context)
            _end_streams(requests, context)
            record = handler.run_batch(requests, sink)
            _emit(handler, record, context)
        except STOPS:
            raise
        except BaseException as error:
            logger.exception("the batch loop failed; this is a bug in tsbatch")
            failure = StageFailed(f"the batch loop raised {type(error).__name__}")
            for index in sorted(sink.missing):
                request = requests[index] if requests else Request(fields={})
                sink.send(index, encode_error(failure, request, handler.identity))
        finally:
            gc.set_threshold(*usual)
    handler.free_since = time.time()
    return sink.bodies


def _end_streams(requests: Sequence[Request], context: Any) -> None:
    """Mark the first response of each gRPC call as the last.

    StreamPredictions reaches a worker like Predictions; without this header, its response causes a null pointer in the
    frontend, which kills the worker (GRPCJob.java). Only gRPC calls have no headers.
    """
    for request in requests:
        if not request.headers:
            context.set_response_header(request.index, "ts_stream_next", "false")


def _emit(handler: Servable, record: BatchRecord, context: Any) -> None:
    try:
        metrics = TorchServeMetrics(context.metrics)
        emit(record, metrics, everything=handler.settings.telemetry.metrics)
        metrics.write()
    except Exception:  # metrics must never cost a response
        logger.exception("the metrics of a batch could not be emitted")


class TorchServeMetrics:
    """A metric sink that writes the lines of TorchServe's metric cache (ts/metrics/caching_metric.py) all at once.

    Written one by one, each line is a system call that wakes the frontend's reader before the batch is answered. It
    also avoids the cache's mutable default arguments, which keep the first model's name (metric_cache_abstract.py).
    """

    def __init__(self, cache: Any) -> None:
        self.knows_ours = not all(COUNTERS.keys().isdisjoint(names) for names in getattr(cache, "cache", {}).values())
        self._ids = list(cache.request_ids.values())
        self._dimensions = f"ModelName:{cache.model_name},Level:Model"
        self._origin = f"#hostname:{socket.gethostname()},{int(time.time())}"
        self._lines: list[str] = []

    def count(self, name: str, value: float, dimensions: Mapping[str, str]) -> None:
        """Add ``value`` to the counter ``name``, with the first request id of the batch."""
        own = "".join(f"{key}:{text}," for key, text in dimensions.items())
        self._add(f"{name}.Count:{value}|#{own}{self._dimensions}|#type:COUNTER", self._ids[:1])

    def gauge(self, name: str, value: float, unit: str) -> None:
        """Set the gauge ``name``; a time carries all request ids, as BaseHandler.handle emits it."""
        ids = self._ids if unit == "ms" else self._ids[:1]
        self._add(f"{name}.{UNITS[unit]}:{value}|#{self._dimensions}|#type:GAUGE", ids)

    def _add(self, metric: str, ids: Sequence[str]) -> None:
        self._lines.append(f"[METRICS]{metric}|{self._origin},{','.join(ids)}")

    def write(self) -> None:
        """Write the lines through the logger that TorchServe uses."""
        metric_logger.info("\n".join(self._lines))
