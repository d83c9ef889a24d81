"""Rules over the values of model-config.yaml."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import yaml

from tsbatch.configuration.known_settings import JAVA_INT_MAX, MODEL_CONFIG
from tsbatch.lint.findings import Edit, Found
from tsbatch.lint.registry import rule
from tsbatch.lint.yaml_file import Entry, ModelConfigFile, is_int

TIMEOUTS = ("responseTimeout", "startupTimeout")
PINNED = 120
MANY_SECONDS = 10_000
CHOICES = {"deviceType": ("cpu", "gpu"), "parallelType": ("pp", "tp", "pptp", "custom")}
LOWEST = {"batchSize": 1, "minWorkers": 1, "maxSequenceJobQueueSize": 1, "maxNumSequence": 1}
"""Keys whose smaller numbers TorchServe raises to this one."""
IGNORED_BELOW = {"responseTimeout": (1, "120 s"), "startupTimeout": (1, "120 s"), "maxWorkers": (0, "nothing")}


def rewritten(file: ModelConfigFile, entry: Entry, value: str) -> Edit | None:
    """An edit that puts another value on a key's line; None when the value spans lines or the line is a flow."""
    text = file.line_text(entry.line)
    match = re.match(r"(\s*[\"']?[\w-]+[\"']?\s*:\s*)(\"[^\"]*\"|'[^']*'|[^\s#]+)(\s*(#.*)?)$", text)
    same_line = entry.node.end_mark.line + 1 == entry.line
    return Edit(entry.line, entry.line, (f"{match[1]}{value}{match[3]}",)) if match and same_line else None


def known(file: ModelConfigFile) -> Iterator[Entry]:
    """The pairs that the frontend reads."""
    return (entry for entry in file.entries() if entry.key in MODEL_CONFIG)


@rule(
    "yaml-type",
    ModelConfigFile,
    "error",
    "a value of the wrong type",
    "TorchServe takes whole numbers only where it wants numbers (8, not '8' or 8.0) and true or false only where it "
    "wants a switch; anything else is ignored with a line in the log.",
)
def wrong_type(file: ModelConfigFile) -> Iterator[Found]:
    """``batchSize: "8"``, ``useVenv: "true"``, ``deviceIds: 0``."""
    for entry in known(file):
        kind, value = MODEL_CONFIG[entry.key], entry.value
        right = _right_value(kind, value)
        if right is not None:
            effect = f"TorchServe ignores it: {entry.key} stays at its default"
            message = f"{entry.key} is {_shown(value)}; expected {_EXPECTED[kind]}"
            edit = rewritten(file, entry, right) if right else None
            yield Found(entry.line, message, effect, f"{entry.key}: {right or '...'}", edit)


_EXPECTED = {
    "int": "a whole number",
    "bool": "true or false",
    "text": "a word",
    "list": "a list of whole numbers",
    "map": "keys and values",
}


def _right_value(kind: str, value: Any) -> str | None:
    """None when the type is right; else what was probably meant, empty when that is not clear."""
    if kind == "int" and not is_int(value):
        meant = re.fullmatch(r"\s*(\d+)(\.0*)?\s*", str(value)) if not isinstance(value, bool) else None
        return meant[1] if meant and int(meant[1]) <= JAVA_INT_MAX else ""
    if kind == "bool" and not isinstance(value, bool):
        word = str(value).lower()
        return word if word in {"true", "false"} else ""
    if kind == "list" and not (isinstance(value, list) and all(map(is_int, value))):
        return f"[{value}]" if is_int(value) else ""
    if (kind == "text" and not isinstance(value, str)) or (kind == "map" and not isinstance(value, dict)):
        return ""
    return None


def _shown(value: Any) -> str:
    return f"the text {value!r}" if isinstance(value, str) else f"{value!r}" if value is not None else "empty"


@rule(
    "yaml-choice",
    ModelConfigFile,
    "error",
    "a device or kind of parallelism that does not exist",
    "deviceType is cpu or gpu, parallelType is pp, tp, pptp or custom; another word is ignored with a line in the log.",
)
def choice(file: ModelConfigFile) -> Iterator[Found]:
    """``deviceType: cuda``."""
    for entry in known(file):
        allowed = CHOICES.get(entry.key)
        if allowed and isinstance(entry.value, str) and entry.value.lower() not in allowed:
            right = {"cuda": "gpu"}.get(entry.value.lower(), allowed[0])
            message = f"{entry.key}: {entry.value} does not exist; there are {', '.join(allowed)}"
            yield Found(entry.line, message, "TorchServe ignores it and chooses itself", f"{entry.key}: {right}")


