"""Run a handler without a server, through TorchServe's own loader, message reader, Service and Context.

::

    Call ─ wire ─ bytes ─ retrieve_msg ─ Service.predict ─ handle ─ bytes ─ wire ─ Answer
          (frontend)       └───────────── TorchServe's Python ──────┘     (frontend)

A test sees what a client would get: content types are decoded as in a worker, an exception fails the whole batch, and a
response that the frontend cannot handle raises :class:`tsbatch.emulation.frames.WorkerDied`.
Needs ``tsbatch[serve]``.
"""

from __future__ import annotations

import atexit
import shutil
import uuid
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tsbatch.emulation.client_request import Call
from tsbatch.emulation.frames import Answer, WireRequest, WorkerDied, encode_batch, read_answers
from tsbatch.emulation.model_loader import (
    METRIC_LOGGERS,
    Connection,
    Plan,
    load,
    own_dimensions,
    plan_of_class,
    plan_of_folder,
    require_torchserve,
    root_logger_as_it_is,
)
from tsbatch.emulation.worker_environment import WorkerEnvironment, temporary_folder_of, undone_later
from tsbatch.errors import LoadError
from tsbatch.settings import MAX_RESPONSE_SIZE
from tsbatch.worker.metric_lines import Captured, Metric, capture_metrics

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["DEFAULT_BATCH_SIZE", "Answer", "Call", "HandlerRunner", "Metric", "WorkerDied"]

DEFAULT_BATCH_SIZE = 32
"""The maximum batch size if neither the caller nor model-config.yaml sets one."""


