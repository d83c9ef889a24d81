"""What a transformers folder says of its model, and in one line why transformers cannot load it."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tsbatch.errors import LoadError
from tsbatch.tasks.shared.task_handler import first_line, read_json

PROCESSOR_FILES: Final = ("preprocessor_config.json", "processor_config.json")
"""Of an image processor or a feature extractor; one of them is enough."""
TOKENIZER_FILES: Final = (
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.json",
    "vocab.txt",
    "spiece.model",
    "sentencepiece.bpe.model",
    "tokenizer.model",
)
"""Of a tokenizer; one of them is the least that it needs."""
FILES: Final = (
    "config.json",
    "generation_config.json",
    "model.safetensors.index.json",
    "special_tokens_map.json",
    *(name for name in (*PROCESSOR_FILES, *TOKENIZER_FILES) if name.endswith(".json")),
)
"""What transformers reads as JSON; where one is broken it tells where in the text, and not in which."""
HEADS: Final = ("SequenceClassification", "TokenClassification", "QuestionAnswering", "MaskedLM", "MultipleChoice")
"""Some heads have the same weights as another: each loads as the other, and answers nonsense."""


def read_config(folder: Path) -> Mapping[str, Any]:
    """The folder's ``config.json``.

    Raises:
        LoadError: it is missing or broken, or does not say what the model is or its classes are.
    """
    path = folder / "config.json"
    if not path.is_file():
        raise LoadError("config.json: no such file in the archive; pack a folder saved by save_pretrained")
    config = read_json(path)
    if not isinstance(config, Mapping) or not config.keys() & {"model_type", "auto_map"}:
        raise LoadError("config.json: it has no model_type; pack a folder saved by save_pretrained")
    try:
        [int(place) for place in (config.get("id2label") or {}).keys()]  # noqa: SIM118  a list has none
    except (AttributeError, ValueError):
        raise LoadError('config.json: id2label: expected numbers and names, as {"0": "cat", "1": "dog"}') from None
    return config


def missing_names(config: Mapping[str, Any]) -> dict[str, Any]:
    """``id2label``, by which transformers counts the classes, where config.json has ``label2id`` alone.

    Raises:
        LoadError: label2id cannot be read.
    """
    places = config.get("label2id")
    if config.get("id2label") is not None or not places:
        return {}
    try:
        return {"id2label": {int(place): name for name, place in places.items()}}
    except (AttributeError, TypeError, ValueError):
        raise LoadError('config.json: label2id: expected names and numbers, as {"cat": 0, "dog": 1}') from None


def check_whole(model: Any, config: Mapping[str, Any], missing: Sequence[str], task: str) -> None:
    """Refuse a model with weights that transformers made up, or with another head's.

    Raises:
        LoadError: the folder was saved for something else.
    """
    made = type(model).__name__
    if missing:
        raise LoadError(
            f"the folder has no weights for {some(missing)} of {made}; train and save the model for {task}, or choose "
            "the task that it was saved for"
        )
    saved, head = saved_as(config), saved_as(config).rpartition("For")[2]
    if head in HEADS and not made.endswith(head):
        raise LoadError(
            f"config.json: architectures: the folder was saved as {saved}, and {task} needs {made}; choose the task "
            "that it was saved for"
        )


def saved_as(config: Mapping[str, Any]) -> str:
    """The class in transformers that the folder was saved from, as far as config.json says it; else nothing."""
    names = config.get("architectures")
    return names[0] if isinstance(names, list) and names and isinstance(names[0], str) else ""


def check_shapes(mismatched: Iterable[Any], model: Any) -> None:
    """Refuse weights of other shapes than the config gives the model.

    Args:
        mismatched: of the weights' loading: names (transformers 4), or names with the shapes saved and wanted (5).
        model: what was loaded.

    Raises:
        LoadError: there is one.
    """
    entries = sorted((entry, None) if isinstance(entry, str) else entry[:2] for entry in mismatched)
    if not entries:
        return
    name, saved = entries[0]
    wanted = list(model.state_dict()[name].shape)
    classes = getattr(model.config, "num_labels", 0)
    a_head = bool(wanted) and wanted[0] in (classes, classes + 1)  # detectors have one for nothing, too
    raise LoadError(
        f"config.json gives {name} the shape {wanted}, and the archive's weights have "
        f"{'another' if saved is None else list(saved)}; "
        + ("id2label has to name the classes that it was trained for" if a_head else "they are of another model")
    )


def check_takes(model: Any, inputs: Sequence[str], task: str) -> None:
    """Refuse a model that has none of the inputs that a task can give.

    Raises:
        LoadError: it takes something else.
    """
    known = inspect.signature(model.forward).parameters
    anything = any(entry.kind is inspect.Parameter.VAR_POSITIONAL for entry in known.values())
    if inputs and not anything and not known.keys() & set(inputs):
        made = type(model).__name__
        raise LoadError(f"{task} gives a model {' or '.join(inputs)}, and {made} takes {next(iter(known))}")


def cannot_load(what: str, error: Exception, folder: Path, *, files: Sequence[str], task: str) -> LoadError:
    """Why transformers could not load something: the folder's fault where it can be seen, else what it said.

    Args:
        what: the thing's name.
        error: what transformers raised.
        folder: the unpacked archive.
        files: those of which it needs one.
        task: what it was for.
    """
    return LoadError(f"the {what} cannot be loaded from the archive: {_why(error, folder, files, task)}")


def _why(error: Exception, folder: Path, files: Sequence[str], task: str) -> str:
    if files and not any((folder / name).is_file() for name in files):
        return f"it has none of {', '.join(files)}; pack the whole folder that save_pretrained wrote"
    try:
        for name in FILES:
            if (folder / name).is_file() and not isinstance(read_json(folder / name), Mapping):
                return f"{name}: expected an object"
    except LoadError as broken:
        return str(broken)
    if "Unrecognized configuration class" in str(error):
        kind = read_config(folder).get("model_type")
        return f"transformers has no model for {task} of model_type {kind} (config.json)"
    lacks = "tokenizer_config.json" in files and not (folder / "tokenizer_config.json").is_file()
    more = "; it has no tokenizer_config.json" if lacks else ""
    return first_line(error).replace(str(folder), "the archive") + more


def some(names: Sequence[str], most: int = 3) -> str:
    """The first names, and how many more there are."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