@rule(
    "yaml-range",
    ModelConfigFile,
    "error",
    "a number that TorchServe changes or ignores",
    "batchSize and minWorkers below 1 become 1; time-outs below 1 are ignored and 120 s hold; negative delays and "
    "maxWorkers are ignored.",
)
def out_of_range(file: ModelConfigFile) -> Iterator[Found]:
    """Zero and negative numbers."""
    for entry in known(file):
        value = entry.value
        if not is_int(value):
            continue
        if value < LOWEST.get(entry.key, value):
            effect = f"TorchServe makes {LOWEST[entry.key]} of it"
        elif entry.key in IGNORED_BELOW and value < IGNORED_BELOW[entry.key][0]:
            effect = f"TorchServe ignores it: {IGNORED_BELOW[entry.key][1]} holds"
        elif entry.key == "maxBatchDelay" and value < 0:
            effect = "TorchServe ignores it: 100 ms holds"
        elif value < 0 and MODEL_CONFIG[entry.key] == "int":
            effect = "TorchServe makes 0 of it"
        else:
            continue
        yield Found(entry.line, f"{entry.key} is {value}", effect, f"{entry.key}: 1")


@rule(
    "yaml-delay-zero",
    ModelConfigFile,
    "error",
    "maxBatchDelay: 0",
    "In the YAML 0 counts as 'not set' and becomes 100 ms. For 'take what is queued, wait for nobody' write 1.",
)
def delay_zero(file: ModelConfigFile) -> Iterator[Found]:
    """``maxBatchDelay: 0``."""
    entry = file.entry("maxBatchDelay")
    if entry and is_int(entry.value) and entry.value == 0:
        effect = "TorchServe waits up to 100 ms for a batch to fill"
        edit = rewritten(file, entry, "1")
        yield Found(entry.line, "maxBatchDelay 0 does not mean no delay", effect, "maxBatchDelay: 1", edit)


@rule(
    "yaml-workers-pair",
    ModelConfigFile,
    "error",
    "minWorkers without maxWorkers, or the other way round",
    "TorchServe uses the workers of the YAML only when both are there and maxWorkers is not below minWorkers.",
)
def workers_pair(file: ModelConfigFile) -> Iterator[Found]:
    """One of the two, or min above max."""
    low, high = file.entry("minWorkers"), file.entry("maxWorkers")
    given, missing = (low, "maxWorkers") if high is None else (high, "minWorkers")
    effect = "TorchServe ignores it and starts default_workers_per_model workers (none when registered by API)"
    if (low is None) != (high is None) and given and is_int(given.value):
        lines = (file.line_text(given.line), f"{missing}: {given.value}")
        plain = re.match(r"\w+Workers\s*:", lines[0]) is not None
        edit = Edit(given.line, given.line, lines) if plain else None
        yield Found(given.line, f"{given.key} is there and {missing} is not", effect, lines[1], edit)
    elif low and high and is_int(low.value) and is_int(high.value) and 0 <= high.value < max(1, low.value):
        message = f"minWorkers {low.value} is above maxWorkers {high.value}"
        yield Found(low.line, message, effect.replace("it", "both", 1), f"maxWorkers: {max(1, low.value)}")


@rule(
    "yaml-timeouts-pinned",
    ModelConfigFile,
    "note",
    "time-outs that are not written down",
    "An archive with a model-config.yaml has both time-outs fixed: those that the YAML lacks are 120 s, whatever "
    "default_response_timeout, default_startup_timeout, models={} and the API say. So write both.",
)
def timeouts_pinned(file: ModelConfigFile) -> Iterator[Found]:
    """One of the two left out."""
    missing = [key for key in TIMEOUTS if file.entry(key) is None]
    if missing and file.entries():
        effect = f"TorchServe uses {PINNED} s, whatever config.properties and the API say"
        right = "\n".join(f"{key}: {PINNED}" for key in missing)
        last = len(file.source.lines())
        block = isinstance(file.root, yaml.MappingNode) and not file.root.flow_style
        edit = Edit(last + 1, last, tuple(right.split("\n"))) if block else None
        yield Found(1, f"{' and '.join(missing)} not set", effect, right, edit)


@rule(
    "yaml-milliseconds",
    ModelConfigFile,
    "warning",
    "a time-out in milliseconds",
    "responseTimeout and startupTimeout are seconds; maxBatchDelay is milliseconds.",
)
def milliseconds(file: ModelConfigFile) -> Iterator[Found]:
    """``responseTimeout: 120000``."""
    for entry in file.entries():
        if entry.key in TIMEOUTS and is_int(entry.value) and entry.value >= MANY_SECONDS:
            effect = f"TorchServe waits {entry.value / 3600:.0f} hours for a worker that hangs"
            yield Found(entry.line, f"{entry.key} is in seconds", effect, f"{entry.key}: {entry.value // 1000}")
