"""The public names of a package that may be arranged in any way: where something is defined never shows."""

from __future__ import annotations

import ast
import builtins
import functools
import importlib
import importlib.metadata
import inspect
import pkgutil
import re
import sys
import textwrap
import types
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FunctionType, MethodType, ModuleType
from typing import Any

import tsbatch

PACKAGE = Path(tsbatch.__file__).parent
ROOT = Path(__file__).resolve().parents[2]
IMPORT = re.compile(r"^\s*from (tsbatch[\w.]*) import \(?([\w, ]+)", re.MULTILINE)
DOCUMENTED = ("README.md", "docs/**/*", "handlers/*", "src/tsbatch/**/*.tmpl")
"""Where people read which names to import."""
INTERNAL: dict[str, Any] = {
    "typer application": "build_app",
    "settings": "Settings",
    "classes that docstrings offer": ("Call", "WorkerDied"),
    "not for others": tuple(
        f"tsbatch.{name}." for name in ("simulation", "archive", "packaging", "serving", "operations")
    ),
    "alerts": "alerts.yaml",
    "dashboard": "grafana.json",
}
"""All that this folder knows of how the package is arranged.

A function beside that of the console script; the pydantic class of the section ``tsbatch:``, wherever it is; classes
that docstrings of public names offer and no annotation names; modules that are not for others, of which the
documentation names some to say how its figures were made; and files, wherever they are.
"""
DOTTED = re.compile(r"\b(?:[a-z_]\w*\.)+(?=[A-Za-z_]\w*)")
PLAIN = (str, bytes, int, float, bool, type(None))


def public_names() -> dict[str, Any]:
    """Each name of ``tsbatch`` and ``tsbatch.ray``, of the pytest plugin, and of the classes that they speak of."""
    there = {f"tsbatch.{name}": getattr(tsbatch, name) for name in tsbatch.__all__ if name != "__version__"}
    ray = importlib.import_module("tsbatch.ray")
    there |= {f"tsbatch.ray.{name}": getattr(ray, name) for name in ray.__all__}
    plugin = entry_points("pytest11")["tsbatch"].load()
    there |= {f"pytest: {name}": getattr(plugin, name) for name in plugin.__all__}
    found = {name: described(value) for name, value in there.items()}
    found["tsbatch.__version__"] = {"kind": "str"}
    return found | {f"spoken of: {cls.__name__}": described(cls) for cls in spoken_of(list(there.values()))}


def imports_in_the_documentation() -> dict[str, list[str]]:
    """Module: the names that the documentation, the handler files and the starter folder import from it."""
    found: dict[str, set[str]] = {}
    paths = sorted(path for pattern in DOCUMENTED for path in ROOT.glob(pattern) if path.is_file())
    for path in paths:
        for module, names in IMPORT.findall(path.read_text(encoding="utf-8", errors="replace")):
            if not module.startswith(INTERNAL["not for others"]):
                found.setdefault(module, set()).update(re.findall(r"\w+", names))
    for name in pkgutil.iter_modules([str(PACKAGE / "tasks")]):
        if not name.ispkg:
            module = importlib.import_module(f"tsbatch.tasks.{name.name}")
            handlers = [each for each in vars(module) if each.endswith("Handler") and is_from(module, each)]
            found.setdefault(module.__name__, set()).update(handlers)
    return {module: sorted(names) for module, names in sorted(found.items()) if names}


def is_from(module: ModuleType, name: str) -> bool:
    """Whether a module defines this name itself."""
    return getattr(getattr(module, name), "__module__", None) == module.__name__


def entry_points(group: str) -> dict[str, importlib.metadata.EntryPoint]:
    """Those of tsbatch, by name."""
    mine = importlib.metadata.distribution("tsbatch").entry_points
    return {point.name: point for point in mine if point.group == group}


def all_entry_points() -> dict[str, dict[str, str]]:
    """Group: name: what it leads to."""
    groups = sorted({point.group for point in importlib.metadata.distribution("tsbatch").entry_points})
    return {group: {name: point.value for name, point in sorted(entry_points(group).items())} for group in groups}


