"""tensor: numbers in, numbers out, for tabular and own models.

Model: TorchScript (.pt), ``torch.export`` (.pt2), ONNX (.onnx), or weights with a model file. Input for each item:
nested lists of numbers, or for a model of several inputs an object with one for each name; as JSON, ``.npy``, ``.npz``
or Open Inference tensors. In files and tensors the first dimension counts the items. Output for each item: what the
model gives for it, nested lists, or an object of them by name. With ``Accept: application/x-npy`` (or
``application/octet-stream``) the answer is an ``.npy`` file, or an ``.npz`` where outputs have names.

The section ``handler:`` declares inputs and names outputs (see ``tensors/inputs.py``). Items of one shape share a
forward pass; none is padded. Limits: 64 items a request, ``handler.max_bytes`` of an unpacked ``.npz``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from pydantic import Field

from tsbatch.batching.memory_cap import is_out_of_memory
from tsbatch.errors import ContractBroken, SettingsError, Unprocessable
from tsbatch.models.onnx_model import OnnxGraph
from tsbatch.protocol.encoding import encode_answer
from tsbatch.protocol.fields import split_fields
from tsbatch.protocol.media_types import media_type
from tsbatch.protocol.payload import read_payload
from tsbatch.protocol.reply import Reply
from tsbatch.protocol.request import Item, Request
from tsbatch.settings import Section
from tsbatch.tasks.shared.equal_shapes import Groups, run_groups, same_shape
from tsbatch.tasks.shared.task_handler import TaskHandler
from tsbatch.tasks.tensors.fault_attribution import Answered, Kind, kind_of
from tsbatch.tasks.tensors.inputs import Array, TensorInput, declared_by, is_typed, rows_of, stacked
from tsbatch.tasks.tensors.numpy_files import is_numpy, read_arrays, write_npy, write_npz
from tsbatch.worker.resources import to_device

NUMPY_TYPES = ("application/x-npy", "application/x-npz", "application/octet-stream")


class TensorOptions(Section):
    """The section ``handler:`` of model-config.yaml.

    Attributes:
        inputs: the model's inputs, in the order of its arguments; left out: one of any shape.
        outputs: names for what the model gives as a tuple, in its order.
        max_bytes: what an ``.npz`` may unpack to.
    """

    inputs: list[TensorInput] = Field(default_factory=list)
    outputs: list[str] = Field(default_factory=list)
    max_bytes: int = Field(default=100_000_000, ge=1)


class TensorParameters(Section):
    """A request has no parameters."""


NOTHING = TensorParameters()


class Feature(NamedTuple):
    """An item as the model takes it.

    Attributes:
        kind: those of one kind share a forward pass.
        arrays: one for each input, in its type.
    """

    kind: Kind
    arrays: tuple[Array, ...]


class TensorHandler(TaskHandler):
    """Runs a numeric model. See the module for input and output."""

    task: ClassVar[str] = "tensor"
    input_schema: ClassVar[Any] = {"type": ["number", "array", "object"]}
    output_schema: ClassVar[Any] = {"type": ["number", "array", "object"]}
    parameters_class: ClassVar[Any] = TensorParameters
    settings_class: ClassVar[Any] = TensorOptions
    inputs: Sequence[TensorInput]

    def prepare(self) -> None:
        """Find out what the inputs are.

        Raises:
            SettingsError: two inputs or outputs of one name, or inputs that the graph has not.
        """
        declared = declared_by(self.model)
        self.inputs = self.options.inputs or declared or [TensorInput()]
        self.answered = Answered()
        self._names = [entry.name for entry in self.inputs]
        self._keys = frozenset(self._names)
        if len(self._keys) < len(self._names):
            raise SettingsError("model-config.yaml: handler.inputs: two of them have one name")
        if len(set(self.options.outputs)) < len(self.options.outputs):
            raise SettingsError("model-config.yaml: handler.outputs: two of them have one name")
        own = [entry.name for entry in declared]
        if isinstance(self.model, OnnxGraph) and self._keys != set(own):  # it takes them by name
            raise SettingsError(f"model-config.yaml: handler.inputs: the graph's are {', '.join(own)}")
        shape = self.inputs[0].shape if len(self.inputs) == 1 else None
        self._ndim = None if shape is None else len(shape)

    def examples(self) -> Sequence[Any]:
        """Zeros, where every size is declared."""
        zeros = {entry.name: entry.example() for entry in self.inputs}
        if any(value is None for value in zeros.values()):
            return []
        return [zeros if len(zeros) > 1 else zeros[self._names[0]]]

    def decode_request(self, request: Request) -> list[Item]:
        """The items of one request: arrays by name.

        Raises:
            RequestError: broken, or not what the model's inputs are.
        """
        name, parameters = split_fields(request)
        if is_numpy(request.fields[name]):
            request.parameters = parameters
            rows = self._read_file(request, bytes(request.fields[name]))
        else:
            rows = self._read_payload(request)
        checked = self._parameters(request.parameters)
        return [self._item(row, checked, request, place) for place, row in enumerate(rows)]

    def preprocess(self, items: Sequence[Item]) -> list[Any]:
        """The arrays of each item in the types of the inputs, those of one shape and type cast all at once."""
        features: list[Any] = [None] * len(items)
        for places in same_shape([item.state for item in items]):
            rows = self._cast([items[place] for place in places])
            for place, row in zip(places, rows, strict=True):
                features[place] = row
        return features

    def collate(self, features: Sequence[Feature]) -> Groups:
        """Items of one shape and type stacked, input by input."""
        places = same_shape([feature.kind for feature in features])
        batches = [
            {
                name: torch.from_numpy(stacked([features[place].arrays[number] for place in group]))
                for number, name in enumerate(self._names)
            }
            for group in places
        ]
        return Groups(places, batches, [features[group[0]].kind for group in places])

    def inference(self, tensors: Groups) -> Any:
        """Each group through the model: for each item a tensor, or several by name.

        Raises:
            Exception: what the model raised for a group, after all others were tried.
            Unprocessable: the only item is to blame for it; see ``tensors/answered.py``.
        """
        failed: dict[Kind, Exception] = {}

        def run(batch: Mapping[str, torch.Tensor], kind: Kind) -> Any:
            try:
                output = self._run(to_device(batch, self.device))
            except Exception as error:
                failed[kind] = error
                return [None] * len(next(iter(batch.values())))
            return self._by_name(output)

        outputs = run_groups(tensors, run)
        self.answered.update(kind for kind in tensors.wishes if kind not in failed)
        for kind, error in failed.items():
            alone = [len(places) for places in tensors.places] == [1] and not is_out_of_memory(error)
            raise (self.answered.blame(kind, error) if alone else None) or error
        return outputs

    def postprocess(self, outputs: Any, items: Sequence[Item]) -> list[Any]:
        """Tensors to arrays."""
        del items
        return list(_plain(outputs)) if isinstance(outputs, torch.Tensor) else [_plain(output) for output in outputs]

    def encode_response(self, results: Sequence[Any], request: Request) -> Reply:
        """The results in the format that the request accepts.

        Raises:
            Unprocessable: a file is asked for, and the results differ in shape.
        """
        accepted = request.headers.get("accept")
        if request.protocol != "plain" or not accepted or media_type(accepted.split(",")[0])[0] not in NUMPY_TYPES:
            return encode_answer(results, request, self.identity, nan=self.settings.nan)
        if request.single:
            return _as_file(results[0])
        try:
            if isinstance(results[0], Mapping):
                return _as_file({name: np.stack([result[name] for result in results]) for name in results[0]})
            return _as_file(np.stack(results))
        except ValueError:
            message = "the items' results differ in shape, and a file holds one"
            raise Unprocessable(message, expected="Accept: application/json, or one item a request") from None

    def describe_handle(self) -> dict[str, Any]:
        """What the task takes and gives, and how this model is set."""
        declared = [entry.model_dump() for entry in self.inputs]
        return {**super().describe_handle(), "inputs": declared, "outputs": list(self.options.outputs)}

    def _read_file(self, request: Request, raw: bytes) -> list[dict[str, Any]]:
        found = read_arrays(raw, max_bytes=self.options.max_bytes)
        if not isinstance(found, dict):
            found = {self._names[0]: found}
        elif len(found) == len(self._names) == 1:  # numpy.savez calls a nameless array arr_0
            found = {self._names[0]: next(iter(found.values()))}
        rows, request.single = rows_of(found, self.inputs, self.settings.limits.items)
        return rows

    def _read_payload(self, request: Request) -> list[Any]:
        payload = read_payload(
            request, item_ndim=self._ndim, max_items=self.settings.limits.items, item_keys=self._keys
        )
        request.single, request.parameters = payload.single, payload.parameters
        for own in filter(None, payload.item_parameters):
            self._parameters(own)
        return payload.values

    def _item(self, value: Any, parameters: Any, request: Request, place: int) -> Item:
        """One item: its arrays in the order of the inputs, and beside them what those have that are cast together."""
        if not isinstance(value, dict):
            value = {self._names[0]: value}
        if value.keys() != self._keys:
            lacking = [name for name in self._names if name not in value]
            what = f"lacks {lacking[0]!r}" if lacking else "has an input that this model does not have"
            raise Unprocessable(f"item {place} {what}", expected=f"an object with: {', '.join(self._names)}")
        arrays, alike = [], []
        for entry in self.inputs:
            given = value[entry.name]
            array = entry.read(given, self._where(entry, place))
            arrays.append(array)
            alike.append((array.shape, array.dtype, is_typed(given)))
        return Item(arrays, parameters, request, place, tuple(alike))

    def _where(self, entry: TensorInput, place: int) -> str:
        return f"{entry.name} of item {place}" if len(self._names) > 1 else f"item {place}"

    def _cast(self, items: Sequence[Item]) -> list[Feature | Unprocessable]:
        """Items of one kind in the types of the inputs; when a number does not fit, each by itself to find it."""
        first = items[0]
        try:
            columns = [
                entry.cast(
                    stacked([item.value[number] for item in items]),
                    self._where(entry, first.position),
                    typed=first.state[number][-1],
                )
                for number, entry in enumerate(self.inputs)
            ]
        except Unprocessable as error:
            return [error] if len(items) == 1 else [row for item in items for row in self._cast([item])]
        rows = list(zip(*columns, strict=True))
        kind = kind_of(self._names, rows[0])
        return [Feature(kind, row) for row in rows]

    def _parameters(self, given: Mapping[str, Any]) -> Any:
        # There are none, and to have that said by pydantic takes longer than a small model needs for an item.
        return NOTHING if not given and self.parameters_class is TensorParameters else super()._parameters(given)

    def _run(self, batch: Mapping[str, torch.Tensor]) -> Any:
        # An exported program takes its arguments as it was exported, mostly by place; a graph goes by name.
        return self.model(**batch) if isinstance(self.model, OnnxGraph) else self.model(*batch.values())

    def _by_name(self, output: Any) -> Any:
        if not isinstance(output, list | tuple):
            return output
        if len(output) == 1:
            return output[0]
        names = self.options.outputs or [f"output_{place}" for place in range(len(output))]
        if len(names) != len(output):
            message = f"the model gives {len(output)} outputs, and handler.outputs has {len(names)} names"
            raise ContractBroken(message, expected="in model-config.yaml one name an output")
        return dict(zip(names, output, strict=True))


def _plain(output: Any) -> Any:
    if isinstance(output, Mapping):
        return {name: _plain(part) for name, part in output.items()}
    if isinstance(output, torch.Tensor):
        return output.float().numpy() if output.dtype == torch.bfloat16 else output.numpy()
    return output


def _as_file(result: Any) -> Reply:
    if isinstance(result, Mapping):
        return Reply(write_npz({name: np.asarray(part) for name, part in result.items()}), content_type=NUMPY_TYPES[1])
    return Reply(write_npy(np.asarray(result)), content_type=NUMPY_TYPES[0])
