"""Judges of manifests that know nothing of tsbatch, and archives with a check to make them of."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jsonschema

from tests.unit.archive import archives
from tsbatch.archive.model_config import ModelConfig
from tsbatch.check.findings import Report
from tsbatch.packaging.builder import package
from tsbatch.system.process_memory import Memory

SCHEMA = Path(__file__).parent / "kserve_schema.json"
"""Written by tests/acceptance/kserve_side.py from the models of the package kserve, and compared with them there."""

RUNTIME_ARGS = [
    "torchserve",
    "--start",
    "--model-store=/mnt/models/model-store",
    "--ts-config=/mnt/models/config/config.properties",
]
"""What KServe's ClusterServingRuntime kserve-torchserve runs (config/runtimes/kserve-torchserve.yaml)."""

MB = 10**6
OWN = "from tsbatch import BatchHandler\n\n\nclass Own(BatchHandler):\n    pass\n"


def faults(manifest: Any) -> list[str]:
    """What is wrong with a manifest: by the models' fields and types, and by the rules of KServe's webhooks."""
    validator = jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text(encoding="utf-8")))
    found = [f"{error.json_path}: {error.message}" for error in validator.iter_errors(manifest)]
    return found or list(_refused(manifest))


def _refused(manifest: Any) -> Iterator[str]:
    """pkg/apis/serving/v1beta1/inference_service_validation.go and component.go; the fields are right already."""
    metadata, predictor = manifest["metadata"], manifest["spec"]["predictor"]
    if (manifest["apiVersion"], manifest["kind"]) != ("serving.kserve.io/v1beta1", "InferenceService"):
        yield "apiVersion and kind"
    if not re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", metadata["name"]):
        yield "the name"
    if ("model" in predictor) + ("containers" in predictor) != 1:
        yield "exactly one implementation"
    if predictor.get("minReplicas", 1) > predictor.get("maxReplicas", 1):
        yield "minReplicas above maxReplicas"
    annotations, metrics = metadata.get("annotations", {}), predictor.get("autoScaling", {}).get("metrics", [])
    keda = annotations.get("serving.kserve.io/autoscalerClass") == "keda"
    if metrics and not (keda and annotations.get("serving.kserve.io/deploymentMode") == "Standard"):
        yield "metrics of one's own are for KEDA, in the mode Standard"
    for metric in metrics:
        if metric["type"] not in ("Resource", "External", "PodMetric"):
            yield "the type of the metric"
        elif not metric["external"]["metric"]["query"] or metric["external"]["target"].get("value") is None:
            yield "an external metric needs a query and a value"


def check_of(archive: Path, name: str, *, ours: bool = True, second: int | None = 40, **more: Any) -> dict[str, Any]:
    """What ``tsbatch check --json`` tells of an archive that was never loaded."""
    about = {"is_ours": ours, "workers": 1, "threads": 1, **more.pop("about", {})}
    memory = [Memory(300 * MB, 100 * MB, 500 * MB)]
    if second is not None:
        memory.append(Memory(second * MB, 360 * MB, 420 * MB))
    service = [{"batch": 4, "slowest": 0.25}]
    imports = {"torch": "2.13.0+cpu", "numpy": "2.4.6", "somebodys_package": "1.2"}
    values = {
        "imports": imports,
        "bytes": 80 * MB,
        "memory": memory,
        "service": service,
        "about": about,
        "version": "1.0",
        **more,
    }
    return json.loads(json.dumps(Report(archive=archive, name=name, **values).as_json(), default=str))


def own_archive(folder: Path, name: str = "m", *, workers: int = 2, **options: Any) -> Path:
    """An archive with a BatchHandler of somebody's own."""
    folder.mkdir(parents=True, exist_ok=True)
    handler = folder / "own_handler.py"
    handler.write_text(OWN)
    config = ModelConfig(workers=workers, batch_size=4, response_timeout=90, startup_timeout=60)
    return package(name=name, handler=handler, config=config, output_dir=folder, **options)


def foreign_archive(folder: Path) -> Path:
    """One whose handler knows nothing of tsbatch."""
    folder.mkdir(parents=True, exist_ok=True)
    return archives.make(folder, name="foreign")


def saved(check: Mapping[str, Any], path: Path) -> Path:
    """The check as a file."""
    path.write_text(json.dumps(check))
    return path


def mutated(manifest: Any) -> Iterator[tuple[str, Any]]:
    """The manifest with one thing wrong, field by field: misspelt (and so missing too), or of another type."""
    for path, value in _places(manifest, ()):
        if path[-1:] and isinstance(path[-1], str):
            yield f"{path}: misspelt", _with(manifest, path, _misspell)
        if isinstance(value, (str, int, list)) and not isinstance(value, bool):
            yield f"{path}: an object", _with(manifest, path, _replace)


def _misspell(holder: Any, key: Any) -> None:
    holder[f"{key}x"] = holder.pop(key)


def _replace(holder: Any, key: Any) -> None:
    holder[key] = {"not": "this"}


def _with(manifest: Any, path: tuple[Any, ...], change: Any) -> Any:
    whole = json.loads(json.dumps(manifest))
    holder = whole
    for part in path[:-1]:
        holder = holder[part]
    change(holder, path[-1])
    return whole


def _places(value: Any, path: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], Any]]:
    if path:
        yield path, value
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inside:
        if path[-1:] not in (("annotations",), ("requests",), ("limits",)):  # their keys are anyone's
            yield from _places(one, (*path, key))
