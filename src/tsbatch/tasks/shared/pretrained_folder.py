"""Check a transformers folder, and explain in one line why transformers cannot load it."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tsbatch.errors import LoadError, first_line
from tsbatch.tasks.shared.task_handler import abbreviate, read_json

PROCESSOR_FILES: Final = ("preprocessor_config.json", "processor_config.json")
"""Files of an image processor or a feature extractor; one of them is enough."""
TOKENIZER_FILES: Final = (
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.json",
    "vocab.txt",
    "spiece.model",
    "sentencepiece.bpe.model",
    "tokenizer.model",
)
"""Files of a tokenizer, which needs at least one of them."""
FILES: Final = (
    "config.json",
    "generation_config.json",
    "model.safetensors.index.json",
    "special_tokens_map.json",
    *(name for name in (*PROCESSOR_FILES, *TOKENIZER_FILES) if name.endswith(".json")),
)
"""Files that transformers reads as JSON; its message about a broken one does not name the file."""
HEADS: Final = ("SequenceClassification", "TokenClassification", "QuestionAnswering", "MaskedLM", "MultipleChoice")
"""Some of these heads have weights of the same names: one loads as the other, and gives nonsense."""
VECTOR_OUTPUTS: Final[Mapping[str, str]] = {
    "DPRContextEncoder": "pooler_output",
    "DPRQuestionEncoder": "pooler_output",
    "CLIPTextModelWithProjection": "text_embeds",
    "ClapTextModelWithProjection": "text_embeds",
    "MetaClip2TextModelWithProjection": "text_embeds",
    "CLIPVisionModelWithProjection": "image_embeds",
    "MetaClip2VisionModelWithProjection": "image_embeds",
}
"""Classes of transformers whose answer is one vector per input, and the name of that output."""


def read_config(folder: Path) -> Mapping[str, Any]:
    """Read the folder's ``config.json``.

    Raises:
        LoadError: it is missing or broken, or does not name the model or its classes.
    """
    path = folder / "config.json"
    if not path.is_file():
        raise LoadError("config.json: no such file in the archive; pack a folder saved by save_pretrained")
    config = read_json(path)
    if not isinstance(config, Mapping) or not config.keys() & {"model_type", "auto_map"}:
        raise LoadError("config.json: it has no model_type; pack a folder saved by save_pretrained")
    try:
        [int(index) for index in (config.get("id2label") or {}).keys()]  # noqa: SIM118  a list has none
    except (AttributeError, ValueError):
        raise LoadError('config.json: id2label: expected numbers and names, as {"0": "cat", "1": "dog"}') from None
    return config


def missing_names(config: Mapping[str, Any]) -> dict[str, Any]:
    """Derive ``id2label``, by which transformers counts the classes, if config.json has only ``label2id``.

    Raises:
        LoadError: label2id cannot be read.
    """
    indices = config.get("label2id")
    if config.get("id2label") is not None or not indices:
        return {}
    try:
        return {"id2label": {int(index): name for name, index in indices.items()}}
    except (AttributeError, TypeError, ValueError):
        raise LoadError('config.json: label2id: expected names and numbers, as {"cat": 0, "dog": 1}') from None


def check_complete(model: Any, config: Mapping[str, Any], missing: Sequence[str], task: str) -> None:
    """Refuse a model with weights that transformers initialised, or with the weights of another head.

    Raises:
        LoadError: the folder was saved for another task.
    """
    loaded = type(model).__name__
    if missing:
        raise LoadError(
            f"the folder has no weights for {abbreviate(missing)} of {loaded}; train and save the model for {task}, or "
            "choose the task that it was saved for"
        )
    saved, head = saved_as(config), saved_as(config).rpartition("For")[2]
    if head in HEADS and not loaded.endswith(head):
        raise LoadError(
            f"config.json: architectures: the folder was saved as {saved}, and {task} needs {loaded}; choose the task "
            "that it was saved for"
        )


def check_encoder(model: Any, config: Mapping[str, Any], missing: Sequence[str], unused: Sequence[str]) -> None:
    """Refuse an encoder with weights that transformers made up, or without the projection that was saved.

    Raises:
        LoadError: what is missing, and the likely cause.
    """
    made = type(model).__name__
    saved = saved_as(config)
    if saved.endswith("WithProjection") and not made.endswith("WithProjection"):
        raise LoadError(
            f"config.json: architectures: the folder was saved as {saved}, and {made} has no projection: its vectors "
            "would be those before it; write a custom handler"
        )
    lacking = [name for name in missing if "pooler" not in name]
    if not lacking:
        return
    prefix = next((name.removesuffix(lacking[0]) for name in unused if name.endswith(f".{lacking[0]}")), None)
    cause = (
        f"its weights have the prefix {prefix!r} (of a training framework); remove it from their names"
        if prefix
        else "the weights are of another model or incomplete; save the whole model with save_pretrained"
    )
    raise LoadError(f"the folder has no weights for {abbreviate(lacking)} of {made}: {cause}")


def saved_as(config: Mapping[str, Any]) -> str:
    """The name of the transformers class that the folder was saved from, by config.json; empty if it does not say."""
    names = config.get("architectures")
    return names[0] if isinstance(names, list) and names and isinstance(names[0], str) else ""


def vector_class(config: Mapping[str, Any]) -> Any:
    """The class of :data:`VECTOR_OUTPUTS` that the folder was saved from; None if it is none of these."""
    import transformers

    saved = saved_as(config)
    return getattr(transformers, saved, None) if saved in VECTOR_OUTPUTS else None


def check_shapes(mismatched: Iterable[Any], model: Any) -> None:
    """Refuse weights whose shapes differ from those that the config gives the model.

    Args:
        mismatched: what transformers reports: names (transformers 4), or names with the saved and expected shapes (5).
        model: the loaded model.

    Raises:
        LoadError: there are such weights.
    """
    entries = sorted((entry, None) if isinstance(entry, str) else entry[:2] for entry in mismatched)
    if not entries:
        return
    name, saved = entries[0]
    expected = list(model.state_dict()[name].shape)
    classes = getattr(model.config, "num_labels", 0)
    in_head = bool(expected) and expected[0] in (classes, classes + 1)  # detectors have a class for "no object"
    raise LoadError(
        f"config.json gives {name} the shape {expected}, and the archive's weights have "
        f"{'another' if saved is None else list(saved)}; "
        + ("id2label has to name the classes that it was trained for" if in_head else "they are of another model")
    )


def check_inputs(model: Any, inputs: Sequence[str], task: str) -> None:
    """Refuse a model that has none of the inputs that a task can provide.

    Raises:
        LoadError: the model takes something else.
    """
    known = inspect.signature(model.forward).parameters
    anything = any(entry.kind is inspect.Parameter.VAR_POSITIONAL for entry in known.values())
    if inputs and not anything and not known.keys() & set(inputs):
        kind, first = type(model).__name__, next(iter(known))
        raise LoadError(f"{task} gives a model {' or '.join(inputs)}, and {kind} takes {first}")


def load_failure(error: Exception, folder: Path, *, files: Sequence[str], task: str) -> str:
    """Why transformers could not load something: a fault of the folder if one can be seen, else its own message.

    Args:
        error: what transformers raised.
        folder: the unpacked archive.
        files: files of which at least one is needed.
        task: the name of the task.
    """
    if files and not any((folder / name).is_file() for name in files):
        return f"it has none of {', '.join(files)}; pack the whole folder that save_pretrained wrote"
    try:
        for name in FILES:
            if (folder / name).is_file() and not isinstance(read_json(folder / name), Mapping):
                return f"{name}: expected an object"
    except LoadError as broken:
        return str(broken)
    if "Unrecognized configuration class" in str(error):
        config = read_config(folder)
        saved = f", saved as {saved_as(config)}" if saved_as(config) else ""
        return f"transformers has no model for {task} of model_type {config.get('model_type')} (config.json){saved}"
    lacks = "tokenizer_config.json" in files and not (folder / "tokenizer_config.json").is_file()
    more = "; it has no tokenizer_config.json" if lacks else ""
    return first_line(error).replace(str(folder), "the archive") + more
