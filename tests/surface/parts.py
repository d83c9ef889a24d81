"""What stands in files, on the wire and in metrics: settings, parameters, errors, metrics, headers, alerts."""

from __future__ import annotations

import ast
import importlib
import json
import re
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel

import tsbatch
from tests.surface import names
from tests.surface.commands import main
from tests.surface.saying import said

HEADER = re.compile(r"(?i)x-[a-z]+(-[a-z]+)*|traceparent|tracestate|server-timing|retry-after|inference-[a-z-]+")
VARIABLE = re.compile(r"TSBATCH_[A-Z][A-Z_]*")
ENTRY = re.compile(r"([\w-]+);(dur|desc)=")


# ---- settings ---------------------------------------------------------------------------------------------------


def settings() -> dict[str, Any]:
    """The keys under ``tsbatch:``, with type and default."""
    (model,) = [cls for cls in names.classes_named(names.INTERNAL["settings"]) if issubclass(cls, BaseModel)]
    return dict(sorted(keys_of(model)))


def keys_of(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Each key by its full name."""
    for name, field in model.model_fields.items():
        key = prefix + (field.alias or name)
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from keys_of(field.annotation, f"{key}.")
            continue
        default = "required" if field.is_required() else field.get_default(call_default_factory=True)
        bounds = sorted(text for text in map(str, field.metadata) if text)
        yield key, {"type": names.type_text(field.annotation), "default": plain(default), "bounds": bounds}


def plain(value: Any) -> Any:
    """As JSON has it, or as Python writes it."""
    try:
        return json.loads(json.dumps(value))
    except (TypeError, ValueError):
        return names.default_text(value)


def tasks() -> dict[str, Any]:
    """Each ready-made task: its class, the parameters of a request, and the section ``handler:``."""
    found = {}
    for name, point in sorted(names.entry_points("tsbatch.tasks").items()):
        handler = point.load()
        found[name] = {
            "class": handler.__name__,
            "task": handler.task,
            "wants": handler.wants,
            "item_ndim": handler.item_ndim,
            "item_keys": sorted(handler.item_keys or ()),
            "deterministic": handler.deterministic,
            "parameters": schema_of(handler.parameters_class),
            "settings": schema_of(handler.settings_class),
            "input": without_words(plain(dict(handler.input_schema))),
            "output": without_words(plain(dict(handler.output_schema))),
        }
    return found


def schema_of(model: type[BaseModel] | None) -> Any:
    """The JSON schema of a model without its words."""
    return None if model is None else without_words(model.model_json_schema())


def without_words(value: Any) -> Any:
    """A JSON schema less titles and descriptions; a property may be called so."""
    if isinstance(value, list):
        return [without_words(part) for part in value]
    if not isinstance(value, dict):
        return value
    words = {"title", "description"}
    kept = {key: part for key, part in value.items() if key not in words or not isinstance(part, str)}
    return {key: without_words(part) for key, part in kept.items()}


# ---- errors -----------------------------------------------------------------------------------------------------


def errors() -> dict[str, Any]:
    """Every error: what it is one of, and what a client gets."""
    home = importlib.import_module(tsbatch.TsbatchError.__module__)
    found = [value for value in vars(home).values() if isinstance(value, type) and issubclass(value, Exception)]
    return {
        error.__name__: {
            "bases": [base.__name__ for base in error.__mro__[1:] if base not in (Exception, BaseException, object)],
            **{name: getattr(error, name) for name in ("status", "code", "phrase") if hasattr(error, name)},
        }
        for error in sorted(found, key=lambda error: error.__name__)
    }


# ---- what a worker emits and answers ----------------------------------------------------------------------------


def worker() -> dict[str, Any]:
    """The metrics, the headers and the parts of ``Server-Timing`` of a batch in which everything happens."""
    from tests.surface.handlers import Padding

    (call,) = names.classes_named("Call")
    started = call({"inputs": [1]}, headers={"X-Request-Start": f"t={time.time() - 0.5}"})
    config = {"tsbatch": {"telemetry": {"metrics": True}}}
    with (
        tempfile.TemporaryDirectory() as folder,
        tsbatch.HandlerRunner.from_class(Padding, folder, settings=config, name="m", batch_size=4) as runner,
    ):
        answers = runner.predict([{"inputs": [1, 2, 3]}, started, {"inputs": "broken"}])
        emitted = {metric.name: metric for metric in runner.metrics}
    headers = {name.lower() for answer in answers for name in answer.headers}
    return {
        "metrics": {
            name: {"unit": one.unit, "type": one.type, "dimensions": sorted(one.dimensions)}
            for name, one in sorted(emitted.items())
        },
        "answer_headers": sorted(headers),
        "server_timing": [f"{name};{kind}" for name, kind in ENTRY.findall(timing_of(answers[1]))],
        "statuses": [answer.status for answer in answers],
    }


def timing_of(answer: Any) -> str:
    """Its ``Server-Timing``."""
    return next(value for name, value in answer.headers.items() if name.lower() == "server-timing")


def literals() -> dict[str, list[str]]:
    """Names of headers and environment variables anywhere in the code."""
    headers, variables = set(), set()
    for path in names.PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, (str, bytes)):
                text = node.value.decode("latin-1") if isinstance(node.value, bytes) else node.value
                headers |= {text.lower()} if HEADER.fullmatch(text) else set()
                variables |= {text} if VARIABLE.fullmatch(text) else set()
    return {"headers": sorted(headers), "variables": sorted(variables)}


# ---- files of the package ---------------------------------------------------------------------------------------


def metrics_file() -> dict[str, Any]:
    """What ``tsbatch handler-path metrics`` leads to."""
    path = json.loads(said(main(), ["handler-path", "metrics", "--json"]).out)["path"]
    told = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    return {
        f"{section}: {kind}: {one['name']}": {"unit": one["unit"], "dimensions": one["dimensions"]}
        for section in ("ts_metrics", "model_metrics")
        for kind, listed in told[section].items()
        for one in listed
    }


def dashboards() -> dict[str, Any]:
    """Alerts, and what the dashboard asks for; its words left out."""
    (alerts,) = names.PACKAGE.rglob(names.INTERNAL["alerts"])
    (board,) = names.PACKAGE.rglob(names.INTERNAL["dashboard"])
    groups = yaml.safe_load(alerts.read_text(encoding="utf-8"))["groups"]
    told = json.loads(board.read_text(encoding="utf-8"))
    return {
        "alerts": {
            rule["alert"]: {"expr": " ".join(rule["expr"].split()), "for": rule.get("for"), "labels": rule["labels"]}
            for group in groups
            for rule in group["rules"]
        },
        "dashboard": {
            "uid": told.get("uid"),
            "expressions": sorted(target["expr"] for panel in told["panels"] for target in panel.get("targets", [])),
        },
    }


def lint_rules() -> dict[str, str]:
    """Rule: severity."""
    told = json.loads(said(main(), ["lint", "--rules", "--json"]).out)
    return {rule["id"]: rule["severity"] for rule in sorted(told["rules"], key=lambda rule: rule["id"])}


def starter_folder() -> list[str]:
    """The files that ``tsbatch new`` makes."""
    with tempfile.TemporaryDirectory() as folder:
        said(main(), ["new", f"{folder}/starter"])
        made = [path for path in Path(folder, "starter").rglob("*") if path.is_file()]
        return sorted(path.relative_to(folder).as_posix() for path in made)
