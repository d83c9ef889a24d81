"""Select a model folder's files for the archive.

A folder saved by transformers or downloaded from a hub often contains the same weights several times, for different
frameworks. The ready-made tasks load safetensors, so the other files would only make packaging and startup slower.
Custom handlers get the folder as it is.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

from tsbatch.errors import UsageError

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
"""Files that are left out of a folder with safetensors."""

OTHER_FRAMEWORK_FOLDERS = frozenset({"onnx", "openvino", "coreml"})
"""Folders that are left out if there are safetensors. Because they are named like packages, they could also be imported
by mistake: TorchServe puts the unpacked archive on the worker's PYTHONPATH."""

TRAINING = ("optimizer.pt", "scheduler.pt", "scaler.pt", "rng_state*.pth", "training_args.bin", "trainer_state.json")
"""Files that a Trainer saves next to a model; no handler loads them."""

PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")


def walk(folder: Path) -> dict[str, Path]:
    """Return the real path of every file below ``folder``, by path inside it, with forward slashes.

    Links are followed, because a hub's cache consists of them.

    Raises:
        UsageError: a link is broken or leads back to a parent folder, or something is not a file.
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
    """Return whether a path is hidden, compiled Python, or the manifest of an archive that was unpacked here."""
    parts = name.split("/")
    return (
        any(part.startswith(".") or part in ("__pycache__", "__MACOSX") for part in parts)
        or name.endswith(".pyc")
        or parts[0] == "MAR-INF"
    )


def not_needed(names: Mapping[str, Path]) -> list[str]:
    """Return the files of a transformers folder that are not needed besides its safetensors, or left by training."""
    with_safetensors = {str(PurePosixPath(name).parent) for name in names if name.endswith(".safetensors")}
    return [name for name in names if _is_superfluous(PurePosixPath(name), with_safetensors)]


def _is_superfluous(path: PurePosixPath, with_safetensors: set[str]) -> bool:
    if _matches(path.name, TRAINING) or path.parts[0].startswith("checkpoint-"):
        return True
    if "." in with_safetensors and path.parts[0] in OTHER_FRAMEWORK_FOLDERS:
        return True
    return str(path.parent) in with_safetensors and _matches(path.name, OTHER_FRAMEWORKS)


def pickled(names: Mapping[str, Path]) -> list[str]:
    """Return the pickles, whose loading can run code hidden in them."""
    return [name for name in names if _matches(name, PICKLED)]


def weight_bytes(names: Mapping[str, Path]) -> int:
    """Return the size of all weight files, of any framework, in bytes."""
    patterns = (*PICKLED, *OTHER_FRAMEWORKS, "*.safetensors")
    return sum(path.stat().st_size for name, path in names.items() if _matches(name, patterns))


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(PurePosixPath(name).name, pattern) for pattern in patterns)
