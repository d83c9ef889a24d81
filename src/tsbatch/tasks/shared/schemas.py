"""Helpers to write the JSON Schemas of items, results and explanations."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

Schema = Mapping[str, Any]

STRING: Final[Schema] = {"type": "string"}
NUMBER: Final[Schema] = {"type": "number"}
INTEGER: Final[Schema] = {"type": "integer"}


def array_of(items: Schema, **more: Any) -> dict[str, Any]:
    """Schema of a list; ``more`` are further keywords."""
    return {"type": "array", "items": items, **more}


def object_of(
    required: Mapping[str, Schema], optional: Mapping[str, Schema] = MappingProxyType({}), **more: Any
) -> dict[str, Any]:
    """Schema of an object with these properties; ``more`` are further keywords."""
    needed = {"required": list(required)} if required else {}
    return {"type": "object", **needed, "properties": {**required, **optional}, **more}
