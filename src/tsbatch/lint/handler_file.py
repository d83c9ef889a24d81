"""The syntax tree of a handler module, which is parsed but never run."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from tsbatch.lint.documents import Document, Machine, Source
from tsbatch.packaging.handler_files import Function, top_level

STAGES = ("handle", "preprocess", "inference", "postprocess", "decode_request", "collate", "encode_response")
"""The methods that run for every batch; the last three are BatchHandler's."""
LOADING = {"initialize", "__init__", "load_model", "prepare", "warm_up", "setup"}


@dataclass(frozen=True)
class HandlerFile(Document):
    """The module that TorchServe imports; ``problem`` is the line and cause of a syntax error."""

    tree: ast.Module
    problem: tuple[int, str] | None = None

    @cached_property
    def classes(self) -> list[ast.ClassDef]:
        """The classes that TorchServe counts: those defined at the top level."""
        found = (node for node in top_level(self.tree.body) if isinstance(node, ast.ClassDef))
        return list({node.name: node for node in found}.values())

    @cached_property
    def functions(self) -> dict[str, Function]:
        """The functions at the top level, by name."""
        return {node.name: node for node in top_level(self.tree.body) if isinstance(node, Function)}

    @cached_property
    def uses_tsbatch(self) -> bool:
        """Whether the handler is built on tsbatch, which then does what a BaseHandler must do itself."""
        modules = [node.module or "" for node in ast.walk(self.tree) if isinstance(node, ast.ImportFrom)]
        modules += [name.name for node in ast.walk(self.tree) if isinstance(node, ast.Import) for name in node.names]
        return any(module.partition(".")[0] == "tsbatch" for module in modules)

    @cached_property
    def imports_all(self) -> bool:
        """Whether a star import brings in names that cannot be seen here."""
        found = [node for node in top_level(self.tree.body) if isinstance(node, ast.ImportFrom)]
        return any(name.name == "*" for node in found for name in node.names)

    @cached_property
    def per_batch(self) -> list[Function]:
        """The functions that run for every batch: the stages, and what they call in their own class and module."""
        seen: dict[str, Function] = {}
        for members in (*map(methods, self.classes), self.functions):
            waiting = [members[name] for name in STAGES if name in members]
            while waiting:
                function = waiting.pop()
                if function.name in LOADING or f"{id(members)}{function.name}" in seen:
                    continue
                seen[f"{id(members)}{function.name}"] = function
                called = {name for call in calls(function) if (name := _own_name(call))}
                waiting += [known[name] for name in called for known in (members, self.functions) if name in known]
        return list({id(function): function for function in seen.values()}.values())

    def batch_calls(self) -> Iterator[tuple[Function, ast.Call, str]]:
        """Yield each call that runs for every batch: the function that it is in, the call, and the dotted name."""
        for function in self.per_batch:
            for call in calls(function):
                yield function, call, name_of(call.func) or ""

    def stage(self, name: str) -> Iterator[Function]:
        """Yield every definition of one stage."""
        for node in self.classes:
            if name in methods(node):
                yield methods(node)[name]
        if name in self.functions:
            yield self.functions[name]


def read_handler(source: Source, machine: Machine) -> HandlerFile:
    """Parse a Python file; a syntax error becomes its ``problem``."""
    try:
        return HandlerFile(source, machine, ast.parse(source.data, filename=source.path))
    except (SyntaxError, ValueError, RecursionError) as error:
        line = getattr(error, "lineno", None) or 1
        why = getattr(error, "msg", None) or str(error)
        return HandlerFile(source, machine, ast.Module([], []), (line, why))


def looks_like_handler(file: HandlerFile) -> bool:
    """Return whether TorchServe would import a module in a folder as a handler, rather than a handler import it.

    A module in a package is no handler, because TorchServe imports handlers by their bare name; nor is a test.
    """
    in_package = file.source.real is not None and (file.source.real.parent / "__init__.py").exists()
    if in_package or file.source.name.startswith(("test_", "conftest")):
        return False
    stages = {"handle", "initialize", "preprocess", "postprocess"}
    bases = [name_of(base) or "" for node in file.classes for base in node.bases]
    named = any(base.endswith("Handler") and not base.startswith("logging.") for base in bases)
    has = any(methods(node).keys() & stages for node in file.classes)
    return named or has or "handle" in file.functions or file.source.name.lower().endswith("handler.py")


def methods(node: ast.ClassDef) -> dict[str, Function]:
    """Return the methods that a class itself defines."""
    return {part.name: part for part in node.body if isinstance(part, Function)}


def batch_name(function: Function) -> str | None:
    """Return the name of the parameter with the batch: the first one after self."""
    names = [argument.arg for argument in function.args.args]
    names = names[1:] if names[:1] in (["self"], ["cls"]) else names
    return names[0] if names else None


def calls(node: ast.AST) -> Iterator[ast.Call]:
    """Yield every call below a node."""
    return (part for part in ast.walk(node) if isinstance(part, ast.Call))


def name_of(node: ast.AST) -> str | None:
    """Return ``a.b.c`` for such an expression, None for any other."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        inner = name_of(node.value)
        return f"{inner}.{node.attr}" if inner else None
    return None


def last_name(call: ast.Call) -> str:
    """Return the name of the method that is called, empty for a plain function."""
    return call.func.attr if isinstance(call.func, ast.Attribute) else ""


def _own_name(call: ast.Call) -> str | None:
    """The function or method of the module itself that is called: ``f()`` or ``self.f()``."""
    name = name_of(call.func) or ""
    return name.removeprefix("self.") if name.count(".") == name.startswith("self.") else None


def names_in(node: ast.AST) -> set[str]:
    """Return every plain name below a node."""
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
