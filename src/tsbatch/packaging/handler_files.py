"""Find and check the handler file that TorchServe imports: a ready-made task's or the user's own.

TorchServe imports the file by its bare name, in a worker whose import path starts with the folder of the ``ts`` package
and then the unpacked archive. It expects exactly one class defined in it, or a function ``handle``
(ts/model_loader.py). A file that breaks these rules fails only in the worker, with a misleading message, so it is
checked here.
"""

from __future__ import annotations

import ast
import importlib.util
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path

from tsbatch.errors import UsageError

WORKER_MODULES = frozenset(
    (
        *("arg_parser", "async_service", "context", "handler_utils", "launcher", "llm_launcher", "metrics"),
        *("model_loader", "model_server", "model_service", "model_service_worker", "protocol", "service"),
        *("torch_handler", "utils", "version"),
    )
)
"""Modules in the folder of ``ts`` 0.12.0, which comes before the archive on the worker's import path."""

Function = ast.FunctionDef | ast.AsyncFunctionDef

PACKAGE = Path(__file__).resolve().parents[1]
FOLDERS = (PACKAGE / "handlers", PACKAGE.parents[1] / "handlers")
"""The entry modules of the ready-made tasks: inside the package if it is installed, next to src in a clone."""


def entry_files() -> dict[str, Path]:
    """Return the entry module of each ready-made task."""
    for folder in FOLDERS:
        found = {path.stem.replace("_", "-"): path for path in sorted(folder.glob("*.py"))}
        if found:
            return found
    return {}


def entry_file(task: str) -> Path:
    """Return the entry module of a ready-made task.

    Raises:
        UsageError: there is no such task.
    """
    files = entry_files()
    if task not in files:
        raise UsageError(f"there is no task {task!r}; the ready-made tasks are: {', '.join(files) or 'none'}")
    return files[task]


def check_handler(handler: Path) -> None:
    """Check a user's handler file by TorchServe's rules, without running it.

    Raises:
        UsageError: it is missing, is not Python, would not be the module that the worker imports, or does not define
            exactly one class or a function ``handle``.
    """
    statements = _statements("--handler", handler)
    if {"handle", "*"}.isdisjoint(name for statement in statements for name in bound_names(statement)):
        _check_one_class("--handler", handler, statements, "MyHandler")


def check_model_file(path: Path) -> None:
    """Check the file with the model's class in the same way.

    Raises:
        UsageError: it is missing, is not Python, would not be the module that the worker imports, or does not define
            exactly one class.
    """
    _check_one_class("--model-file", path, _statements("--model-file", path), "MyModel")


def _statements(option: str, path: Path) -> list[ast.stmt]:
    if not path.is_file():
        raise UsageError(f"{option} {path}: no such file; give the path of a Python file")
    if path.suffix != ".py" or "." in path.stem:
        raise UsageError(f"{option} {path}: the file must be called NAME.py, with no other dot")
    _check_name(option, path)
    try:
        tree = ast.parse(path.read_bytes(), filename=str(path))
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        raise UsageError(f"{option} {path}{f', line {line}' if line else ''}: not Python: {error}") from None
    return list(top_level(tree.body))


def _check_name(option: str, path: Path) -> None:
    name = path.stem
    if name in sys.builtin_module_names or name in sys.stdlib_module_names:
        raise UsageError(f"{option} {path}: Python's own module {name!r} would be imported instead; rename the file")
    if name in WORKER_MODULES:
        raise UsageError(f"{option} {path}: TorchServe's own {name}.py would be imported instead; rename the file")
    if _installed(name):
        raise UsageError(f"{option} {path}: it would hide the installed package {name!r}; rename the file")


def _installed(name: str) -> bool:
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return False
    if spec is None or spec.origin is None:
        return False
    homes = {Path(sysconfig.get_path(key)).resolve() for key in ("purelib", "platlib")}
    return any(home in Path(spec.origin).resolve().parents for home in homes)


def _check_one_class(option: str, path: Path, statements: list[ast.stmt], example: str) -> None:
    classes = list(dict.fromkeys(node.name for node in statements if isinstance(node, ast.ClassDef)))
    if len(classes) != 1:
        found = f"{len(classes)} classes ({', '.join(classes)})" if classes else "no class"
        raise UsageError(
            f"{option} {path}: defines {found}; TorchServe expects exactly one, and imported ones do not count "
            f"(write 'class {example}(Imported): pass', and move other classes into a separate module)"
        )


def top_level(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements that run at import, including those in branches."""
    for statement in body:
        yield statement
        if isinstance(statement, (ast.If, ast.Try, ast.With)):
            for _, value in ast.iter_fields(statement):
                for part in value if isinstance(value, list) else ():
                    if isinstance(part, ast.ExceptHandler):
                        yield from top_level(part.body)
                    elif isinstance(part, ast.stmt):
                        yield from top_level([part])


def bound_names(statement: ast.stmt) -> list[str]:
    """Return the names that a statement binds, except the name of a class; ``*`` for a star import."""
    if isinstance(statement, (ast.Import, ast.ImportFrom)):
        return [name.asname or name.name for name in statement.names]
    if isinstance(statement, ast.Assign):
        return [target.id for target in statement.targets if isinstance(target, ast.Name)]
    return [statement.name] if isinstance(statement, Function) else []
