"""tensor: numbers in, numbers out, for tabular and custom models.

Model: TorchScript (.pt), ``torch.export`` (.pt2), ONNX (.onnx), or weights with a model file. Input for each item:
nested lists of numbers, or for a model with several inputs an object with one for each name; as JSON, ``.npy``,
``.npz`` or Open Inference tensors. In files and tensors the first dimension counts the items. Output for each item: the
model's output as nested lists, or an object of them by name. With ``Accept: application/x-npy`` (or
``application/octet-stream``) the answer is an ``.npy`` file, or an ``.npz`` if the outputs have names.

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
from tsbatch.batching.output_layout import ONE_PER_ITEM, BatchedModel, UnclearLayout
from tsbatch.errors import ContractBroken, LoadError, ReplyError, SettingsError, Unprocessable
from tsbatch.models.onnx_model import OnnxGraph
from tsbatch.protocol.encoding import encode_answer
from tsbatch.protocol.fields import split_fields
from tsbatch.protocol.media_types import media_type
from tsbatch.protocol.payload import read_payload
from tsbatch.protocol.reply import Reply
from tsbatch.protocol.request import Item, Request
from tsbatch.settings import Section
from tsbatch.tasks.shared.grouping import Groups, collate_groups, map_groups, run_groups
from tsbatch.tasks.shared.task_handler import TaskHandler
from tsbatch.tasks.tensors.fault_attribution import AnsweredKinds, Kind, as_stage_error, kind_of
from tsbatch.tasks.tensors.inputs import Array, TensorInput, declared_inputs, is_typed, split_rows, stack
from tsbatch.tasks.tensors.numpy_files import is_numpy, read_arrays, write_npy, write_npz
from tsbatch.worker.resources import to_device

NUMPY_TYPES = ("application/x-npy", "application/x-npz", "application/octet-stream")


SPATIAL: Mapping[int, Sequence[int]] = {2: (), 3: (16,), 4: (32, 32), 5: (8, 16, 16)}
"""Sizes after the channels to try with a weight of so many dimensions: linear layers and convolutions."""


class TensorOptions(Section):
    """The section ``handler:`` of model-config.yaml.

    Attributes:
        inputs: the model's inputs, in the order of its arguments; by default one of any shape.
        outputs: names for the elements of the tuple that the model returns.
        max_bytes: the limit for an unpacked ``.npz``.
    """

    inputs: list[TensorInput] = Field(default_factory=list)
    outputs: list[str] = Field(default_factory=list)
    max_bytes: int = Field(default=100_000_000, ge=1)


class TensorParameters(Section):
    """Parameters of a request: none."""


NO_PARAMETERS = TensorParameters()


class Feature(NamedTuple):
    """The model's inputs for an item.

    Attributes:
        kind: features of one kind share a forward pass.
        arrays: one for each input, in its type.
    """

    kind: Kind
    arrays: tuple[Array, ...]


class TensorHandler(TaskHandler):
    """Runs a numeric model. See the module for input and output."""

    task: ClassVar[str] = "tensor"
    input_schema: ClassVar[Any] = {"type": ["number", "array", "object"]}
    output_schema: ClassVar[Any] = input_schema
    parameters_class: ClassVar[Any] = TensorParameters
    settings_class: ClassVar[Any] = TensorOptions
    inputs: Sequence[TensorInput]

    def prepare(self) -> None:
        """Determine the model's inputs.

        Raises:
            SettingsError: two inputs or outputs have one name, or the graph does not have these inputs.
        """
        declared = declared_inputs(self.model)
        self.inputs = self.options.inputs or declared or [TensorInput()]
        self.answered = AnsweredKinds()
        self.batched = BatchedModel(self._call_model)
        self._names = [entry.name for entry in self.inputs]
        self._keys = frozenset(self._names)
        if len(self._keys) < len(self._names):
            raise SettingsError("model-config.yaml: handler.inputs: two of them have the same name")
        if len(set(self.options.outputs)) < len(self.options.outputs):
            raise SettingsError("model-config.yaml: handler.outputs: two of them have the same name")
        own = [entry.name for entry in declared]
        if isinstance(self.model, OnnxGraph) and self._keys != set(own):  # it takes them by name
            raise SettingsError(
                f"model-config.yaml: handler.inputs: expected the inputs of the graph: {', '.join(own)}"
            )
        shape = self.inputs[0].shape if len(self.inputs) == 1 else None
        self._ndim = None if shape is None else len(shape)
        self._prove_layout()

    def examples(self) -> Sequence[Any]:
        """Zeros, if every size is declared."""
        zeros = {entry.name: entry.example() for entry in self.inputs}
        if any(value is None for value in zeros.values()):
            return []
        return [zeros if len(zeros) > 1 else zeros[self._names[0]]]

    def decode_request(self, request: Request) -> list[Item]:
        """Decode the items of one request to arrays by name.

        Raises:
            RequestError: they are broken, or do not match the model's inputs.
        """
        name, parameters = split_fields(request)
        if is_numpy(request.fields[name]):
            request.parameters = parameters
            rows = self._read_file(request, bytes(request.fields[name]))
        else:
            rows = self._read_payload(request)
        checked = self._parameters(request.parameters)
        return [self._item(row, checked, request, index) for index, row in enumerate(rows)]

    def preprocess(self, items: Sequence[Item]) -> list[Any]:
        """Cast the arrays of each item to the types of the inputs, those of one shape and type all at once."""
        return map_groups(items, [item.state for item in items], self._cast)

    def collate(self, features: Sequence[Feature]) -> Groups:
        """Stack items of one shape and type, input by input."""
        kinds = [feature.kind for feature in features]
        return collate_groups([feature.arrays for feature in features], kinds, self._stack, kinds)

    def inference(self, tensors: Groups) -> Any:
        """Run the model on each group: for each item a tensor, or several by name.

        Raises:
            Exception: what the model raised for a group, after all other groups have run.
            Unprocessable: the fault lies with the only item; see ``tensors/fault_attribution.py``.
        """
        failed: dict[Kind, Exception] = {}

        def run(batch: Mapping[str, torch.Tensor], kind: Kind) -> Any:
            try:
                rows = self.batched.run(to_device(batch, self.device))
                return rows if isinstance(rows, torch.Tensor) else [self._by_name(row) for row in rows]
            except ReplyError:
                raise
            except Exception as error:
                failed[kind] = error
                return [None] * len(next(iter(batch.values())))

        outputs = run_groups(tensors, run)
        self.answered.update(kind for kind in tensors.options if kind not in failed)
        for kind, error in failed.items():
            alone = [len(indices) for indices in tensors.indices] == [1] and not is_out_of_memory(error)
            raise (self.answered.blame(kind, error) if alone else None) or as_stage_error(error)
        return outputs

    def _call_model(self, batch: Mapping[str, torch.Tensor]) -> Any:
        # An exported program takes its arguments mostly by position; a graph takes them by name.
        return self.model(**batch) if isinstance(self.model, OnnxGraph) else self.model(*batch.values())

    def _prove_layout(self) -> None:
        """Find out how the model returns the results of several items, on made-up inputs of the declared shapes.

        Where sizes are open, shapes that fit the model's first weights are tried. Without any that fits, the first
        request settles it.

        Raises:
            LoadError: the results of several items cannot be told apart.
        """
        for shapes in self._example_shapes():
            numbers = torch.Generator().manual_seed(0)
            batch = {
                entry.name: torch.randn(1, *shape, generator=numbers).abs().to(getattr(torch, entry.dtype or "float32"))
                for entry, shape in zip(self.inputs, shapes, strict=True)
            }
            try:
                with torch.inference_mode():
                    self.batched.prove(to_device(batch, self.device))
            except UnclearLayout as error:
                raise LoadError(f"{error}; expected {ONE_PER_ITEM}") from None
            except Exception:  # noqa: S112  the warm-up reports declared shapes that do not work
                continue
            self.answered.update([kind_of(self._names, [tensor[0].numpy() for tensor in batch.values()])])
            return

    def _example_shapes(self) -> list[list[list[int]]]:
        """Shapes of all inputs to try: the declared ones, else guesses from the weights for a model of one input."""
        declared = [entry.shape for entry in self.inputs]
        if all(shape is not None and None not in shape for shape in declared):
            return [[[size or 0 for size in shape or ()] for shape in declared]]
        if len(self.inputs) > 1 or declared[0] is not None or not isinstance(self.model, torch.nn.Module):
            return []
        weights = [weight.shape for weight in list(self.model.parameters())[:8] if weight.ndim in SPATIAL]
        return [[[weight[1], *SPATIAL[len(weight)]]] for weight in weights]

    def postprocess(self, outputs: Any, items: Sequence[Item]) -> list[Any]:
        """Convert tensors to arrays."""
        del items
        return list(_plain(outputs)) if isinstance(outputs, torch.Tensor) else [_plain(output) for output in outputs]

    def encode_response(self, results: Sequence[Any], request: Request) -> Reply:
        """Encode the results in the format that the request accepts.

        Raises:
            Unprocessable: the request accepts a file, and the results differ in shape.
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
            message = "the items' results differ in shape, and a file holds only one shape"
            raise Unprocessable(message, expected="Accept: application/json, or one item per request") from None

    def describe_handle(self) -> dict[str, Any]:
        """Describe the task's input and output, and this model's settings."""
        declared = [entry.model_dump() for entry in self.inputs]
        return {**super().describe_handle(), "inputs": declared, "outputs": list(self.options.outputs)}

    def _read_file(self, request: Request, raw: bytes) -> list[dict[str, Any]]:
        found = read_arrays(raw, max_bytes=self.options.max_bytes)
        if not isinstance(found, dict):
            found = {self._names[0]: found}
        elif len(found) == len(self._names) == 1:  # numpy.savez names an unnamed array arr_0
            found = {self._names[0]: next(iter(found.values()))}
        rows, request.single = split_rows(found, self.inputs, self.settings.limits.items)
        return rows

    def _read_payload(self, request: Request) -> list[Any]:
        payload = read_payload(
            request, item_ndim=self._ndim, max_items=self.settings.limits.items, item_keys=self._keys
        )
        request.single, request.parameters = payload.single, payload.parameters
        for own in filter(None, payload.item_parameters):
            self._parameters(own)
        return payload.values

    def _item(self, value: Any, parameters: Any, request: Request, index: int) -> Item:
        """One item: its arrays in the order of the inputs; equal ``state`` means that items are cast together."""
        if not isinstance(value, dict):
            value = {self._names[0]: value}
        if value.keys() != self._keys:
            missing = [name for name in self._names if name not in value]
            what = f"lacks {missing[0]!r}" if missing else "has an input that this model does not have"
            raise Unprocessable(f"item {index} {what}", expected=f"an object with: {', '.join(self._names)}")
        arrays, state = [], []
        for entry in self.inputs:
            given = value[entry.name]
            array = entry.read(given, self._where(entry, index))
            arrays.append(array)
            state.append((array.shape, array.dtype, is_typed(given)))
        return Item(arrays, parameters, request, index, tuple(state))

    def _where(self, entry: TensorInput, index: int) -> str:
        return f"{entry.name} of item {index}" if len(self._names) > 1 else f"item {index}"

    def _cast(self, items: Sequence[Item]) -> list[Feature | Unprocessable]:
        """Cast items of one kind to the types of the inputs; if a number does not fit, each by itself to find it."""
        first = items[0]
        try:
            columns = [
                entry.cast(
                    stack([item.value[number] for item in items]),
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
        # There are none; to check that with pydantic takes longer than a small model needs for an item.
        return NO_PARAMETERS if not given and self.parameters_class is TensorParameters else super()._parameters(given)

    def _stack(self, rows: Sequence[tuple[Array, ...]]) -> dict[str, torch.Tensor]:
        columns = zip(*rows, strict=True)
        return {name: torch.from_numpy(stack(column)) for name, column in zip(self._names, columns, strict=True)}

    def _by_name(self, output: Any) -> Any:
        if not isinstance(output, tuple):  # what a layout of several outputs gives for one item
            return output
        if len(output) == 1:
            return output[0]
        names = self.options.outputs or [f"output_{index}" for index in range(len(output))]
        if len(names) != len(output):
            message = f"the model returns {len(output)} outputs, and handler.outputs has {len(names)} names"
            raise ContractBroken(message, expected="one name for each output in model-config.yaml")
        return dict(zip(names, output, strict=True))


def _plain(output: Any) -> Any:
    if isinstance(output, Mapping):
        return {name: _plain(part) for name, part in output.items()}
    if isinstance(output, torch.Tensor):
        return output.float().numpy() if output.dtype == torch.bfloat16 else output.numpy()
    return [_plain(part) for part in output] if isinstance(output, list | tuple) else output


def _as_file(result: Any) -> Reply:
    if isinstance(result, Mapping):
        return Reply(write_npz({name: np.asarray(part) for name, part in result.items()}), content_type=NUMPY_TYPES[1])
    return Reply(write_npy(np.asarray(result)), content_type=NUMPY_TYPES[0])
