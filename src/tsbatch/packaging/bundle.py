"""Put the part of tsbatch that a worker needs, with its dependencies, into an archive.

The archive then runs on servers where nothing can be installed. The packages are at the archive's root, which is on the
worker's PYTHONPATH. They are copied from this environment, so they are built for this Python and platform; torch,
torchserve and transformers come from the server.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from importlib.metadata import Distribution, PackageNotFoundError, distribution, packages_distributions
from pathlib import Path, PurePosixPath
from typing import Any

from tsbatch import _bundled
from tsbatch._version import __version__
from tsbatch.archive.file_set import Contents
from tsbatch.archive.model_folder import clutter, walk
from tsbatch.archive.planned_archive import Archive
from tsbatch.errors import UsageError
from tsbatch.packaging.requirements import needs

NEEDED = ("numpy", "orjson", "pydantic", "PyYAML", "safetensors", *(("tomli",) if sys.version_info < (3, 11) else ()))
"""What a worker imports in addition to torch."""

FROM_SERVER = frozenset({"torch", "torchserve", "transformers"})
WITH_TRANSFORMERS = frozenset({"numpy", "pyyaml", "safetensors", "tokenizers"})
"""Dependencies of transformers itself, so they are installed wherever it is."""

FOR_WORKERS = frozenset({"protocol", "batching", "models", "worker", "tasks"})
"""The packages that a worker imports. Each goes in complete or not at all: ``check`` takes those that are missing from
the installed tsbatch (tsbatch.check.child_process)."""
NOT_FOR_WORKERS = frozenset({"__main__.py", "pytest_plugin.py", "runner.py"})
"""Modules at the root of tsbatch that a worker does not import."""
INSTALLATION_FILES = frozenset({"RECORD", "INSTALLER", "REQUESTED", "direct_url.json"})
"""Files that differ between installations of the same version."""


def with_bundle(archive: Archive) -> Archive:
    """Return the archive with everything that its worker needs beyond torch, torchserve and transformers.

    Raises:
        UsageError: a needed package is not installed here, or the archive has a file of the same name.
    """
    found = worker_packages(archive.config["tsbatch"], why="--bundle")
    files: dict[str, Path | bytes] = dict(own_files())
    for package in found:
        files.update(_files_of(package))
    names = sorted({"tsbatch", *(PurePosixPath(name).parts[0].removesuffix(".py") for name in files)})
    contents = Contents({})
    for name, file in [*archive.files.items(), *files.items(), (_bundled.NAME, _bundled.text(names))]:
        contents.add(name, file)
    packages = {_canonical(package.name): package.version for package in found}
    about = {"made_for": _bundled.python_and_platform(), "packages": {"tsbatch": __version__, **packages}}
    note = f"bundled for {about['made_for']}: " + ", ".join(f"{name} {number}" for name, number in packages.items())
    return replace(
        archive, files=contents.files, about={**archive.about, "bundle": about}, notes=[*archive.notes, note]
    )


def worker_packages(section: Mapping[str, Any], *, why: str) -> list[Distribution]:
    """Return what a worker imports beyond torch, torchserve and, for a transformers model, transformers' dependencies.

    Args:
        section: the section ``tsbatch:`` of the archive's model-config.yaml.
        why: the option that needs them, for the error message.

    Raises:
        UsageError: one of them is not installed here.
    """
    wanted = needs(section.get("task"))
    absent = WITH_TRANSFORMERS if wanted.transformers else frozenset()
    roots = [*NEEDED, *wanted.packages, *_engine_packages(section.get("engine", "eager"))]
    kept = [root for root in roots if _canonical(root) not in absent]
    return _with_dependencies(kept, FROM_SERVER | absent, why)


def _engine_packages(name: str) -> list[str]:
    if name == "eager":
        return []
    from tsbatch.models.engines import find_engine

    homes = packages_distributions()
    return [home for module in find_engine(name).needs for home in homes.get(module, [module])]


def _with_dependencies(roots: Iterable[str], skipped: frozenset[str], why: str) -> list[Distribution]:
    """Return the distributions and all their dependencies, sorted by name."""
    from packaging.requirements import Requirement

    found: dict[str, Distribution] = {}
    todo = list(roots)
    while todo:
        name = _canonical(todo.pop())
        if name in found or name in skipped:
            continue
        try:
            found[name] = distribution(name)
        except PackageNotFoundError:
            raise UsageError(f"{why}: the package {name} is not installed here: pip install {name}") from None
        needs = [Requirement(text) for text in found[name].requires or ()]
        todo += [need.name for need in needs if need.marker is None or need.marker.evaluate({"extra": ""})]
    return [found[name] for name in sorted(found)]


def own_files() -> Iterator[tuple[str, Path]]:
    """Yield the files of tsbatch that a worker needs: the path below the PYTHONPATH folder, and the path here."""
    spec = importlib.util.find_spec("tsbatch")
    assert spec is not None
    assert spec.origin is not None
    for name, path in walk(Path(spec.origin).parent).items():
        top, _, below = name.partition("/")
        if not clutter(name) and (top in FOR_WORKERS if below else top not in NOT_FOR_WORKERS):
            yield f"tsbatch/{name}", path


def _files_of(package: Distribution) -> Iterator[tuple[str, Path | bytes]]:
    files = package.files
    if files is None:
        raise UsageError(f"--bundle: the files of {package.name} are unknown because pip did not install it; use pip")
    for file in files:
        name = PurePosixPath(file).as_posix()
        if _is_bundled(name):
            yield name, Path(str(package.locate_file(file)))


def _is_bundled(name: str) -> bool:
    path = PurePosixPath(name)
    if ".." in path.parts or path.is_absolute() or path.suffix in (".pyc", ".pyi", ".pth", ".h"):
        return False  # scripts belong elsewhere; only compilers and editors read the other files
    in_info = path.parts[0].endswith(".dist-info")
    return "tests" not in path.parts and not (in_info and path.name in INSTALLATION_FILES)


def _canonical(name: str) -> str:
    from packaging.utils import canonicalize_name

    return str(canonicalize_name(name))
