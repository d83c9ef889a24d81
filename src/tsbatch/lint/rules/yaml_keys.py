"""Rules over the keys of model-config.yaml."""

from __future__ import annotations

import re
from collections.abc import Iterator

import yaml

from tsbatch.configuration.known_settings import MEANT_FOR_THE_SERVER, MODEL_CONFIG, PROPERTIES, TORCHRUN, nearest
from tsbatch.errors import SettingsError
from tsbatch.lint.findings import Edit, Found
from tsbatch.lint.registry import rule
from tsbatch.lint.yaml_file import ModelConfigFile, entries_of
from tsbatch.settings import BREAKS_BATCHING, Settings, parse_section

OURS = {"tsbatch", "handler"}


@rule(
    "yaml-syntax",
    ModelConfigFile,
    "error",
    "a model-config.yaml that is not YAML",
    "TorchServe registers the model without its settings, and no worker loads: each reads the file too. What is YAML "
    "and no mapping is refused at once.",
)
def syntax(file: ModelConfigFile) -> Iterator[Found]:
    """Tabs, broken indentation, and a file that is no mapping."""
    if file.problem:
        effect = "TorchServe ignores all of it, and no worker loads"
        yield Found(file.problem[0], f"not YAML: {file.problem[1]}", effect)
    elif file.root is not None and not isinstance(file.root, yaml.MappingNode):
        message = "expected lines of 'key: value'"
        yield Found(1, message, "TorchServe cannot load the model: ClassCastException", "batchSize: 8")


@rule(
    "yaml-empty",
    ModelConfigFile,
    "error",
    "an empty model-config.yaml",
    "Of an empty YAML file TorchServe makes a null and trips over it; the model does not load. Leave the file out of "
    "the archive instead.",
)
def empty(file: ModelConfigFile) -> Iterator[Found]:
    """Nothing in it, or comments alone."""
    if file.root is None and not file.problem:
        effect = "TorchServe cannot load the model: NullPointerException"
        yield Found(1, "the file holds no setting", effect, "minWorkers: 1\nmaxWorkers: 1")


@rule(
    "yaml-unknown-key",
    ModelConfigFile,
    "error",
    "a misspelt key",
    "TorchServe's frontend drops a key of model-config.yaml that it does not know, without a word. (Keys that look "
    "like none of TorchServe's are taken for the handler's own.)",
)
def unknown_key(file: ModelConfigFile) -> Iterator[Found]:
    """``batchsize`` and ``max_batch_delay``, with the right key."""
    for entry in file.entries():
        if entry.key in {*MODEL_CONFIG, *PROPERTIES, *MEANT_FOR_THE_SERVER, *OURS}:
            continue
        near = nearest(entry.key, MODEL_CONFIG)
        if near:
            text = re.sub(rf"^(\s*[\"']?){re.escape(entry.key)}", rf"\g<1>{near}", file.line_text(entry.line))
            edit = Edit(entry.line, entry.line, (text,)) if text != file.line_text(entry.line) else None
            message = f"{entry.key} is no key; did you mean {near}?"
            yield Found(entry.line, message, "TorchServe ignores it without a word", text.strip(), edit)


@rule(
    "yaml-server-key",
    ModelConfigFile,
    "error",
    "a setting of the server in the model's file",
    "Keys of config.properties have no effect in model-config.yaml; the model has keys of its own for some of them.",
)
def server_key(file: ModelConfigFile) -> Iterator[Found]:
    """``default_response_timeout`` in the YAML."""
    own = {
        "job_queue_size": "jobQueueSize",
        "default_response_timeout": "responseTimeout",
        "default_startup_timeout": "startupTimeout",
        "default_workers_per_model": "minWorkers",
    }
    for entry in file.entries():
        if entry.key in PROPERTIES or entry.key in MEANT_FOR_THE_SERVER:
            key = MEANT_FOR_THE_SERVER.get(entry.key, entry.key)
            right = f"{own[key]}: {entry.value}" if key in own else f"in config.properties: {key}={entry.value}"
            message = f"{entry.key} is no key of model-config.yaml"
            yield Found(entry.line, message, "TorchServe ignores it without a word", right)


