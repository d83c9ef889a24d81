"""Rules for the values of model-config.yaml."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import yaml

from tsbatch.archive.model_config import JAVA_INT_MAX, is_java_int
from tsbatch.configuration.known_settings import IGNORED_BELOW, MINIMUMS, MODEL_CONFIG
from tsbatch.lint.findings import Edit, Issue
from tsbatch.lint.registry import rule
from tsbatch.lint.rules.shared_checks import implausible_seconds
from tsbatch.lint.yaml_file import Entry, ModelConfigFile

TIMEOUTS = ("responseTimeout", "startupTimeout")
PINNED_SECONDS = 120
CHOICES = {"deviceType": ("cpu", "gpu"), "parallelType": ("pp", "tp", "pptp", "custom")}
EXPECTED = {
    "int": "a whole number",
    "bool": "true or false",
    "text": "a word",
    "list": "a list of whole numbers",
    "map": "keys and values",
}


def _rewritten(file: ModelConfigFile, entry: Entry, value: str) -> Edit | None:
    """An edit that writes another value on a key's line; None if the value spans lines or the mapping is inline."""
    text = file.line_text(entry.line)
    match = re.match(r"(\s*[\"']?[\w-]+[\"']?\s*:\s*)(\"[^\"]*\"|'[^']*'|[^\s#]+)(\s*(#.*)?)$", text)
    same_line = entry.node.end_mark.line + 1 == entry.line
    return Edit(entry.line, entry.line, (f"{match[1]}{value}{match[3]}",)) if match and same_line else None


def _known(file: ModelConfigFile) -> Iterator[Entry]:
    """The pairs that the frontend reads."""
    return (entry for entry in file.entries() if entry.key in MODEL_CONFIG)


@rule("yaml-type", ModelConfigFile, "error")
def wrong_type(file: ModelConfigFile) -> Iterator[Issue]:
    """A value of the wrong type.

    Where TorchServe expects a number it accepts only a whole number (8, not '8' or 8.0), and where it expects a switch
    only true or false; it ignores anything else and logs a line.
    """
    for entry in _known(file):
        kind, value = MODEL_CONFIG[entry.key], entry.value
        right = _right_value(kind, value)
        if right is not None:
            shown = "empty" if value is None else f"the text {value!r}" if isinstance(value, str) else repr(value)
            message = f"{entry.key} is {shown}; expected {EXPECTED[kind]}"
            effect = f"TorchServe ignores it: {entry.key} keeps its default"
            edit = _rewritten(file, entry, right) if right else None
            yield Issue(entry.line, message, effect, f"{entry.key}: {right or '...'}", edit)


def _right_value(kind: str, value: Any) -> str | None:
    """Return None if the type is right, otherwise the value that was probably meant; empty if that is unclear."""
    if kind == "int" and not is_java_int(value):
        meant = re.fullmatch(r"\s*(\d+)(\.0*)?\s*", str(value)) if not isinstance(value, bool) else None
        return meant[1] if meant and int(meant[1]) <= JAVA_INT_MAX else ""
    if kind == "bool" and not isinstance(value, bool):
        word = str(value).lower()
        return word if word in {"true", "false"} else ""
    if kind == "list" and not (isinstance(value, list) and all(map(is_java_int, value))):
        return f"[{value}]" if is_java_int(value) else ""
    if (kind == "text" and not isinstance(value, str)) or (kind == "map" and not isinstance(value, dict)):
        return ""
    return None


@rule("yaml-choice", ModelConfigFile, "error")
def choice(file: ModelConfigFile) -> Iterator[Issue]:
    """An unknown device type or type of parallelism.

    deviceType is cpu or gpu, parallelType is pp, tp, pptp or custom; TorchServe ignores any other value and logs a
    line.
    """
    for entry in _known(file):
        allowed = CHOICES.get(entry.key)
        if allowed and isinstance(entry.value, str) and entry.value.lower() not in allowed:
            right = {"cuda": "gpu"}.get(entry.value.lower(), allowed[0])
            message = f"unknown {entry.key} {entry.value}; expected {', '.join(allowed)}"
            yield Issue(entry.line, message, "TorchServe ignores it and chooses itself", f"{entry.key}: {right}")


