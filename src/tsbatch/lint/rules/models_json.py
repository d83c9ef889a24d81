"""Rules for the setting ``models={...}`` of config.properties."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tsbatch.configuration.known_settings import MODELS_JSON
from tsbatch.configuration.models_property import parse_models
from tsbatch.lint.findings import Issue
from tsbatch.lint.properties_file import PropertiesFile
from tsbatch.lint.registry import rule
from tsbatch.lint.rules.shared_checks import IGNORED, short_queue, unknown


@dataclass(frozen=True)
class ModelsEntry:
    """One version of a model in ``models={}``.

    Attributes:
        file: the config.properties.
        line: the line of the model's name.
        name, version: of the model.
        settings: value by key.
    """

    file: PropertiesFile
    line: int
    name: str
    version: str
    settings: Mapping[str, Any]

    def line_of(self, key: str) -> int:
        """Return the line of a key."""
        return _line(self.file, key)

    def __str__(self) -> str:
        return f"models: {self.name} {self.version}"


def entries(file: PropertiesFile) -> Iterator[ModelsEntry]:
    """Yield the entries of ``models={}``; none if it is invalid, which ``config-models-json`` reports."""
    try:
        models = parse_models(file.values.get("models", "{}"))
    except ValueError:
        return
    for name, versions in models.items():
        for version, settings in versions.items():
            yield ModelsEntry(file, _line(file, name), name, version, settings)


def _line(file: PropertiesFile, word: str) -> int:
    """Return the line of the setting ``models`` on which a word is a key; its first line if there is none."""
    pair = file.last("models")
    assert pair is not None
    key = re.compile(rf"[\"']?{re.escape(word)}[\"']?\s*:")
    return next((line for line in range(pair.line, pair.last + 1) if key.search(file.line_text(line))), pair.line)


@rule("config-models-json", PropertiesFile, "error")
def models_json(file: PropertiesFile) -> Iterator[Issue]:
    """models={} that is not valid JSON or does not have the right structure.

    TorchServe expects {"NAME": {"VERSION": {...}}} and fails to start with anything else. A line that continues on the
    next one must end with a backslash.
    """
    pair = file.last("models")
    try:
        parse_models(pair.value if pair else "{}")
    except ValueError as error:
        assert pair is not None
        right = 'models={"NAME": {"1.0": {"batchSize": 8, "maxBatchDelay": 50, "minWorkers": 1, "maxWorkers": 1}}}'
        yield Issue(pair.line, f"models: {error}", "TorchServe fails to start with an exception", right)


@rule("config-models-key", PropertiesFile, "error")
def models_key(file: PropertiesFile) -> Iterator[Issue]:
    """An unknown key in models={}.

    TorchServe reads minWorkers, maxWorkers, batchSize, maxBatchDelay, responseTimeout, startupTimeout and runtimeType
    from models={} and silently ignores anything else.
    """
    for entry in entries(file):
        for key, value in entry.settings.items():
            if key not in MODELS_JSON:
                message, meant = unknown(key, MODELS_JSON)
                right = f'"{meant}": {json.dumps(value)}' if meant else ""
                yield Issue(entry.line_of(key), f"{entry}: {message}", IGNORED, right)


@rule("config-models-value", PropertiesFile, "error")
def models_value(file: PropertiesFile) -> Iterator[Issue]:
    """An invalid number in models={}.

    In models={} only whole numbers above 0 count. 0 and below mean the default (maxBatchDelay 0: 100 ms). If a
    value is null, true, false or a string that is not a number, TorchServe fails to load the model.
    """
    for entry in entries(file):
        for key, value in entry.settings.items():
            if MODELS_JSON.get(key) != "int":
                continue
            if isinstance(value, bool) or not isinstance(value, (int, float, str)):
                effect = "TorchServe cannot load the model: it cannot convert the value to a number"
            elif not re.fullmatch(r"[+-]?\d+(\.\d+)?", str(value)):
                effect = "TorchServe cannot load the model: NumberFormatException"
            elif float(value) <= 0:
                effect = f"TorchServe uses {'100 ms' if key == 'maxBatchDelay' else 'the default'} instead"
            else:
                continue
            yield Issue(entry.line_of(key), f"{entry}: {key} is {json.dumps(value)}", effect, f'"{key}": 1')


@rule("config-models-workers", PropertiesFile, "warning")
def models_workers(file: PropertiesFile) -> Iterator[Issue]:
    """Only one of minWorkers and maxWorkers in models={}.

    The missing one is default_workers_per_model, otherwise the number of GPUs or cores. TorchServe starts minWorkers
    workers, even if maxWorkers is lower.
    """
    for entry in entries(file):
        low, high = (entry.settings.get(key) for key in ("minWorkers", "maxWorkers"))
        if (low is None) != (high is None):
            given, missing = ("minWorkers", "maxWorkers") if high is None else ("maxWorkers", "minWorkers")
            number = entry.settings[given]
            effect = f"{missing} is default_workers_per_model, otherwise the number of GPUs or cores"
            right = f'"minWorkers": {number}, "maxWorkers": {number}'
            yield Issue(entry.line, f"{entry} has {given} and no {missing}", effect, right)
        elif isinstance(low, int) and isinstance(high, int) and low > high > 0:
            message = f"{entry}: minWorkers {low} is above maxWorkers {high}"
            yield Issue(entry.line, message, f"TorchServe still starts {low} workers", f'"maxWorkers": {low}')


@rule("config-models-queue", PropertiesFile, "warning")
def models_queue(file: PropertiesFile) -> Iterator[Issue]:
    """A queue that is too short for models={}.

    Requests beyond job_queue_size (100) get 503. To fill every worker's batch while another one waits, the queue needs
    room for 2 x batchSize x workers requests.
    """
    text, pair = file.values.get("job_queue_size", "100"), file.last("job_queue_size")
    if text.isascii() and text.isdigit():
        for entry in entries(file):
            batch, workers = entry.settings.get("batchSize", 1), entry.settings.get("maxWorkers", 1)
            if isinstance(batch, int) and isinstance(workers, int):
                line, subject = pair.line if pair else entry.line, f"{entry}: job_queue_size {text}"
                yield from short_queue(line, subject, int(text), batch, workers, "job_queue_size=")
