"""Rules for what TorchServe finds when it imports a handler module (ts/model_loader.py)."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator

from tsbatch.lint.findings import Issue
from tsbatch.lint.handler_file import HandlerFile, batch_name, methods, name_of, names_in
from tsbatch.lint.registry import rule
from tsbatch.packaging.handler_files import WORKER_MODULES, Function, bound_names, top_level

DIES = "the worker dies while loading"
NOT_ONE_CLASS = f"{DIES}: Expected only one class in custom service code"
EXITS = {"sys.exit", "os._exit", "exit", "quit", "os.abort", "os.kill"}
PARSERS = ("parse_args", "parse_known_args")


def _names(file: HandlerFile) -> list[str]:
    return [name for statement in top_level(file.tree.body) for name in bound_names(statement)]


@rule("handler-syntax", HandlerFile, "error")
def syntax(file: HandlerFile) -> Iterator[Issue]:
    """A handler that is not valid Python.

    No worker of the model loads.
    """
    if file.problem:
        yield Issue(file.problem[0], f"not valid Python: {file.problem[1]}", f"{DIES}: SyntaxError")


@rule("handler-no-class", HandlerFile, "error")
def no_class(file: HandlerFile) -> Iterator[Issue]:
    """A handler module without a class.

    TorchServe expects exactly one class defined in the module, or a function handle. Imported classes do not count.
    """
    names = _names(file)
    if not (file.problem or file.classes or "handle" in names or file.imports_all):
        base = next((name for name in names if name.endswith("Handler")), "BaseHandler")
        yield Issue(1, "no class is defined here", NOT_ONE_CLASS, f"class MyHandler({base}):\n    pass")


@rule("handler-two-classes", HandlerFile, "error")
def two_classes(file: HandlerFile) -> Iterator[Issue]:
    """A handler module with several classes.

    Every class defined in the module counts, including dataclasses, enums, exceptions and networks. If there is more
    than one, TorchServe does not choose.
    """
    if len(file.classes) > 1 and "handle" not in _names(file):
        message = f"{len(file.classes)} classes: {', '.join(node.name for node in file.classes)}"
        right = "move all but the handler's class into a module of its own and pass it with --extra-files"
        yield Issue(file.classes[1].lineno, message, NOT_ONE_CLASS, right)


@rule("handler-module-handle", HandlerFile, "error")
def module_handle(file: HandlerFile) -> Iterator[Issue]:
    """A module-level name handle next to the handler's class.

    A module-level name handle wins: TorchServe calls it as a function and never instantiates the class.
    """
    owner = next((each for each in file.classes if methods(each).keys() & {"handle", "initialize", "preprocess"}), None)
    for statement in top_level(file.tree.body):
        if owner and "handle" in bound_names(statement):
            effect = f"TorchServe calls this and never uses the class {owner.name}"
            yield Issue(statement.lineno, "the module has a name handle next to its class", effect, "rename it")


@rule("handler-function-none", HandlerFile, "error")
def function_none(file: HandlerFile) -> Iterator[Issue]:
    """A function handle that does not expect None.

    To load the model, TorchServe first calls a module-level handle with (None, context).
    """
    function = file.functions.get("handle")
    if function is None or file.classes:
        return
    data = batch_name(function)
    tests = [node.test for node in ast.walk(function) if isinstance(node, (ast.If, ast.IfExp, ast.While))]
    if data and not any(data in names_in(test) for test in tests):
        right = f"if {data} is None:\n        return None"
        message = f"handle does not check whether {data} is None"
        yield Issue(function.lineno, message, f"{DIES}: it is called with None", right)


@rule("handler-name", HandlerFile, "error")
def taken_name(file: HandlerFile) -> Iterator[Issue]:
    """A handler file whose name is taken.

    TorchServe imports the handler by its bare name, from a path that starts with its own modules; with the name of one
    of Python's or TorchServe's own modules, it imports that module instead.
    """
    stem = file.source.name.removesuffix(".py")
    if stem in WORKER_MODULES or stem in sys.stdlib_module_names:
        whose = "TorchServe's" if stem in WORKER_MODULES else "Python's"
        effect = f"the worker imports {whose} own {stem}, and {DIES.removeprefix('the worker ')}"
        yield Issue(1, f"{stem} is the name of {whose} own module", effect, f"rename it to {stem}_handler.py")


@rule("handler-relative-import", HandlerFile, "error")
def relative_import(file: HandlerFile) -> Iterator[Issue]:
    """A relative import.

    TorchServe imports the handler as a top-level module, outside any package: a relative import fails, and the last
    line in the log is the misleading No module named 'ts.torch_handler.<name>'.
    """
    for node in ast.walk(file.tree):
        if isinstance(node, ast.ImportFrom) and node.level:
            names = ", ".join(name.name for name in node.names)
            right = f"from {node.module} import {names}" if node.module else f"import {names}"
            message = f"relative import of {'.' * node.level}{node.module or ''}"
            yield Issue(node.lineno, message, f"{DIES}: no known parent package", right)


@rule("handler-argv", HandlerFile, "error")
def argv(file: HandlerFile) -> Iterator[Issue]:
    """Command line arguments in a handler.

    The sys.argv of a worker holds TorchServe's own arguments (--sock-type, --sock-name, --metrics-config); argparse
    rejects them and ends the process.
    """
    for node in _running_nodes(file):
        parses = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in PARSERS
        reads = isinstance(node, ast.Attribute) and name_of(node) == "sys.argv"
        if reads or (isinstance(node, ast.Call) and parses and not node.args and not node.keywords):
            right = 'context.model_yaml_config["handler"]'
            effect = f"it sees TorchServe's own arguments; argparse ends the process and {DIES}"
            yield Issue(getattr(node, "lineno", 1), "the handler reads the command line", effect, right)


def _running_nodes(file: HandlerFile) -> Iterator[ast.AST]:
    """The nodes that a worker runs: not those of unused functions and of blocks for running the file as a script."""
    for statement in file.tree.body:
        script = isinstance(statement, ast.If) and "__name__" in names_in(statement.test)
        unused = isinstance(statement, Function) and statement not in file.per_batch
        if not script and not unused:
            yield from ast.walk(statement)


@rule("handler-exits", HandlerFile, "error")
def exits(file: HandlerFile) -> Iterator[Issue]:
    """A handler that ends its process.

    The worker dies, with every request of the batch (500 Worker died) and with the loaded model.
    """
    for function, call, name in file.batch_calls():
        if name in EXITS:
            effect = "the worker dies, every request of the batch gets 500, and the model is loaded again"
            yield Issue(call.lineno, f"{name} in {function.name}", effect, "raise ValueError(...)")
