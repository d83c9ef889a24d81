"""What of a model folder goes into an archive, and whether it is all there.

A folder saved by transformers or downloaded from a hub often holds the same weights several times, for other
frameworks. The ready-made tasks load safetensors, so the rest would only make archive and start slower. Own
handlers get the folder as it is.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

from tsbatch.errors import UsageError
from tsbatch.ops.tasks import needs

OTHER_FRAMEWORKS = (
    "pytorch_model*.bin",
    "pytorch_model*.bin.index.json",
    "consolidated*.pt*",
    "tf_model*.h5",
    "flax_model*.msgpack*",
    "rust_model.ot",
    "*.onnx",
    "*.onnx_data",
    "*.gguf",
    "*.tflite",
)
"""Files that are left out of a folder which has safetensors."""

OTHER_FRAMEWORK_FOLDERS = frozenset({"onnx", "openvino", "coreml"})
"""Folders that are left out beside safetensors. Named like packages, they could also be imported by mistake:
TorchServe puts the unpacked archive on the worker's PYTHONPATH."""

TRAINING = ("optimizer.pt", "scheduler.pt", "scaler.pt", "rng_state*.pth", "training_args.bin", "trainer_state.json")
"""What a Trainer leaves beside a model; no handler loads it."""

PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")

TOKENIZER_FILES = (
    "tokenizer.json",
    "vocab.txt",
    "vocab.json",
    "spiece.model",
    "sentencepiece.bpe.model",
    "tokenizer.model",
    "bpe.codes",
)

PROCESSOR_FILES = ("preprocessor_config.json", "processor_config.json")
"""Of transformers 4 and 5."""


def walk(folder: Path) -> dict[str, Path]:
    """Every file below ``folder``: its path inside the folder, with slashes, and where it really lies.

    Links are followed, as a hub's cache is made of them.

    Raises:
        UsageError: a broken link, a link that leads back into itself, or something that is not a file.
    """
    return dict(_walk(folder, PurePosixPath(), (folder.resolve(),)))


def _walk(folder: Path, inside: PurePosixPath, above: tuple[Path, ...]) -> Iterator[tuple[str, Path]]:
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        path, name = Path(entry.path), inside / entry.name
        if path.is_dir():
            real = path.resolve()
            if real in above:
                raise UsageError(f"{path}: this link leads back to {real}; remove it")
            yield from _walk(path, name, (*above, real))
        elif path.is_file():
            yield str(name), path
        elif path.is_symlink():
            raise UsageError(f"{path}: broken link to {path.readlink()}; complete the model folder or remove the link")
        else:
            raise UsageError(f"{path}: neither a file nor a folder; it cannot go into an archive")


def clutter(name: str) -> bool:
    """Whether a path is hidden, compiled Python, or the manifest of an archive that was unpacked here."""
    parts = name.split("/")
    return (
        any(part.startswith(".") or part in ("__pycache__", "__MACOSX") for part in parts)
        or name.endswith(".pyc")
        or parts[0] == "MAR-INF"
    )


def not_needed(names: Mapping[str, Path]) -> list[str]:
    """The files of a transformers folder that its safetensors make superfluous, and what training left."""
    with_safetensors = {str(PurePosixPath(name).parent) for name in names if name.endswith(".safetensors")}
    return [name for name in names if _superfluous(PurePosixPath(name), with_safetensors)]


def _superfluous(path: PurePosixPath, with_safetensors: set[str]) -> bool:
    if _matches(path.name, TRAINING) or path.parts[0].startswith("checkpoint-"):
        return True
    if "." in with_safetensors and path.parts[0] in OTHER_FRAMEWORK_FOLDERS:
        return True
    return str(path.parent) in with_safetensors and _matches(path.name, OTHER_FRAMEWORKS)


def pickled(names: Mapping[str, Path]) -> list[str]:
    """The files whose loading can run code that somebody hid in them."""
    return [name for name in names if _matches(name, PICKLED)]


def weight_bytes(names: Mapping[str, Path]) -> int:
    """Bytes of all weight files, of whatever framework."""
    patterns = (*PICKLED, *OTHER_FRAMEWORKS, "*.safetensors")
    return sum(path.stat().st_size for name, path in names.items() if _matches(name, patterns))


def check_transformers(folder: Path, names: Mapping[str, Path], task: str) -> None:
    """Says what a transformers folder lacks, before a worker finds out.

    Args:
        folder: for the message.
        names: what goes into the archive.
        task: a ready-made task.

    Raises:
        UsageError: config.json, weights, one of the weights' shards, the tokenizer or the processor is missing.
    """
    wanted = needs(task)
    if not wanted.transformers:
        return
    if "config.json" not in names:
        raise UsageError(
            f"{folder}: no config.json{_old_layout(names)}; --task {task} needs a transformers folder: config.json,"
            " model.safetensors and the tokenizer's files, as model.save_pretrained() and tokenizer.save_pretrained()"
            " write them"
        )
    _check_weights(folder, names)
    if wanted.tokenizer and names.keys().isdisjoint(TOKENIZER_FILES):
        raise UsageError(
            f"{folder}: no tokenizer; --task {task} needs tokenizer.json, or one of "
            f"{', '.join(TOKENIZER_FILES[1:])}; tokenizer.save_pretrained() writes them"
        )
    if wanted.processor and names.keys().isdisjoint(PROCESSOR_FILES):
        raise UsageError(
            f"{folder}: no preprocessor_config.json; --task {task} needs it beside the model; "
            "processor.save_pretrained() writes it"
        )


def _old_layout(names: Mapping[str, Path]) -> str:
    """Folders of sentence-transformers before 2.0 have the transformer one level down."""
    inner = "0_Transformer/config.json"
    return f" (only {inner}; load and save the model once with sentence-transformers 2.0 or later)" * (inner in names)


def _check_weights(folder: Path, names: Mapping[str, Path]) -> None:
    at_top = [name for name in names if "/" not in name]
    if not any(name.endswith(".safetensors") or fnmatchcase(name, "pytorch_model*.bin") for name in at_top):
        raise UsageError(f"{folder}: no weights; expected model.safetensors, as model.save_pretrained() writes it")
    for index in (name for name in at_top if name.endswith((".safetensors.index.json", ".bin.index.json"))):
        try:
            shards = set(json.loads(names[index].read_bytes())["weight_map"].values())
        except (ValueError, LookupError, TypeError, AttributeError):
            raise UsageError(f"{folder / index}: not an index of weights ('weight_map' is missing)") from None
        missing = sorted(str(shard) for shard in shards if shard not in names)
        if missing:
            raise UsageError(f"{folder / index}: names weights that are not there: {', '.join(missing)}")


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(PurePosixPath(name).name, pattern) for pattern in patterns)
