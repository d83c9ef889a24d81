"""What every ready-made task tells about itself, and the small readers that tasks share."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel

from tsbatch.errors import LoadError
from tsbatch.handler import BatchHandler

ModelT = TypeVar("ModelT", bound=BaseModel)


class TaskHandler(BatchHandler):
    """Base of the ready-made tasks: a name, and schemas for what goes in and comes out of one item."""

    task: ClassVar[str] = "this task"
    """As in ``tsbatch package --task``; of a handler of one's own what messages call it."""
    input_schema: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    """JSON Schema of one item."""
    output_schema: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    """JSON Schema of one item's result."""

    def labels(self) -> list[str] | None:
        """The names of the model's classes, in the order of its outputs; None when it has none."""
        return None

    def describe_handle(self) -> dict[str, Any]:
        """What the task takes and gives, and how this model is set."""
        told = {
            **super().describe_handle(),
            "task": self.task,
            "input": dict(self.input_schema),
            "output": dict(self.output_schema),
        }
        if self.parameters_class is not None:
            told["parameters"] = self.parameters_class.model_json_schema().get("properties", {})
        labels = self.labels()
        return told if labels is None else {**told, "labels": labels}


def read_json(path: Path) -> Mapping[str, Any] | list[Any] | None:
    """A JSON file of the model folder, or None when it is not there.

    Raises:
        LoadError: it is there and broken.
    """
    if not path.is_file():
        return None
    try:
        loaded: Mapping[str, Any] | list[Any] = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise LoadError(f"{path.name}: broken JSON: {error}") from None
    return loaded


def first_line(error: BaseException) -> str:
    """What a library said, in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = next((place for place, line in enumerate(lines) if not line.endswith(":")), len(lines))
    return f"{type(error).__name__}: {' '.join(lines[: told + 1]) or 'no reason given'}"


def filled(asked: ModelT, options: BaseModel) -> ModelT:
    """A request's parameters with what they leave out (None) as the options of the same name have it."""
    return asked.model_copy(update={name: value for name, value in options if getattr(asked, name) is None})