# ---- what a name is ---------------------------------------------------------------------------------------------


def described(value: Any) -> dict[str, Any]:
    """A class, a function or a fixture, as whoever uses it sees it."""
    if isinstance(value, type):
        return described_class(value)
    if type(value).__name__ == "FixtureFunctionDefinition":
        return {"kind": "pytest fixture", "scope": value._fixture_function_marker.scope}
    return {"kind": "function", **signature(value)}


def described_class(cls: type) -> dict[str, Any]:
    """Its constructor, and its public methods and attributes, whichever class of tsbatch has them."""
    bases = [base for base in cls.__mro__ if of_tsbatch(base)]
    known = [name for base in reversed(bases) for name in vars(base) if is_public(name)]
    members = {name: described_member(cls, name) for name in dict.fromkeys(known)}
    for base in reversed(bases):
        for name, annotation in inspect.get_annotations(base).items():
            if is_public(name):
                members.setdefault(name, {"kind": "attribute"})
                if members[name]["kind"] == "attribute":
                    members[name]["type"] = type_text(annotation)
        for name in set_on_self(base):
            members.setdefault(name, {"kind": "attribute"})
    outside = [base.__name__ for base in cls.__mro__ if not of_tsbatch(base) and base is not object]
    public = [base.__name__ for base in bases[1:] if base.__name__ in tsbatch.__all__]
    operators = sorted(name for base in bases for name in vars(base) if is_operator(name))
    return {
        "kind": "class",
        "bases": [*public, *(name for name in outside if name != "Generic")],
        "init": made_with(cls),
        "operators": sorted(set(operators)),
        "members": dict(sorted(members.items())),
    }


def of_tsbatch(cls: type) -> bool:
    """Whether it is defined here."""
    return cls.__module__.partition(".")[0] == "tsbatch"


def made_with(cls: type) -> list[str] | None:
    """The parameters of its constructor; None when it has none of its own, or is never called."""
    makers = [vars(base)["__init__"] for base in cls.__mro__ if of_tsbatch(base) and "__init__" in vars(base)]
    return signature(makers[0])["parameters"] if makers and not getattr(cls, "_is_protocol", False) else None


def is_public(name: str) -> bool:
    """Whether it is for others."""
    return not name.startswith("_")


def is_operator(name: str) -> bool:
    """Whether it is a method that Python calls, and that says something about how a class is used."""
    return name in {
        *("__enter__", "__exit__", "__call__", "__getitem__", "__iter__", "__len__", "__contains__", "__getattr__"),
        *("__aenter__", "__aexit__"),
    }


def described_member(cls: type, name: str) -> dict[str, Any]:
    """One public name of a class."""
    value = inspect.getattr_static(cls, name)
    if isinstance(value, (classmethod, staticmethod)):
        return {"kind": type(value).__name__, **signature(value.__func__)}
    if isinstance(value, FunctionType):
        return {"kind": "method", **signature(value)}
    if isinstance(value, (property, functools.cached_property)):
        getter = value.fget if isinstance(value, property) else value.func
        return {"kind": "property", "type": signature(getter)["returns"]}
    told: dict[str, Any] = {"kind": "attribute"}
    if isinstance(value, PLAIN) or (isinstance(value, (tuple, frozenset)) and not value):
        told["value"] = repr(value)
    return told


