"""The facts about an archive that a deployment needs: manifest, YAML, and the figures of ``tsbatch check``."""

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

BUNDLE_KEY = "bundle"
"""Key in ``MAR-INF/tsbatch.json`` of an archive that contains tsbatch (:mod:`tsbatch.packaging.bundle`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """An archive and its figures.

    Attributes:
        path: the archive.
        name: the model's name.
        section: the section ``tsbatch:`` of its model-config.yaml.
        python: the Python version that its image needs, for example ``3.11``.
        bundled: whether the archive contains tsbatch.
        is_batch_handler: whether its handler is a BatchHandler.
        emits_counters: whether the handler emits tsbatch's counters if the server's metrics file names them.
        requirements: whether TorchServe has to install requirements for it.
        workers, threads, batch_size: workers of a pod, torch threads of each worker, and batchSize.
        startup_timeout, response_timeout: seconds.
        slowest: seconds of the slowest full batch that was measured; 0 if none was.
        private, shared: bytes of the first worker.
        additional: private bytes of each additional worker.
        peak: maximum bytes of the first worker.
        unpacked: bytes of its files.
        gpu: whether it was checked with a GPU.
        imports: versions of the installed packages that its worker imported during the check.
    """

    path: Path
    name: str
    section: Mapping[str, Any]
    python: str
    bundled: bool
    is_batch_handler: bool
    emits_counters: bool
    requirements: bool
    workers: int
    threads: int
    batch_size: int
    startup_timeout: int
    response_timeout: int
    slowest: float
    private: int
    shared: int
    additional: int
    peak: int
    unpacked: int
    gpu: bool
    imports: Mapping[str, str]


def facts_of(mar: Path, check: Mapping[str, Any]) -> Facts:
    """Collect the facts about an archive.

    Args:
        mar: the archive.
        check: the output of ``tsbatch check --json`` for it.

    Raises:
        UsageError: it is not an archive, or the check is of another one, or says that it does not load.
    """
    source = ModelSource.parse(mar)
    if not NAME_RULE.fullmatch(source.name):
        raise UsageError(
            f"{mar}: the model's name is {source.name!r}; TorchServe allows letters, digits, '_', '-' and '.'"
        )
    _compare(source, check)
    read = read_archive(source.path, str(mar), Machine())
    config = read.config() or {}
    about, memory = check["about"], check["memory"]
    bundle = json_object(read.texts.get(HASHES_NAME, b"")).get(BUNDLE_KEY)
    numbers = {key: config[key] for key in DEFAULTS if type(config.get(key)) is int and config[key] > 0}
    return Facts(
        path=source.path,
        name=source.name,
        section=config.get("tsbatch") or {},
        python=_python(bundle),
        bundled=bundle is not None,
        is_batch_handler=about["is_ours"],
        emits_counters=about["is_ours"] and _emits_counters(config),
        requirements=source.requirements is not None,
        workers=numbers.get("minWorkers", 1),
        threads=about["threads"],
        batch_size=numbers.get("batchSize", 1),
        # TorchServe's values for a YAML without them, whatever the server's default is (ModelConfig.java).
        startup_timeout=numbers.get("startupTimeout", 120),
        response_timeout=numbers.get("responseTimeout", 120),
        slowest=max((row["slowest"] for row in check["service"]), default=0.0),
        private=memory[0]["private"],
        shared=memory[0]["shared"],
        additional=memory[-1]["private"],
        peak=memory[0]["peak"],
        unpacked=check["bytes"],
        gpu=bool(check["gpu"]),
        imports=check["imports"],
    )


def read_check(path: Path) -> dict[str, Any]:
    """Read the saved output of ``tsbatch check --json``.

    Raises:
        UsageError: it is something else.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if not {"schema", "loads", "about", "memory", "service", "bytes", "gpu", "imports"} <= found.keys():
            raise ValueError
    except (ValueError, AttributeError):
        raise UsageError(
            f"{path}: expected the output of `tsbatch check ARCHIVE --json`; save it with > {path}"
        ) from None
    if found["schema"] != CHECK_SCHEMA:
        raise UsageError(f"{path}: has schema {found['schema']}, but this tsbatch reads {CHECK_SCHEMA}; check it again")
    return dict(found)


def _compare(source: ModelSource, check: Mapping[str, Any]) -> None:
    checked = (check["name"], check["version"])
    if checked != (source.name, source.version):
        raise UsageError(
            f"{source.path} is {source.name} {source.version}, but the check is of {' '.join(map(str, checked))}"
        )
    checked_file = check.get("sha256") if source.path.is_file() else None
    if checked_file is not None and checked_file != sha256(source.path):
        raise UsageError(f"{source.path} was rebuilt after it was checked; run the check again")
    if not check["loads"] or not check["memory"]:
        why = (check["failure"] or {}).get("cause") or "; ".join(check["findings"])
        raise UsageError(f"{source.path} does not load, so it would not load in a pod either: {why}")


def _emits_counters(config: Mapping[str, Any]) -> bool:
    try:
        return load_settings(config).telemetry.metrics is not False
    except SettingsError as error:
        raise UsageError(str(error)) from None


def _python(bundle: Mapping[str, Any] | None) -> str:
    """Return ``3.11`` of ``cpython-3.11 linux x86_64``, or this Python's version."""
    if bundle is None:
        return f"{sys.version_info[0]}.{sys.version_info[1]}"
    return str(bundle["made_for"]).partition(" ")[0].rpartition("-")[2]
