"""Rules over what TorchServe finds when it imports a handler module (ts/model_loader.py)."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator

from tsbatch.lint.findings import Found
from tsbatch.lint.handler_file import Function, HandlerFile, batch_name, calls, methods, name_of, names_in, top_level
from tsbatch.lint.registry import rule
from tsbatch.packaging.handler_files import WORKER_MODULES

DIES = "the worker dies while loading"
EXITS = {"sys.exit", "os._exit", "exit", "quit", "os.abort", "os.kill"}
PARSERS = ("parse_args", "parse_known_args")


@rule("handler-syntax", HandlerFile, "error", "a handler that is not Python", "No worker of the model loads.")
def syntax(file: HandlerFile) -> Iterator[Found]:
    """A syntax error."""
    if file.problem:
        yield Found(file.problem[0], f"not Python: {file.problem[1]}", f"{DIES}: SyntaxError")


@rule(
    "handler-no-class",
    HandlerFile,
    "error",
    "a handler module without a class",
    "TorchServe wants exactly one class defined in the module, or a function handle. Classes that are imported do not "
    "count.",
)
def no_class(file: HandlerFile) -> Iterator[Found]:
    """No class of its own and no function ``handle``."""
    if file.problem or file.classes or "handle" in _names(file) or file.imports_all:
        return
    imported = [name for name in _names(file) if name.endswith("Handler")]
    base = imported[0] if imported else "BaseHandler"
    right = f"class MyHandler({base}):\n    pass"
    yield Found(1, "no class is defined here", f"{DIES}: Expected only one class in custom service code", right)


@rule(
    "handler-two-classes",
    HandlerFile,
    "error",
    "a handler module with several classes",
    "Every class defined in the module counts: dataclasses, enums, exceptions and networks too. With more than one "
    "TorchServe does not choose.",
)
def two_classes(file: HandlerFile) -> Iterator[Found]:
    """Two or more classes at the top level."""
    if len(file.classes) > 1 and "handle" not in _names(file):
        names = ", ".join(node.name for node in file.classes)
        right = "move all but the handler's class into a module of its own and pass it with --extra-files"
        message = f"{len(file.classes)} classes: {names}"
        yield Found(file.classes[1].lineno, message, f"{DIES}: Expected only one class in custom service code", right)


@rule(
    "handler-module-handle",
    HandlerFile,
    "error",
    "a name handle beside the handler's class",
    "A module-level name handle wins: TorchServe calls it as a function and never makes an object of the class.",
)
def module_handle(file: HandlerFile) -> Iterator[Found]:
    """``handle`` at the top level together with a class that has one, or that is no function."""
    for node in top_level(file.tree.body):
        targets = node.targets if isinstance(node, ast.Assign) else []
        assigned = any(isinstance(target, ast.Name) and target.id == "handle" for target in targets)
        function = getattr(node, "name", None) == "handle" and not isinstance(node, ast.ClassDef)
        imported = isinstance(node, (ast.Import, ast.ImportFrom)) and any(
            (name.asname or name.name) == "handle" for name in node.names
        )
        owner = next(
            (each for each in file.classes if methods(each).keys() & {"handle", "initialize", "preprocess"}), None
        )
        if owner and (assigned or function or imported):
            effect = f"TorchServe calls this and never uses the class {owner.name}"
            yield Found(node.lineno, "the module has a name handle beside its class", effect, "rename it")


@rule(
    "handler-function-none",
    HandlerFile,
    "error",
    "a function handle that does not expect None",
    "TorchServe first calls a module-level handle with (None, context), to load the model.",
)
def function_none(file: HandlerFile) -> Iterator[Found]:
    """A function-style handler that never asks whether its data is None."""
    function = file.functions.get("handle")
    if function is None or file.classes:
        return
    data = batch_name(function)
    tests = [node.test for node in ast.walk(function) if isinstance(node, (ast.If, ast.IfExp, ast.While))]
    if data and not any(data in names_in(test) for test in tests):
        right = f"if {data} is None:\n        return None"
        yield Found(
            function.lineno, f"handle does not ask whether {data} is None", f"{DIES}: it is called with None", right
        )


@rule(
    "handler-name",
    HandlerFile,
    "error",
    "a handler file with a name that is taken",
    "TorchServe imports the handler by its bare name, from a path that starts with its own modules; one of Python's or "
    "TorchServe's own names imports that module instead.",
)
def taken_name(file: HandlerFile) -> Iterator[Found]:
    """``logging.py``, ``service.py``, ``context.py``."""
    stem = file.source.name.removesuffix(".py")
    if stem in WORKER_MODULES or stem in sys.stdlib_module_names:
        whose = "TorchServe's" if stem in WORKER_MODULES else "Python's"
        effect = f"the worker imports {whose} own {stem}, and {DIES.removeprefix('the worker ')}"
        yield Found(1, f"{stem} is the name of {whose} own module", effect, f"rename it to {stem}_handler.py")


@rule(
    "handler-relative-import",
    HandlerFile,
    "error",
    "a relative import",
    "The handler is imported as a module of its own, in no package: a relative import fails, and the last line in the "
    "log is the misleading No module named 'ts.torch_handler.<name>'.",
)
def relative_import(file: HandlerFile) -> Iterator[Found]:
    """``from .net import Net``."""
    for node in ast.walk(file.tree):
        if isinstance(node, ast.ImportFrom) and node.level:
            names = ", ".join(name.name for name in node.names)
            right = f"from {node.module} import {names}" if node.module else f"import {names}"
            message = f"{'.' * node.level}{node.module or ''} is imported relatively"
            yield Found(node.lineno, message, f"{DIES}: no known parent package", right)


@rule(
    "handler-argv",
    HandlerFile,
    "error",
    "command line arguments in a handler",
    "sys.argv of a worker are TorchServe's own (--sock-type, --sock-name, --metrics-config); argparse refuses them and "
    "ends the process.",
)
def argv(file: HandlerFile) -> Iterator[Found]:
    """``parse_args()`` without arguments, and ``sys.argv``."""
    for node in _at_import_or_in_classes(file):
        parses = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in PARSERS
        if (isinstance(node, ast.Call) and parses and not node.args and not node.keywords) or _is_argv(node):
            right = 'context.model_yaml_config["handler"]'
            effect = f"it sees TorchServe's own arguments; argparse ends the process and {DIES}"
            yield Found(getattr(node, "lineno", 1), "the handler reads the command line", effect, right)


def _is_argv(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and name_of(node) == "sys.argv"


def _at_import_or_in_classes(file: HandlerFile) -> Iterator[ast.AST]:
    """The nodes that a worker runs: not those of functions and blocks for running the file as a program."""
    for statement in file.tree.body:
        program = isinstance(statement, ast.If) and "__name__" in names_in(statement.test)
        unused = isinstance(statement, Function) and statement not in file.per_batch
        if not program and not unused:
            yield from ast.walk(statement)


@rule(
    "handler-exits",
    HandlerFile,
    "error",
    "a handler that ends its process",
    "The worker goes, with every request of the batch (500 Worker died) and with the loaded model.",
)
def exits(file: HandlerFile) -> Iterator[Found]:
    """``sys.exit()`` while handling requests."""
    for function in file.per_batch:
        for call in calls(function):
            if name_of(call.func) in EXITS:
                effect = "the worker dies, every request of the batch gets 500, the model is loaded again"
                yield Found(call.lineno, f"{name_of(call.func)} in {function.name}", effect, "raise ValueError(...)")


def _names(file: HandlerFile) -> list[str]:
    found: list[str] = []
    for node in top_level(file.tree.body):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            found += [name.asname or name.name for name in node.names]
        elif isinstance(node, ast.Assign):
            found += [target.id for target in node.targets if isinstance(target, ast.Name)]
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            found.append(node.name)
    return found
