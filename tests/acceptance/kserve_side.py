"""Runs where the package ``kserve`` is installed: its models as a JSON Schema, and as a judge of manifests.

``schema`` prints the schema of V1beta1InferenceService. ``judge FILE`` reads a list of manifests, builds the package's
own objects of each, and prints for each the first thing that is wrong, or null.
"""

from __future__ import annotations

import json
import re
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import kserve.models
import kubernetes.client
from kubernetes.client import ApiClient

ROOT = "V1beta1InferenceService"
QUANTITY = {"type": ["string", "number"], "pattern": r"^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$"}
"""A Kubernetes quantity (apimachinery, pkg/api/resource/quantity.go)."""

PLAIN: dict[str, dict[str, Any]] = {
    "str": {"type": "string"},
    "int": {"type": "integer"},
    "float": {"type": "number"},
    "bool": {"type": "boolean"},
    "object": {"type": ["integer", "string"]},
    "datetime": {"type": "string", "format": "date-time"},
    "ResourceQuantity": QUANTITY,
    "V1beta1MetricQuantity": QUANTITY,
    "IntstrIntOrString": {"type": ["integer", "string"]},
}
"""Types that neither package has a class for. The client of Kubernetes calls a number or a name (of a port) an object;
the one real object, of ``managedFields``, nobody writes by hand."""

PYTHON: dict[str, Any] = {
    "str": str,
    "int": int,
    "bool": bool,
    "object": (int, str),
    "ResourceQuantity": (int, float, str),
    "V1beta1MetricQuantity": (int, float, str),
}
"""The packages' own constructors do not look at types."""

RENAMED = re.compile(r"^K8sIoApi[A-Z][a-z]+(V\d)(?=[A-Z])")
"""kserve writes K8sIoApiAppsV1DeploymentStrategy where the client of Kubernetes has V1DeploymentStrategy."""


def find(name: str) -> Any:
    """The class of a type in either package; None when both only mention it."""
    for wanted in (name, RENAMED.sub(r"\1", name)):
        for module in (kserve.models, kubernetes.client):
            if (found := getattr(module, wanted, None)) is not None:
                return found
    return None


def inner(kind: str) -> tuple[str, str] | None:
    """``list`` or ``dict`` and what is inside; None for other types."""
    if match := re.fullmatch(r"list\[(.*)\]", kind):
        return "list", match[1]
    if match := re.fullmatch(r"dict[(\[]str, (.*)[)\]]", kind):
        return "dict", match[1]
    return None


def required(model: Any) -> list[str]:
    """The JSON names that an object of this class cannot be made without."""
    return sorted(name for attribute, name in model.attribute_map.items() if not _takes_none(model, attribute))


def _takes_none(model: Any, attribute: str) -> bool:
    blank = model.__new__(model)  # without arguments __init__ would stop at the first one
    blank.local_vars_configuration = kubernetes.client.Configuration()
    try:
        setattr(blank, attribute, None)
    except ValueError:
        return False
    return True


def schema() -> dict[str, Any]:
    """Everything that can be in an InferenceService."""
    definitions: dict[str, Any] = {}
    todo = [ROOT]
    while todo:
        name = todo.pop()
        if name not in definitions:
            definitions[name], more = _definition(name)
            todo += more
    made = {package: version(package) for package in ("kserve", "kubernetes")}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$comment": f"from the models of kserve {made['kserve']} and kubernetes {made['kubernetes']}",
        "$ref": f"#/$defs/{ROOT}",
        "$defs": dict(sorted(definitions.items())),
    }


def _definition(name: str) -> tuple[dict[str, Any], list[str]]:
    model = find(name)
    if model is None:
        return {"$comment": "mentioned only"}, []
    needed: list[str] = []
    properties = {
        model.attribute_map[attribute]: _type(kind, needed) for attribute, kind in model.openapi_types.items()
    }
    about = {"type": "object", "properties": properties, "required": required(model), "additionalProperties": False}
    return about, needed


def _type(kind: str, needed: list[str]) -> dict[str, Any]:
    if (within := inner(kind)) is not None:
        what = _type(within[1], needed)
        return {"type": "array", "items": what} if within[0] == "list" else {"additionalProperties": what}
    if kind in PLAIN:
        return PLAIN[kind]
    needed.append(kind)
    return {"$ref": f"#/$defs/{kind}"}


def build(kind: str, value: Any, where: str) -> Any:
    """``value`` as an object of the packages' own classes.

    Raises:
        ValueError: a field that the class does not have, or what the class itself says.
    """
    if (within := inner(kind)) is not None:
        if not isinstance(value, {"list": list, "dict": dict}[within[0]]):
            raise ValueError(f"{where}: expected {kind}, got {type(value).__name__}")
        if within[0] == "list":
            return [build(within[1], one, f"{where}[{place}]") for place, one in enumerate(value)]
        return {name: build(within[1], one, f"{where}.{name}") for name, one in value.items()}
    model = None if kind in PLAIN else find(kind)
    if model is None:
        if not isinstance(value, PYTHON.get(kind, object)):
            raise ValueError(f"{where}: expected {kind}, got {type(value).__name__}")
        return value
    if not isinstance(value, dict):
        raise ValueError(f"{where}: expected {kind}, got {type(value).__name__}")
    attributes = {name: attribute for attribute, name in model.attribute_map.items()}
    if unknown := value.keys() - attributes.keys():
        raise ValueError(f"{where}: {kind} has no {', '.join(sorted(unknown))}")
    types = model.openapi_types
    given = {attributes[name]: build(types[attributes[name]], one, f"{where}.{name}") for name, one in value.items()}
    try:
        return model(**given)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


def judge(manifest: Any) -> str | None:
    """What is wrong with a manifest; None when its object says the same as it does."""
    try:
        built = build(ROOT, manifest, "")
    except ValueError as error:
        return str(error)
    said = ApiClient().sanitize_for_serialization(built)
    return None if _said(said, manifest) == manifest else f"the object says something else: {said}"


def _said(value: Any, manifest: Any) -> Any:
    """``value`` without the empty names that the classes add by themselves."""
    if isinstance(value, dict) and isinstance(manifest, dict):
        return {name: _said(one, manifest.get(name)) for name, one in value.items() if one != "" or name in manifest}
    if isinstance(value, list) and isinstance(manifest, list) and len(value) == len(manifest):
        return [_said(one, other) for one, other in zip(value, manifest, strict=True)]
    return value


if __name__ == "__main__":
    if sys.argv[1] == "schema":
        found = schema()
        lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(about)}" for name, about in found.pop("$defs").items())
        print(f'{json.dumps(found)[:-1]}, "$defs": {{\n{lines}\n}}}}')
    else:
        print(json.dumps([judge(one) for one in json.loads(Path(sys.argv[2]).read_text(encoding="utf-8"))]))
