"""The base class of the ready-made tasks, and the small helpers that tasks share."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel

from tsbatch.errors import LoadError, PayloadTooLarge
from tsbatch.handler import BatchHandler
from tsbatch.protocol.request import Item, Request

ModelT = TypeVar("ModelT", bound=BaseModel)

NAMES_FILE = "index_to_name.json"
"""The name that TorchServe's own handlers use (ts/torch_handler/vision_handler.py)."""


class TaskHandler(BatchHandler):
    """Base of the ready-made tasks: a name, and schemas for the input and the output of one item."""

    task: ClassVar[str] = "this task"
    """The name for ``tsbatch package --task``; messages use it for custom handlers too."""
    input_schema: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    """JSON Schema of one item."""
    output_schema: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    """JSON Schema of one item's result."""
    explanation_schema: ClassVar[Mapping[str, Any] | None] = None
    """JSON Schema of one item's explanation; None for a task that has none."""
    names: Sequence[str] = ()
    """The names of the model's classes, in the order of its outputs."""

    def labels(self) -> list[str] | None:
        """The names of the model's classes, in the order of its outputs; None if it has none."""
        return list(self.names) or None

    def decode_request(self, request: Request) -> list[Item]:
        """Decode the items of one request, and check each with :meth:`check_item`."""
        items = super().decode_request(request)
        for item in items:
            self.check_item(item)
        return items

    def check_item(self, item: Item) -> None:
        """Check or complete the parameters of one decoded item.

        Raises:
            RequestError: this model cannot do what the parameters ask for.
        """

    def describe_handle(self) -> dict[str, Any]:
        """Describe the task's input, output and parameters, and this model's settings."""
        description = {
            **super().describe_handle(),
            "task": self.task,
            "input": dict(self.input_schema),
            "output": dict(self.output_schema),
        }
        if self.parameters_class is not None:
            description["parameters"] = self.parameters_class.model_json_schema().get("properties", {})
        labels = self.labels()
        if labels is not None:
            description["labels"] = labels
        if self.explanation_schema is not None:
            description["explanation"] = dict(self.explanation_schema)
        return description


def read_json(path: Path) -> Mapping[str, Any] | list[Any] | None:
    """Read a JSON file of the model folder; None if there is no such file.

    Raises:
        LoadError: the file is broken.
    """
    if not path.is_file():
        return None
    try:
        loaded: Mapping[str, Any] | list[Any] = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise LoadError(f"{path.name}: broken JSON: {error}") from None
    return loaded


def class_names(count: int, *, folder: Path, aux: Mapping[str, Any], config: Any = None) -> list[str]:
    """The name of each of ``count`` classes.

    The names come from ``aux["labels"]``, else from ``index_to_name.json``, else from the model config's ``id2label``.
    Without any of them they are LABEL_0, LABEL_1 ..., as in transformers.

    Args:
        count: the number of classes.
        folder: the unpacked archive.
        aux: the handler's auxiliary files.
        config: a transformers config.

    Raises:
        LoadError: the labels are neither a list nor a mapping of numbers to names, or their number is wrong.
    """
    if count < 1:
        raise LoadError("config.json: id2label: the model has no class; name the classes that it was trained for")
    where, given = "the auxiliary file 'labels'", aux.get("labels")
    if given is None:
        where, given = NAMES_FILE, read_json(folder / NAMES_FILE)
    if given is None:
        where, given = "id2label of config.json", getattr(config, "id2label", None)
    if not given:
        return [f"LABEL_{index}" for index in range(count)]
    named = _by_index(given, where)
    if sorted(named) != list(range(count)):
        raise LoadError(f"{where}: has labels for {_brief(named)}, and the model has {count} classes, 0 to {count - 1}")
    return [named[index] for index in range(count)]


def _by_index(given: Any, where: str) -> dict[int, str]:
    if isinstance(given, str):
        given = given.splitlines()
    try:
        pairs = given.items() if isinstance(given, Mapping) else enumerate(given)
        # ImageNet's list has two names for each class: ["n01440764", "tench"].
        named = {int(index): label[-1] if isinstance(label, list) and label else label for index, label in pairs}
        if all(isinstance(label, str) for label in named.values()):
            return named
    except (TypeError, ValueError):
        pass
    expected = '["cat", "dog"] or {"0": "cat", "1": "dog"}'
    raise LoadError(f"{where}: cannot be read as labels; expected {expected}")


def _brief(named: Mapping[int, str]) -> str:
    if len(named) < 2:
        return f"class {min(named)} alone" if named else "no class"
    return f"{len(named)} classes, {min(named)} to {max(named)}"


def abbreviate(names: Sequence[str], limit: int = 3) -> str:
    """The first names, and how many more there are."""
    return ", ".join(names[:limit]) + (f" and {len(names) - limit} more" if len(names) > limit else "")


def check_count(where: str, what: str, count: int, limit: int, setting: str) -> None:
    """Refuse a request with too many entries in a list.

    Args:
        where: the name of the list.
        what: the plural noun for its entries.
        count: the number of entries.
        limit: the largest number allowed.
        setting: the key of model-config.yaml that sets the limit.

    Raises:
        PayloadTooLarge: ``count`` is over ``limit``.
    """
    if count > limit:
        raise PayloadTooLarge(
            f"{where} has {count} {what}, over the limit of {limit}",
            expected=f"fewer {what}, or a larger {setting} in model-config.yaml",
        )


def with_defaults(parameters: ModelT, options: BaseModel) -> ModelT:
    """A request's parameters, with each one that is None taken from the option of the same name."""
    missing = {name: value for name, value in options if getattr(parameters, name) is None}
    return parameters.model_copy(update=missing)
