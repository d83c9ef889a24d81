"""The structure of the package: sizes, names, and imports without a circle."""

from __future__ import annotations

import ast
from collections import Counter
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import tsbatch

PACKAGE = Path(tsbatch.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))
FOLDERS = sorted({path.parent for path in MODULES})

MAX_MODULES, MAX_IN_ROOT = 20, 12
MAX_LINES, MAX_LINES_OF_A_FUNCTION = 350, 60

SAME_ROLE = {
    "advice": "what follows from the figures of a check, or of a diagnosis",
    "findings": "what a check found, or lint",
    "handler": "the class to subclass, and the front end that the tasks of one kind of input share",
    "page": "the result of a command as text",
    "run": "one whole run of a command",
}
"""Names that several packages have, and the role that each of them plays there."""


def name_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


NAMES = {name_of(path): path for path in MODULES}


def imports(path: Path) -> set[str]:
    """The modules of tsbatch that a file imports, anywhere in it, for types alone too."""
    found = set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                found.add(whole if whole in NAMES else node.module)
    return found & NAMES.keys()


def test_no_imports_run_in_a_circle():
    graph = {name: imports(path) for name, path in NAMES.items()}
    assert sum(map(len, graph.values())) > 1000
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_no_folder_has_too_many_modules(folder):
    assert len(list(folder.glob("*.py"))) <= (MAX_IN_ROOT if folder == PACKAGE else MAX_MODULES)


def test_no_module_is_too_long():
    lines = {name: len(path.read_text(encoding="utf-8").splitlines()) for name, path in NAMES.items()}
    assert {name: count for name, count in lines.items() if count > MAX_LINES} == {}


def test_no_function_is_too_long():
    functions = {
        f"{name}.{node.name}": node.end_lineno - node.lineno + 1
        for name, path in NAMES.items()
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert len(functions) > 2000
    assert {name: count for name, count in functions.items() if count > MAX_LINES_OF_A_FUNCTION} == {}


def test_one_name_is_one_thing():
    names = Counter(path.stem for path in MODULES if not path.stem.startswith("_"))
    # Two documented import paths forward to modules of the same name.
    twice = {name for name, count in names.items() if count > 1} - {"pytest_plugin", "runner"}
    assert twice == SAME_ROLE.keys()
