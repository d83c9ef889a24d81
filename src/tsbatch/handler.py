"""BatchHandler: the class to subclass, and its stages in the order they run.

::

    initialize ─ load_model ─ load_tokenizer ─ prepare ─ warm-up          once for each worker
    decode_request → preprocess → lengths → collate → inference → postprocess → encode_response     each batch
    (one request)    (all items)  (numbers)  (one micro-batch)     (all items)   (one request)

``loop.process`` calls the stages. Only the two thin entry points ``initialize`` and ``handle`` depend on TorchServe.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Literal

import torch
from pydantic import BaseModel

from tsbatch._version import __version__
from tsbatch.batching.collating import collate
from tsbatch.batching.cost import PassCost
from tsbatch.batching.memory_cap import MemoryCap
from tsbatch.batching.output_layout import BatchedModel, run_model
from tsbatch.batching.strategy import Choice
from tsbatch.contract import check_contract
from tsbatch.errors import LoadError, NotSupported, SettingsError
from tsbatch.loop import process
from tsbatch.models.engines import wanted_engine
from tsbatch.models.loading import load_any, load_weights, lock
from tsbatch.protocol.encoding import ModelIdentity, encode_answer
from tsbatch.protocol.payload import read_payload
from tsbatch.protocol.reply import ListSink, Reply
from tsbatch.protocol.request import Item, Request
from tsbatch.settings import Settings, load_settings, parse_parameters, parse_section
from tsbatch.warmup import warm_up
from tsbatch.worker import adapter
from tsbatch.worker.aux_files import load_auxiliary
from tsbatch.worker.context import ModelContext
from tsbatch.worker.resources import pick_device, to_device, usable_cores
from tsbatch.worker.shutdown import Closer, close_when_told
from tsbatch.worker.telemetry import BatchRecord
from tsbatch.worker.thread_share import ThreadShare


class BatchHandler(adapter.BaseHandler):
    """A TorchServe handler that is correct and fast under dynamic batching.

    Override as little as you need: usually :meth:`preprocess` and :meth:`postprocess`, and :meth:`load_model` if the
    default does not know your model. Every stage gets the whole batch, a bad request affects only itself, and each
    response reports where its time went.

    Example::

        class Digits(BatchHandler):
            def preprocess(self, items):
                return torch.tensor([item.value for item in items])

            def postprocess(self, outputs, items):
                return outputs.argmax(dim=1).tolist()

    Attributes:
        model, tokenizer, aux, device, settings, options: set by ``initialize`` and unchanged afterwards.
            ``options`` is the ``handler:`` section of model-config.yaml, as ``settings_class`` if that is set.
    """

    wants: ClassVar[Literal["text", "bytes", "json"]] = "json"
    """The type of an item's value: ``text`` (str), ``bytes`` (a file), or ``json`` (anything)."""
    item_ndim: ClassVar[int | None] = None
    """The nesting depth of one item in JSON: 0 for a string, 1 for a vector. None: a list is always several items."""
    item_keys: ClassVar[frozenset[str]] = frozenset()
    """The keys of a JSON object that is one item, e.g. ``question`` and ``context``; with ``wants = "json"``."""
    deterministic: ClassVar[bool] = False
    """The answer depends only on value and parameters, so identical items may be computed once."""
    takes_engines: ClassVar[bool] = False
    """``tsbatch.engine`` and ``tsbatch.dtype`` are supported by :meth:`start_engine`."""
    parameters_class: ClassVar[type[BaseModel] | None] = None
    """A pydantic class for the parameters of a request; an unknown or invalid parameter is then a 422, and
    ``item.parameters`` is an instance. None leaves them an unchecked mapping."""
    settings_class: ClassVar[type[BaseModel] | None] = None
    """A pydantic class for the ``handler:`` section; None leaves it a plain mapping."""

    def __init__(self) -> None:
        super().__init__()
        self.settings = Settings()
        self.options: Any = MappingProxyType({})
        self.aux: Mapping[str, Any] = MappingProxyType({})
        self.tokenizer: Any = None
        self.model_dir = Path()
        self.batch_size = 1
        self.identity = ModelIdentity("model", "1.0")
        self.threads = ThreadShare("auto", {}, usable_cores())
        self.memory = MemoryCap()
        self.pass_cost = PassCost()
        self.choice = Choice("bucketed", "not loaded")
        self._closer = Closer()
        self._proven: dict[type, BatchedModel] = {}
        self.free_since: float | None = None

    # ---- once for each worker ---------------------------------------------------------------------------------

    def initialize(self, context: Any) -> None:
        """Load from TorchServe's context.

        Raises:
            LoadError: one line with the file, the cause and the remedy.
        """
        self.context = context
        self.manifest = context.manifest
        self.load(adapter.model_context(context))
        adapter.read_ahead()

    def load(self, context: ModelContext) -> None:
        """Load without TorchServe: settings, device, threads, auxiliary files, model, tokenizer, warm-up.

        Raises:
            LoadError: one line with the file, the cause and the remedy.
        """
        self.settings = load_settings(context.config)
        check_contract(self, BatchHandler)
        self.options = self._options(context.config.get("handler"))
        self.model_dir, self.batch_size = context.model_dir, context.batch_size
        self.identity = ModelIdentity(context.model_name, context.model_version)
        self.device = pick_device(self.settings.device, context.gpu_id)
        self.threads = ThreadShare(self.settings.threads, context.config, usable_cores())
        self.threads.refresh()
        self.engine = wanted_engine(self.settings, self.device, any_engine=self.takes_engines)
        self._model_section = context.manifest
        self.aux = load_auxiliary(self.settings.aux, context.model_dir)
        self.model = self._step("load_model", self.load_model)
        self.tokenizer = self._step("load_tokenizer", self.load_tokenizer)
        lock(self.model)
        self._step("prepare", self.prepare)
        self.choice = self._step("choose_batching", self.choose_batching)
        self._step("start_engine", self.start_engine)
        self._closer.allow(context.config.get("responseTimeout"))
        close_when_told(self.close)
        self.initialized = True
        if self.settings.warmup:
            self._step("warm-up", lambda: warm_up(self))

    def load_model(self) -> Any:
        """Return the model, on ``self.device``.

        The default loads what was packaged: safetensors or a state dict with the module class in ``modelFile``,
        TorchScript, or an exported program. Override this for anything else; :meth:`load_weights` helps.
        """
        return load_any(self.model_dir, self._model_section, self.device)

    def load_weights(self, module: torch.nn.Module, file: str) -> torch.nn.Module:
        """Load ``file`` (.safetensors, or a state dict in .pt or .pth) into ``module``, memory-mapped."""
        return load_weights(module, self.model_dir / file, self.device)

    def load_tokenizer(self) -> Any:
        """Return the tokenizer, or None. Called once, after :meth:`load_model`."""
        return None

    def prepare(self) -> None:
        """Derive constants from the model, the tokenizer and ``self.aux``, once."""

    def choose_batching(self) -> Choice:
        """Return how features share a forward pass. Called after the model is loaded.

        Raises:
            SettingsError: ``tsbatch.batching.mode`` asks for something that this handler cannot do.
        """
        asked = self.settings.batching.mode
        if asked == "packed":
            raise SettingsError(
                "model-config.yaml: tsbatch.batching.mode: this handler does not support packing; use auto"
            )
        if asked in ("equal", "single", "padded"):
            return Choice(asked, "set in model-config.yaml")
        reason = "this handler does not pack" if asked == "auto" else "set in model-config.yaml"
        return Choice("bucketed", reason)

    def start_engine(self) -> None:
        """Let ``self.engine`` run the model. Called last, so that packing is proven on the unmodified model."""

    def examples(self) -> Sequence[Any]:
        """Return item values for the warm-up, in the shapes that clients send. None means no warm-up."""
        return ()

    def on_close(self, callback: Callable[[], Any]) -> None:
        """Call ``callback`` when the worker exits, if it gets the chance before it is killed (docs/closing.md)."""
        self._closer.add(callback)

    def when_gone(self, *command: str) -> None:
        """Run ``command`` after the worker is gone, for cleanup that must not be missed (docs/closing.md)."""
        self._closer.when_gone(command)

    def close(self) -> None:
        """Call the callbacks of :meth:`on_close` in reverse order. A second call does nothing."""
        self._closer.close()

    def on_duty(self, connection: Any) -> AbstractContextManager[None]:
        """Return a context for a batch: close if ``connection`` to the server is gone or the batch takes too long."""
        return self._closer.on_duty(connection)

    # ---- each batch -------------------------------------------------------------------------------------------

    def handle(self, data: Any, context: Any) -> list[bytes]:
        """TorchServe's entry point: return one ready response per request, in order. Never raises."""
        return adapter.serve_batch(self, data, context)

    def answer(self, requests: Sequence[Request]) -> list[Reply]:
        """Run the same loop without TorchServe: return one reply per request, in order."""
        for index, request in enumerate(requests):
            request.index = index
        sink = ListSink(len(requests))
        self.run_batch(requests, sink)
        return sink.replies

    def run_batch(self, requests: Sequence[Request], sink: Any) -> BatchRecord:
        """Answer ``requests`` into ``sink`` and return the record of the batch."""
        record = BatchRecord.begin(requests, self.batch_size, self.free_since)
        self.threads.refresh()
        process(self, requests, sink, record)
        self.free_since = record.ended
        return record

    def decode_request(self, request: Request) -> list[Item]:
        """Return the items of one request.

        Raises:
            RequestError: it cannot be read; only this request gets the 4xx.
        """
        most = self.settings.limits.items
        payload = read_payload(
            request, item_ndim=self.item_ndim, wants=self.wants, max_items=most, item_keys=self.item_keys
        )
        request.protocol, request.single = payload.protocol, payload.single
        request.parameters, request.client_id = payload.parameters, payload.client_id
        items: list[Item] = []
        common: Any = None  # parsed once for all items, because they may be long
        for position, (value, own) in enumerate(zip(payload.values, payload.item_parameters, strict=True)):
            decoded = self.decode_item(value)
            if not own and common is None:
                common = self._parameters(payload.parameters)
            parameters = self._parameters({**payload.parameters, **own}) if own else common
            items.append(Item(decoded, parameters, request, position))
        return items

    def decode_item(self, value: Any) -> Any:
        """Check and convert the value of one item. Raise a RequestError for anything that the task does not accept."""
        return value

    def preprocess(self, items: Sequence[Item]) -> Any:
        """Convert all items of the batch to features.

        Returns:
            One feature per item, in order: a list, or tensors with one row per item. A list in the position of an item
            means several features of that item; a RequestError in its position fails its request without a search.
        """
        return torch.as_tensor([item.value for item in items])

    def lengths(self, features: Sequence[Any]) -> Sequence[int] | None:
        """Return the length of each feature, for planning; None if all cost the same."""
        return None

    def collate(self, features: Sequence[Any]) -> Any:
        """Convert one micro-batch of features to tensors; padding happens only here.

        The default stacks features of the same shape, key by key if they are mappings.
        """
        return collate(features)

    def inference(self, tensors: Any) -> Any:
        """Run one micro-batch through the model.

        Returns:
            A list with one output per feature, or tensors with one row per feature (also in a mapping or tuple). If
            the model returns several tensors, the default proves which part of them belongs to which feature.
        """
        return run_model(self.model, to_device(tensors, self.device), self._proven)

    def postprocess(self, outputs: Any, items: Sequence[Item]) -> Any:
        """Convert the outputs of all items to results.

        Args:
            outputs: one row per item, on the CPU: one tensor if the rows are tensors of the same shape, otherwise a
                list. An item with several features has a list of outputs.
            items: the items, in the same order.

        Returns:
            One JSON-serialisable result per item, in order.
        """
        return outputs

    def encode_response(self, results: Sequence[Any], request: Request) -> Reply:
        """Return the reply with the results of one request, in the protocol of the request."""
        return encode_answer(results, request, self.identity, nan=self.settings.nan)

    def explain_items(self, items: Sequence[Item]) -> Sequence[Any]:
        """Return explanations for ``/explanations``, one per item. Called with gradients enabled.

        Raises:
            NotSupported: by default.
        """
        raise NotSupported(f"{type(self).__name__} cannot explain its answers", expected="a request to /predictions")

    def describe_handle(self) -> dict[str, Any]:
        """Return what ``GET /models/NAME?customized=true`` reports about this handler."""
        return {
            "handler": type(self).__name__,
            "tsbatch": __version__,
            "model": {"name": self.identity.name, "version": self.identity.version},
            "device": str(self.device),
            "engine": {"name": self.settings.engine, "dtype": self.settings.dtype},
            "threads": torch.get_num_threads(),
            "batch_size": self.batch_size,
            "batching": self.choice.describe() | {"memory_cap": self.memory.limit},
            "limits": self.settings.limits.model_dump(),
        }

    # ---- used by the loop --------------------------------------------------------------------------------------

    @property
    def deduplicates(self) -> bool:
        """Whether identical items of a batch are computed only once."""
        asked = self.settings.batching.deduplicate
        return self.deterministic if asked == "auto" else asked

    @property
    def buckets(self) -> bool:
        """Whether micro-batches are cut by length."""
        return self.choice.mode == "bucketed"

    def _parameters(self, given: Mapping[str, Any]) -> Any:
        return given if self.parameters_class is None else parse_parameters(self.parameters_class, given)

    def _step(self, name: str, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except LoadError:
            raise
        except Exception as error:
            raise LoadError(f"{type(self).__name__}.{name} raised {type(error).__name__}: {error}") from error

    def _options(self, section: Any) -> Any:
        if self.settings_class is not None:
            return parse_section(self.settings_class, {} if section is None else section, "handler")
        if section is not None and not isinstance(section, dict):
            kind = type(section).__name__
            raise SettingsError(f"model-config.yaml: handler: expected keys and values, got {kind}")
        return MappingProxyType(section or {})