@rule(
    "yaml-nested-key",
    ModelConfigFile,
    "warning",
    "TorchServe's key inside a section",
    "The frontend reads its keys at the top level alone; below a section they reach the handler and nobody else.",
)
def nested_key(file: ModelConfigFile) -> Iterator[Found]:
    """``handler: {batchSize: 8}``."""
    for section in file.entries():
        for entry in entries_of(section.node):
            if entry.key in MODEL_CONFIG:
                message = f"{section.key}.{entry.key}: TorchServe looks for {entry.key} at the top level"
                effect = f"TorchServe does not see it; {entry.key} stays at its default"
                yield Found(entry.line, message, effect, f"{entry.key}: {entry.value}")


@rule(
    "yaml-duplicate-key",
    ModelConfigFile,
    "error",
    "a key that stands there twice",
    "Of a key that stands there twice the last one holds, without a word.",
)
def duplicate_key(file: ModelConfigFile) -> Iterator[Found]:
    """All but the last of equal keys at the top level."""
    found = file.entries()
    for place, entry in enumerate(found):
        later = [other for other in found[place + 1 :] if other.key == entry.key]
        if later:
            effect = f"TorchServe uses line {later[-1].line}"
            message = f"{entry.key} stands in line {later[-1].line} again"
            yield Found(entry.line, message, effect, f"remove line {entry.line}")


@rule(
    "yaml-torchrun-key",
    ModelConfigFile,
    "error",
    "an unknown key under torchrun:",
    "Under torchrun: the keys are written with dashes (nproc-per-node); TorchServe logs 'unsupported parameter' and "
    "goes on with the default.",
)
def torchrun_key(file: ModelConfigFile) -> Iterator[Found]:
    """``nproc_per_node``."""
    section = file.entry("torchrun")
    for entry in entries_of(section.node) if section else ():
        if entry.key not in TORCHRUN:
            near = nearest(entry.key, TORCHRUN)
            message = f"torchrun.{entry.key} is no key" + (f"; did you mean {near}?" if near else "")
            yield Found(
                entry.line, message, "TorchServe goes on with the default", f"{near}: {entry.value}" if near else ""
            )


@rule(
    "yaml-tsbatch",
    ModelConfigFile,
    "error",
    "a wrong setting under tsbatch:",
    "The worker refuses to load with the same message: tsbatch checks its section and takes no unknown keys.",
)
def tsbatch_section(file: ModelConfigFile) -> Iterator[Found]:
    """What the settings of tsbatch refuse."""
    section = file.entry("tsbatch")
    if section is None:
        return
    try:
        parse_section(Settings, {} if section.value is None else section.value, "tsbatch")
    except SettingsError as error:
        message = str(error).removeprefix("model-config.yaml: ")
        inside = next((entry.line for entry in entries_of(section.node) if f"tsbatch.{entry.key}" in message), None)
        yield Found(inside or section.line, message, "the worker does not load")


@rule(
    "yaml-breaks-batching",
    ModelConfigFile,
    "error",
    "a mode that a BatchHandler cannot work with",
    "asyncCommunication, continuousBatching and sequenceBatching change what handle() is given and must return; a "
    "tsbatch handler refuses to load with them.",
)
def breaks_batching(file: ModelConfigFile) -> Iterator[Found]:
    """One of these modes beside ``tsbatch:``."""
    for entry in file.entries():
        if entry.key in BREAKS_BATCHING and entry.value is True and file.entry("tsbatch"):
            edit = Edit(entry.line, entry.line, ())
            message = f"{entry.key} is on ({BREAKS_BATCHING[entry.key]})"
            yield Found(entry.line, message, "the worker does not load", f"remove line {entry.line}", edit)