def set_on_self(cls: type) -> list[str]:
    """Public attributes that its methods set."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(cls)))
    except (OSError, TypeError):
        return []
    targets = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)]
    mine = [node.attr for node in targets if isinstance(node.value, ast.Name) and node.value.id == "self"]
    return [name for name in mine if is_public(name)]


def signature(value: Any) -> dict[str, Any]:
    """Parameters and what is returned, in unqualified names."""
    found = inspect.signature(value)
    parameters = [parameter_text(one) for one in found.parameters.values() if one.name not in ("self", "cls")]
    kinds = [one.kind for one in found.parameters.values() if one.name not in ("self", "cls")]
    star = next((place for place, kind in enumerate(kinds) if kind is inspect.Parameter.KEYWORD_ONLY), None)
    if star is not None and inspect.Parameter.VAR_POSITIONAL not in kinds:
        parameters.insert(star, "*")
    return {"parameters": parameters, "returns": type_text(found.return_annotation)}


def parameter_text(parameter: inspect.Parameter) -> str:
    """One parameter, as in source."""
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
    text = f"{stars}{parameter.name}: {type_text(parameter.annotation)}"
    return text if parameter.default is parameter.empty else f"{text} = {default_text(parameter.default)}"


def default_text(value: Any) -> str:
    """A default; of an object only what it is."""
    text = repr(value)
    return f"<{type(value).__name__}>" if " at 0x" in text or text.startswith("<") else DOTTED.sub("", text)


def type_text(annotation: Any) -> str:
    """An annotation without the modules of its names, and alike in every version of Python."""
    if annotation in (inspect.Parameter.empty, inspect.Signature.empty):
        return "-"
    if isinstance(annotation, str):
        return DOTTED.sub("", annotation if "Literal" in annotation else annotation.replace("'", ""))
    if hasattr(annotation, "__members__"):
        return f"Literal{[member.value for member in annotation]}"
    origin, parts = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        return " | ".join(type_text(part) for part in parts)
    if parts and origin is not typing.Literal and not isinstance(parts[0], list):
        return f"{DOTTED.sub('', inspect.formatannotation(origin))}[{', '.join(map(type_text, parts))}]"
    return DOTTED.sub("", inspect.formatannotation(annotation)).replace("NoneType", "None")


# ---- the classes that public names speak of -----------------------------------------------------------------------


def spoken_of(values: list[Any]) -> list[type]:
    """The classes of tsbatch in the signatures of these and of each other, but these."""
    found = {name: cls for name in INTERNAL["classes that docstrings offer"] for cls in classes_named(name)}
    waiting = [*values, *found.values()]
    while waiting:
        for cls in classes_in(waiting.pop()):
            if cls.__name__ not in found and cls not in values:
                found[cls.__name__] = cls
                waiting.append(cls)
    return [found[name] for name in sorted(found)]


def classes_in(value: Any) -> Iterator[type]:
    """The classes of tsbatch that annotations of the public part of ``value`` name."""
    for module, annotation in annotations_of(value):
        for name in re.findall(r"[A-Za-z_]\w*", annotation):
            cls = resolved(module, name)
            if isinstance(cls, type) and of_tsbatch(cls) and is_public(name):
                yield cls


def annotations_of(value: Any) -> Iterator[tuple[str, str]]:
    """Annotations, each with the module that it stands in."""
    if isinstance(value, type):
        for base in (base for base in value.__mro__ if of_tsbatch(base)):
            for name, annotation in inspect.get_annotations(base).items():
                if is_public(name):
                    yield base.__module__, str(annotation)
            for name, member in vars(base).items():
                if is_public(name):
                    yield from annotations_of(getattr(member, "__func__", getattr(member, "fget", member)))
    elif isinstance(value, (FunctionType, MethodType)) and value.__module__.startswith("tsbatch"):
        yield from ((value.__module__, str(each)) for each in inspect.get_annotations(value).values())


def resolved(module: str, name: str) -> Any:
    """What a name means in a module, also when only type checkers import it."""
    if hasattr(builtins, name):
        return None
    if name in vars(sys.modules[module]):
        return vars(sys.modules[module])[name]
    home = imported_names(module).get(name)
    return getattr(importlib.import_module(home), name, None) if home else None


@functools.cache
def imported_names(module: str) -> Mapping[str, str]:
    """Name: the module of tsbatch that it is imported from, anywhere in a module."""
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    froms = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    mine = [node for node in froms if (node.module or "").startswith("tsbatch")]
    return {alias.name: str(node.module) for node in mine for alias in node.names}


def classes_named(name: str) -> list[type]:
    """The classes of this name anywhere in the package; only modules that define one are imported."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        if any(isinstance(node, ast.ClassDef) and node.name == name for node in tree.body):
            parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
            module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            found.append(getattr(importlib.import_module(module), name))
    return found
