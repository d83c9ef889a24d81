"""A Python with a few packages of this environment and nothing else, as on a server where tsbatch is not installed."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

UNDECLARED = {"requests", "PyYAML"}
"""What torchserve imports and does not declare: nobody's TorchServe runs without them."""


def with_needs(*roots: str) -> set[str]:
    """These packages and all that they need."""
    found: set[str] = set()
    todo = list(roots)
    while todo:
        name = canonicalize_name(todo.pop())
        if name not in found:
            found.add(name)
            needs = [Requirement(text) for text in distribution(name).requires or ()]
            todo += [need.name for need in needs if need.marker is None or need.marker.evaluate({"extra": ""})]
    return found


def python_with(folder: Path, *roots: str) -> Path:
    """A Python that has these packages, what they need, and nothing else."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    [site] = folder.glob("lib/python*/site-packages")
    for name in with_needs(*roots):
        package_files = distribution(name).files or ()
        for top in {file.parts[0] for file in package_files if file.parts[0] not in ("..", "__pycache__")}:
            source = Path(str(distribution(name).locate_file(top)))
            if not (site / top).exists():
                (site / top).symlink_to(source)
    return folder / "bin" / "python"


def has(python: Path, module: str) -> bool:
    """Whether that Python can import the module."""
    return subprocess.run([python, "-c", f"import {module}"], capture_output=True, check=False).returncode == 0