class HandlerRunner:
    """A loaded handler, created by :meth:`from_mar` or :meth:`from_class`; a context manager.

    While it works, the current directory is the folder of the model, which is also on ``sys.path``, as in a worker;
    both are restored afterwards. Runners may be used from several threads and work one at a time.

    Attributes:
        handler: the instance (or function) of the handler.
        model_name: the name under which it was loaded.
        batch_size: the maximum number of requests in a batch.
    """

    def __init__(self, plan: Plan, *, batch_size: int | None, gpu_id: int | None, max_response_size: int) -> None:
        self.model_name = plan.name
        own = plan.batch_size or DEFAULT_BATCH_SIZE
        self.batch_size = own if batch_size is None else batch_size
        self._max_response_size = max_response_size
        self._captured = Captured()
        self._clean_up = ExitStack()
        with self._clean_up:
            if plan.temporary:
                # Also if nobody closes the runner: when it is garbage-collected or the process exits.
                self._clean_up.callback(weakref.finalize(self, shutil.rmtree, plan.folder, ignore_errors=True))
            if self.batch_size < 1:
                raise ValueError(f"batch_size is {batch_size}; a batch has at least one request")
            self._environment = WorkerEnvironment(plan.folder, paths=plan.paths, modules=plan.modules)
            self._clean_up.callback(self._environment.forget)
            with undone_later(self._clean_up), self._at_work():
                self._service: Any = load(plan, self.batch_size, gpu_id)
            self._clean_up = self._clean_up.pop_all()
        entry = self._service._entry_point  # noqa: SLF001  Service has no public way to it
        self.handler: Any = getattr(entry, "__self__", entry)

    @classmethod
    def from_mar(
        cls,
        path: str | Path,
        *,
        batch_size: int | None = None,
        gpu_id: int | None = None,
        metrics_config: Path | None = None,
        max_response_size: int = MAX_RESPONSE_SIZE,
    ) -> HandlerRunner:
        """Load an archive, or a folder with the contents of an archive.

        Args:
            path: the ``.mar``, which is unpacked into a private temporary folder; a folder is used in place.
            batch_size: the maximum batch size; None for the batchSize of the archive, or 32.
            gpu_id: the GPU that TorchServe would assign.
            metrics_config: the metrics.yaml of the server; None for the one of tsbatch.
            max_response_size: the limit of the server for one response, in bytes.

        Raises:
            LoadError: the archive or the handler does not load; the message says why.
        """
        require_torchserve()
        path = Path(path).resolve()
        if path.is_dir():
            plan = plan_of_folder(path, path, metrics_config)
        elif path.is_file():
            with temporary_folder_of(path) as folder:
                plan = replace(plan_of_folder(folder, path, metrics_config), temporary=True)
        else:
            raise LoadError(f"{path}: no such archive")
        return cls(plan, batch_size=batch_size, gpu_id=gpu_id, max_response_size=max_response_size)

    @classmethod
    def from_class(
        cls,
        handler: type,
        model_dir: str | Path,
        *,
        settings: Mapping[str, Any] | str | Path | None = None,
        name: str = "model",
        version: str = "1.0",
        manifest: Mapping[str, Any] | None = None,
        batch_size: int | None = None,
        gpu_id: int | None = None,
        metrics_config: Path | None = None,
        max_response_size: int = MAX_RESPONSE_SIZE,
    ) -> HandlerRunner:
        """Load a handler class; nothing is written into ``model_dir``.

        Args:
            handler: the class.
            model_dir: the folder with the files of the model.
            settings: the complete model-config.yaml, as a mapping or a path.
            name: the name of the model.
            version: the version of the model.
            manifest: additional entries of the manifest's ``model`` section, e.g. ``serializedFile``.
            batch_size: as in :meth:`from_mar`.
            gpu_id: as in :meth:`from_mar`.
            metrics_config: as in :meth:`from_mar`.
            max_response_size: as in :meth:`from_mar`.

        Raises:
            LoadError: the folder is missing or the handler does not load; the message says why.
        """
        require_torchserve()
        plan = plan_of_class(
            handler,
            Path(model_dir),
            settings=settings,
            name=name,
            version=version,
            manifest=manifest or {},
            metrics_config=metrics_config,
        )
        return cls(plan, batch_size=batch_size, gpu_id=gpu_id, max_response_size=max_response_size)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Call the ``close`` of the handler, if any, and remove unpacked files. A second call does nothing."""
        service, self._service = self._service, None
        if service is None:
            return
        with self._clean_up, self._environment.entered():
            close = getattr(self.handler, "close", None)
            if callable(close):
                # A BatchHandler registered itself for atexit, which would keep it and its model alive until then.
                atexit.unregister(close)
                close()

    def predict(self, requests: Iterable[Any]) -> list[Answer]:
        """Return the answers to requests that arrive at the same time.

        Up to ``batch_size`` of them form one batch; the rest form further batches, as on a server.

        Args:
            requests: each a ``str`` (sent as text/plain), ``bytes`` (as application/octet-stream), any other value (as
                JSON), or a :class:`Call`.

        Returns:
            One answer per request, in order.

        Raises:
            WorkerDied: this batch would kill the worker.
            ValueError: there is no request.
        """
        return self._run([Call.of(request) for request in requests], {"explain": "False"})

    def predict_one(self, request: Any) -> Answer:
        """Return the answer to a single request."""
        return self.predict([request])[0]

    def explain(self, requests: Iterable[Any]) -> list[Answer]:
        """Return the answers of ``/explanations``."""
        return self._run([Call.of(request) for request in requests], {"explain": "True"})

    def describe(self) -> Answer:
        """Return the answer to ``GET /models/NAME?customized=true``."""
        return self._run([None], {"describe": "True"})[0]

    @property
    def metrics(self) -> Sequence[Metric]:
        """The metrics of the last predict, explain or describe."""
        return self._captured.metrics

    @property
    def dropped_metrics(self) -> Sequence[str]:
        """The metric lines of the last call that TorchServe would drop, e.g. a ``nan``."""
        return self._captured.dropped

    def _run(self, calls: Sequence[Call | None], added: Mapping[str, str]) -> list[Answer]:
        if self._service is None:
            raise RuntimeError("the runner is closed")
        if not calls:
            raise ValueError("predict needs at least one request; TorchServe never sends an empty batch")
        answers = []
        with self._at_work():
            for start in range(0, len(calls), self.batch_size):
                answers += self._hand_over(calls[start : start + self.batch_size], added)
        return answers

    def _hand_over(self, calls: Sequence[Call | None], added: Mapping[str, str]) -> list[Answer]:
        from ts.protocol.otf_message_handler import retrieve_msg

        ids = [str(uuid.uuid4()) for _ in calls]
        connection = Connection(
            encode_batch(
                # Without a call it is a GET: only the frontend's own headers matter.
                WireRequest(name, added, ()) if call is None else call.to_wire(name, added)
                for call, name in zip(calls, ids, strict=True)
            )
        )
        _, batch = retrieve_msg(connection)
        self._service.set_cl_socket(connection)
        try:
            connection.sendall(self._service.predict(batch))
        except (Exception, SystemExit) as error:
            raise WorkerDied(f"the worker exited with {type(error).__name__}: {error}") from error
        return read_answers(connection.sent, ids, max_response_size=self._max_response_size)

    @contextmanager
    def _at_work(self) -> Iterator[None]:
        with (
            self._environment.entered(),
            root_logger_as_it_is(),
            own_dimensions(),
            capture_metrics(*METRIC_LOGGERS) as self._captured,
        ):
            yield
