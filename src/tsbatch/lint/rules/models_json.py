"""Rules over the setting ``models={...}`` of config.properties."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from tsbatch.configuration.known_settings import MODELS_JSON, nearest
from tsbatch.configuration.models_property import parse_models
from tsbatch.lint.findings import Found
from tsbatch.lint.properties_file import PropertiesFile
from tsbatch.lint.registry import rule

NUMBERS = [key for key, kind in MODELS_JSON.items() if kind == "int"]


def entries(file: PropertiesFile) -> Iterator[tuple[int, str, str, Mapping[str, Any]]]:
    """(line, name, version, settings) of each entry; none where the JSON is broken, which is another rule's finding."""
    pair = file.last("models")
    if pair is None:
        return
    try:
        models = parse_models(pair.value)
    except ValueError:
        return
    for name, versions in models.items():
        for version, settings in versions.items():
            yield _line(file, name), name, version, settings


def _line(file: PropertiesFile, word: str) -> int:
    """The line of the setting ``models`` that has a word; its first line when none has."""
    pair = file.last("models")
    assert pair is not None
    lines = range(pair.line, pair.last + 1)
    return next(
        (line for line in lines if re.search(rf"[\"']?{re.escape(word)}[\"']?\s*:", file.line_text(line))), pair.line
    )


@rule(
    "config-models-json",
    PropertiesFile,
    "error",
    "models={} that is no JSON of the right shape",
    'TorchServe wants {"NAME": {"VERSION": {...}}} and does not start with anything else. Lines that go on end with a '
    "backslash.",
)
def models_json(file: PropertiesFile) -> Iterator[Found]:
    """Broken JSON, or a level that is missing."""
    pair = file.last("models")
    if pair is None:
        return
    try:
        parse_models(pair.value)
    except ValueError as error:
        right = 'models={"NAME": {"1.0": {"batchSize": 8, "maxBatchDelay": 50, "minWorkers": 1, "maxWorkers": 1}}}'
        yield Found(pair.line, f"models: {error}", "TorchServe ends with an exception at the start", right)


@rule(
    "config-models-key",
    PropertiesFile,
    "error",
    "an unknown key in models={}",
    "TorchServe reads minWorkers, maxWorkers, batchSize, maxBatchDelay, responseTimeout, startupTimeout and "
    "runtimeType from models={}; anything else is ignored without a word.",
)
def models_key(file: PropertiesFile) -> Iterator[Found]:
    """``batch_size`` inside ``models={}``."""
    for _, name, version, settings in entries(file):
        for key, value in settings.items():
            if key not in MODELS_JSON:
                near = nearest(key, MODELS_JSON)
                right = f'"{near}": {json.dumps(value)}' if near else ""
                message = f"models: {name} {version}: {key} is no key" + (f"; did you mean {near}?" if near else "")
                yield Found(_line(file, key), message, "TorchServe ignores it without a word", right)


@rule(
    "config-models-value",
    PropertiesFile,
    "error",
    "a number in models={} that does not count",
    "In models={} only whole numbers above 0 count. 0 and below mean the default (maxBatchDelay 0: 100 ms), and a text "
    "that is no number, null, true or false end the loading of the model with an exception.",
)
def models_value(file: PropertiesFile) -> Iterator[Found]:
    """Zero, negative, null and texts."""
    for _, name, version, settings in entries(file):
        for key in (key for key in NUMBERS if key in settings):
            value = settings[key]
            if isinstance(value, bool) or not isinstance(value, (int, float, str)):
                effect = "TorchServe cannot load the model: it cannot make a number of it"
            elif not re.fullmatch(r"[+-]?\d+(\.\d+)?", str(value)):
                effect = "TorchServe cannot load the model: NumberFormatException"
            elif float(value) <= 0:
                default = "100 ms" if key == "maxBatchDelay" else "the default"
                effect = f"TorchServe uses {default} instead"
            else:
                continue
            right = f'"{key}": 1'
            yield Found(_line(file, key), f"models: {name} {version}: {key} is {json.dumps(value)}", effect, right)


@rule(
    "config-models-workers",
    PropertiesFile,
    "warning",
    "minWorkers or maxWorkers alone in models={}",
    "The one that is missing is default_workers_per_model, else the number of GPUs or cores; TorchServe starts "
    "minWorkers workers, also when maxWorkers is below it.",
)
def models_workers(file: PropertiesFile) -> Iterator[Found]:
    """One of the two, or min above max."""
    for line, name, version, settings in entries(file):
        low, high = settings.get("minWorkers"), settings.get("maxWorkers")
        if (low is None) != (high is None):
            given, missing = ("minWorkers", "maxWorkers") if high is None else ("maxWorkers", "minWorkers")
            number = settings[given]
            message = f"models: {name} {version} has {given} and no {missing}"
            effect = f"{missing} is default_workers_per_model, else the number of GPUs or cores"
            yield Found(line, message, effect, f'"minWorkers": {number}, "maxWorkers": {number}')
        elif isinstance(low, int) and isinstance(high, int) and low > high > 0:
            message = f"models: {name} {version}: minWorkers {low} is above maxWorkers {high}"
            yield Found(line, message, f"TorchServe starts {low} workers all the same", f'"maxWorkers": {low}')


@rule(
    "config-models-queue",
    PropertiesFile,
    "warning",
    "a queue too short for models={}",
    "Requests beyond job_queue_size (100) get 503. To fill every worker's batch while another is waiting takes 2 x "
    "batchSize x workers places.",
)
def models_queue(file: PropertiesFile) -> Iterator[Found]:
    """job_queue_size below 2 x batchSize x maxWorkers of an entry."""
    text = file.values.get("job_queue_size", "100")
    if not text.isascii() or not text.isdigit():
        return
    for line, name, version, settings in entries(file):
        batch, workers = settings.get("batchSize", 1), settings.get("maxWorkers", 1)
        if isinstance(batch, int) and isinstance(workers, int) and int(text) < 2 * batch * workers:
            need = 2 * batch * workers
            pair = file.last("job_queue_size")
            message = f"job_queue_size {text} is below 2 x batchSize {batch} x workers {workers} of {name} {version}"
            effect = "bursts get 503 while batches are not full"
            yield Found(pair.line if pair else line, message, effect, f"job_queue_size={need}")
