"""Rules for the keys of model-config.yaml."""

from __future__ import annotations

import re
from collections.abc import Iterator

import yaml

from tsbatch.configuration.known_settings import MEANT_FOR_THE_SERVER, MODEL_CONFIG, PROPERTIES, TORCHRUN
from tsbatch.errors import SettingsError
from tsbatch.lint.findings import Edit, Issue
from tsbatch.lint.registry import rule
from tsbatch.lint.rules.shared_checks import IGNORED, repeated_keys, unknown
from tsbatch.lint.yaml_file import ModelConfigFile, entries_of
from tsbatch.settings import BREAKS_BATCHING, Settings, parse_section

HANDLER_SECTIONS = {"tsbatch", "handler"}
OF_THE_MODEL = {
    "job_queue_size": "jobQueueSize",
    "default_response_timeout": "responseTimeout",
    "default_startup_timeout": "startupTimeout",
    "default_workers_per_model": "minWorkers",
}
"""Key of config.properties: the key of model-config.yaml that does the same for one model."""


@rule("yaml-syntax", ModelConfigFile, "error")
def syntax(file: ModelConfigFile) -> Iterator[Issue]:
    """A model-config.yaml that is not YAML.

    TorchServe registers the model without its settings, and no worker loads, because each worker reads the file too.
    YAML that is not a mapping is refused at once.
    """
    if file.problem:
        effect = "TorchServe ignores all of it, and no worker loads"
        yield Issue(file.problem[0], f"not YAML: {file.problem[1]}", effect)
    elif file.root is not None and not isinstance(file.root, yaml.MappingNode):
        message = "expected lines of 'key: value'"
        yield Issue(1, message, "TorchServe cannot load the model: ClassCastException", "batchSize: 8")


@rule("yaml-empty", ModelConfigFile, "error")
def empty(file: ModelConfigFile) -> Iterator[Issue]:
    """An empty model-config.yaml.

    TorchServe reads an empty YAML file as null and fails to load the model. Leave the file out of the archive instead.
    """
    if file.root is None and not file.problem:
        effect = "TorchServe cannot load the model: NullPointerException"
        yield Issue(1, "the file contains no setting", effect, "minWorkers: 1\nmaxWorkers: 1")


@rule("yaml-unknown-key", ModelConfigFile, "error")
def unknown_key(file: ModelConfigFile) -> Iterator[Issue]:
    """A misspelled key.

    TorchServe's frontend silently ignores a key of model-config.yaml that it does not know. (Keys that resemble none of
    TorchServe's are assumed to be the handler's own.)
    """
    for entry in file.entries():
        message, meant = unknown(entry.key, MODEL_CONFIG)
        if meant and entry.key not in {*MODEL_CONFIG, *PROPERTIES, *MEANT_FOR_THE_SERVER, *HANDLER_SECTIONS}:
            old = file.line_text(entry.line)
            new = re.sub(rf"^(\s*[\"']?){re.escape(entry.key)}", rf"\g<1>{meant}", old)
            edit = Edit(entry.line, entry.line, (new,)) if new != old else None
            yield Issue(entry.line, message, IGNORED, new.strip(), edit)


@rule("yaml-server-key", ModelConfigFile, "error")
def server_key(file: ModelConfigFile) -> Iterator[Issue]:
    """A server setting in the model's file.

    Keys of config.properties have no effect in model-config.yaml; some of them have a counterpart for one model.
    """
    for entry in file.entries():
        key = MEANT_FOR_THE_SERVER.get(entry.key, entry.key)
        if key in PROPERTIES:
            own = OF_THE_MODEL.get(key)
            right = f"{own}: {entry.value}" if own else f"in config.properties: {key}={entry.value}"
            yield Issue(entry.line, f"{entry.key} is not a key of model-config.yaml", IGNORED, right)


@rule("yaml-nested-key", ModelConfigFile, "warning")
def nested_key(file: ModelConfigFile) -> Iterator[Issue]:
    """One of TorchServe's keys inside a section.

    The frontend reads its keys only at the top level; inside a section, they reach only the handler.
    """
    for section in file.entries():
        for entry in entries_of(section.node):
            if entry.key in MODEL_CONFIG:
                message = f"{section.key}.{entry.key}: TorchServe expects {entry.key} at the top level"
                effect = f"TorchServe does not see it; {entry.key} keeps its default"
                yield Issue(entry.line, message, effect, f"{entry.key}: {entry.value}")


@rule("yaml-duplicate-key", ModelConfigFile, "error")
def duplicate_key(file: ModelConfigFile) -> Iterator[Issue]:
    """A duplicate key.

    If a key occurs twice, the last one silently wins.
    """
    for entry, last in repeated_keys(file.entries()):
        message, effect = f"{entry.key} is set again in line {last.line}", f"TorchServe uses line {last.line}"
        yield Issue(entry.line, message, effect, f"remove line {entry.line}")


@rule("yaml-torchrun-key", ModelConfigFile, "error")
def torchrun_key(file: ModelConfigFile) -> Iterator[Issue]:
    """An unknown key in the torchrun section.

    The keys in the torchrun section are written with dashes (nproc-per-node); for others, TorchServe logs 'unsupported
    parameter' and uses the default.
    """
    section = file.entry("torchrun")
    for entry in entries_of(section.node) if section else ():
        if entry.key not in TORCHRUN:
            message, meant = unknown(entry.key, TORCHRUN)
            right = f"{meant}: {entry.value}" if meant else ""
            yield Issue(entry.line, f"torchrun: {message}", "TorchServe uses the default", right)


@rule("yaml-tsbatch", ModelConfigFile, "error")
def tsbatch_section(file: ModelConfigFile) -> Iterator[Issue]:
    """An invalid setting in the tsbatch section.

    The worker refuses to load with the same message: tsbatch validates its section and accepts no unknown keys.
    """
    section = file.entry("tsbatch")
    if section is None:
        return
    try:
        parse_section(Settings, {} if section.value is None else section.value, "tsbatch")
    except SettingsError as error:
        message = str(error).removeprefix("model-config.yaml: ")
        inside = next((entry.line for entry in entries_of(section.node) if f"tsbatch.{entry.key}" in message), None)
        yield Issue(inside or section.line, message, "the worker does not load")


@rule("yaml-breaks-batching", ModelConfigFile, "error")
def breaks_batching(file: ModelConfigFile) -> Iterator[Issue]:
    """A mode that BatchHandler does not support.

    asyncCommunication, continuousBatching and sequenceBatching change the arguments and the return value of handle(),
    so a tsbatch handler refuses to load with them.
    """
    for entry in file.entries():
        if entry.key in BREAKS_BATCHING and entry.value is True and file.entry("tsbatch"):
            edit = Edit(entry.line, entry.line, ())
            message = f"{entry.key} is on ({BREAKS_BATCHING[entry.key]})"
            yield Issue(entry.line, message, "the worker does not load", f"remove line {entry.line}", edit)