@rule("yaml-range", ModelConfigFile, "error")
def out_of_range(file: ModelConfigFile) -> Iterator[Issue]:
    """A number that TorchServe changes or ignores.

    batchSize and minWorkers below 1 become 1; timeouts below 1 are ignored, so 120 s applies; negative delays and
    maxWorkers are ignored.
    """
    for entry in _known(file):
        value, (lowest, fallback) = entry.value, IGNORED_BELOW.get(entry.key, (MINIMUMS.get(entry.key, 0), ""))
        if is_java_int(value) and value < lowest and MODEL_CONFIG[entry.key] == "int":
            ignored = f"TorchServe ignores it and uses {fallback}"
            effect = ignored if fallback else f"TorchServe changes it to {lowest}"
            yield Issue(entry.line, f"{entry.key} is {value}", effect, f"{entry.key}: 1")


@rule("yaml-delay-zero", ModelConfigFile, "error")
def delay_zero(file: ModelConfigFile) -> Iterator[Issue]:
    """maxBatchDelay: 0.

    In the YAML, 0 counts as 'not set' and becomes 100 ms. To take what is queued without waiting, write 1.
    """
    entry = file.entry("maxBatchDelay")
    if entry and is_java_int(entry.value) and entry.value == 0:
        effect = "TorchServe waits up to 100 ms for a batch to fill"
        edit = _rewritten(file, entry, "1")
        yield Issue(entry.line, "maxBatchDelay 0 does not mean no delay", effect, "maxBatchDelay: 1", edit)


@rule("yaml-workers-pair", ModelConfigFile, "error")
def workers_pair(file: ModelConfigFile) -> Iterator[Issue]:
    """Only one of minWorkers and maxWorkers, or minWorkers above maxWorkers.

    TorchServe uses the numbers of workers in the YAML only if both are set and maxWorkers is at least minWorkers.
    """
    low, high = file.entry("minWorkers"), file.entry("maxWorkers")
    given, missing = (low, "maxWorkers") if high is None else (high, "minWorkers")
    effect = "and starts default_workers_per_model workers (none if the model is registered through the API)"
    if (low is None) != (high is None) and given and is_java_int(given.value):
        lines = (file.line_text(given.line), f"{missing}: {given.value}")
        plain = re.match(r"\w+Workers\s*:", lines[0]) is not None
        edit = Edit(given.line, given.line, lines) if plain else None
        message = f"{given.key} is set and {missing} is not"
        yield Issue(given.line, message, f"TorchServe ignores it {effect}", lines[1], edit)
    elif low and high and is_java_int(low.value) and is_java_int(high.value) and 0 <= high.value < max(1, low.value):
        message = f"minWorkers {low.value} is above maxWorkers {high.value}"
        yield Issue(low.line, message, f"TorchServe ignores both {effect}", f"maxWorkers: {max(1, low.value)}")


@rule("yaml-timeouts-pinned", ModelConfigFile, "note")
def timeouts_pinned(file: ModelConfigFile) -> Iterator[Issue]:
    """Timeouts that are not set.

    An archive with a model-config.yaml pins both timeouts: one that the YAML lacks is 120 s, whatever
    default_response_timeout, default_startup_timeout, models={} and the API say. So set both.
    """
    missing = [key for key in TIMEOUTS if file.entry(key) is None]
    if missing and file.entries():
        effect = f"TorchServe uses {PINNED_SECONDS} s, whatever config.properties and the API say"
        lines = tuple(f"{key}: {PINNED_SECONDS}" for key in missing)
        last = len(file.source.lines())
        block = isinstance(file.root, yaml.MappingNode) and not file.root.flow_style
        edit = Edit(last + 1, last, lines) if block else None
        yield Issue(1, f"{' and '.join(missing)} not set", effect, "\n".join(lines), edit)


@rule("yaml-milliseconds", ModelConfigFile, "warning")
def milliseconds(file: ModelConfigFile) -> Iterator[Issue]:
    """A timeout in milliseconds.

    responseTimeout and startupTimeout are in seconds; maxBatchDelay is in milliseconds.
    """
    for entry in file.entries():
        if entry.key in TIMEOUTS and is_java_int(entry.value):
            yield from implausible_seconds(entry.line, entry.key, entry.value, ": ")
