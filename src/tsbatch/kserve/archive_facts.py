"""What a deployment has to know of an archive: its manifest and YAML, and what ``tsbatch check`` measured."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tsbatch.archive.manifest import NAME_RULE, json_object
from tsbatch.archive.model_config import DEFAULTS
from tsbatch.archive.model_store import ModelSource
from tsbatch.archive.writer import HASHES_NAME, sha256
from tsbatch.check.findings import SCHEMA as CHECK_SCHEMA
from tsbatch.errors import SettingsError, UsageError
from tsbatch.lint.archive_file import read_archive
from tsbatch.lint.documents import Machine
from tsbatch.settings import load_settings

BUNDLED_FOR = "bundle"
"""Key of ``MAR-INF/tsbatch.json`` when the archive brings tsbatch along (:mod:`tsbatch.packaging.bundle`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """One archive and its figures.

    Attributes:
        path: the archive.
        name, version: the model's.
        section: ``tsbatch:`` of its model-config.yaml.
        python: the Python that its image must have, as ``3.11``.
        bundled: whether it brings tsbatch along.
        ours: whether its handler is a BatchHandler.
        counts: whether the handler emits tsbatch's counters on a server that names them.
        requirements: whether TorchServe has something to install for it.
        workers, threads, batch_size: of one pod; torch threads of each worker.
        startup_timeout, response_timeout: seconds.
        slowest: seconds of the slowest full batch that was measured; 0 when none was.
        private, shared, further, peak: bytes of the first worker, of each further one, and of the first at most.
        unpacked: bytes of the files in it.
        gpu: whether it was checked with a GPU.
        imports: installed package: version, of what its worker imported when it was checked.
    """

    path: Path
    name: str
    version: str
    section: Mapping[str, Any]
    python: str
    bundled: bool
    ours: bool
    counts: bool
    requirements: bool
    workers: int
    threads: int
    batch_size: int
    startup_timeout: int
    response_timeout: int
    slowest: float
    private: int
    shared: int
    further: int
    peak: int
    unpacked: int
    gpu: bool
    imports: Mapping[str, str]


def facts_of(mar: Path, check: Mapping[str, Any]) -> Facts:
    """The facts of an archive.

    Args:
        mar: the archive.
        check: what ``tsbatch check --json`` told of it.

    Raises:
        UsageError: it is no archive, or the check is of another one, or says that it does not load.
    """
    source = ModelSource.parse(mar)
    if not NAME_RULE.fullmatch(source.name):
        raise UsageError(
            f"{mar}: its model is called {source.name!r}; TorchServe takes letters, digits, '_', '-' and '.'"
        )
    _fit(source, check)
    read = read_archive(source.path, str(mar), Machine())
    config = read.config() or {}
    about, memory = check["about"], check["memory"]
    bundle = json_object(read.texts.get(HASHES_NAME, b"")).get(BUNDLED_FOR)
    numbers = {key: config[key] for key in DEFAULTS if type(config.get(key)) is int and config[key] > 0}
    return Facts(
        path=source.path,
        name=source.name,
        version=read.version,
        section=config.get("tsbatch") or {},
        python=_python(bundle),
        bundled=bundle is not None,
        ours=about["is_ours"],
        counts=about["is_ours"] and _counts(config),
        requirements=source.requirements is not None,
        workers=numbers.get("minWorkers", 1),
        threads=about["threads"],
        batch_size=numbers.get("batchSize", 1),
        # What TorchServe takes when a YAML does not say, whatever the server's default is (ModelConfig.java).
        startup_timeout=numbers.get("startupTimeout", 120),
        response_timeout=numbers.get("responseTimeout", 120),
        slowest=max((row["slowest"] for row in check["service"]), default=0.0),
        private=memory[0]["private"],
        shared=memory[0]["shared"],
        further=memory[-1]["private"],
        peak=memory[0]["peak"],
        unpacked=check["bytes"],
        gpu=bool(check["gpu"]),
        imports=check["imports"],
    )


def read_check(path: Path) -> dict[str, Any]:
    """What ``tsbatch check --json`` was saved as.

    Raises:
        UsageError: it is something else.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if not {"schema", "loads", "about", "memory", "service", "bytes", "gpu", "imports"} <= found.keys():
            raise ValueError
    except (ValueError, AttributeError):
        raise UsageError(
            f"{path}: expected what `tsbatch check ARCHIVE --json` prints; save it with > {path}"
        ) from None
    if found["schema"] != CHECK_SCHEMA:
        raise UsageError(f"{path}: has the schema {found['schema']}; this tsbatch reads {CHECK_SCHEMA}; check again")
    return dict(found)


def _fit(source: ModelSource, check: Mapping[str, Any]) -> None:
    checked = (check["name"], check["version"])
    if checked != (source.name, source.version):
        raise UsageError(
            f"{source.path} is {source.name} {source.version}, and the check is of {' '.join(map(str, checked))}"
        )
    checked_file = check.get("sha256") if source.path.is_file() else None
    if checked_file is not None and checked_file != sha256(source.path):
        raise UsageError(f"{source.path} was packed anew since it was checked; check it again")
    if not check["loads"] or not check["memory"]:
        why = (check["failure"] or {}).get("cause") or "; ".join(check["findings"])
        raise UsageError(f"{source.path} does not load, and would not there: {why}")


def _counts(config: Mapping[str, Any]) -> bool:
    try:
        return load_settings(config).telemetry.metrics is not False
    except SettingsError as error:
        raise UsageError(str(error)) from None


def _python(bundle: Mapping[str, Any] | None) -> str:
    """``3.11`` of ``cpython-3.11 linux x86_64``, or of this Python."""
    if bundle is None:
        return f"{sys.version_info[0]}.{sys.version_info[1]}"
    return str(bundle["made_for"]).partition(" ")[0].rpartition("-")[2]
