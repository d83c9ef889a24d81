"""Convert pickled weights to safetensors: loading a pickle can run code hidden in it, and copies every weight.

The tensors stay the same bit for bit, which is checked. A file that is not a plain state dict, or that the handler
opens itself, is refused unless ``--allow-pickle`` says that its author is trusted.
"""

from __future__ import annotations

import json
import pickle
import re
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from tsbatch.archive import model_folder
from tsbatch.archive.manifest import MANIFEST_NAME, model_section, with_model
from tsbatch.archive.planned_archive import Archive
from tsbatch.archive.writer import sha256
from tsbatch.errors import UsageError
from tsbatch.models.file_kinds import STATE_DICTS

if TYPE_CHECKING:
    import torch

ZIP_MAGIC = b"PK\x03\x04"
PICKLE_MAGIC = {b"\x80" + bytes([protocol]) for protocol in range(2, 6)}
IMPORTS_TSBATCH = re.compile(rb"^\s*(from|import)\s+tsbatch\b", re.MULTILINE)
INDEX = "pytorch_model.bin.index.json"
KEYS = ("state_dict", "model_state_dict")
"""Where trainers keep the state dict in a checkpoint."""


@contextmanager
def converted(
    archive: Archive, *, allow_pickle: bool = False, on_progress: Callable[[str], None] = lambda _: None
) -> Iterator[Archive]:
    """Yield the archive without pickled weights. Its files exist until the block ends.

    Args:
        archive: a planned archive.
        allow_pickle: keep pickles as they are, and add a note.
        on_progress: called with a line about each file before it is converted.

    Raises:
        UsageError: a pickle is no state dict, or its handler would not find the converted file.
    """
    files = {name: file for name, file in archive.files.items() if isinstance(file, Path)}
    pickles = [name for name in model_folder.pickled(files) if is_pickle(files[name])]
    if not pickles:
        yield archive
        return
    if allow_pickle:
        note = f"pickles are packed unchanged and can run code when they are loaded: {', '.join(pickles)}"
        yield replace(archive, notes=[*archive.notes, note])
        return
    _refuse_other_handlers(archive, pickles)
    with tempfile.TemporaryDirectory(prefix="tsbatch-convert-") as folder:
        yield _convert_all(archive, pickles, Path(folder), on_progress)


def is_pickle(path: Path) -> bool:
    """Return whether ``torch.load`` would unpickle a file.

    Decides as torch does: by the first bytes, not by a zip's table at the end, which any file can have.
    """
    with path.open("rb") as stream:
        start = stream.read(4)
    if start == ZIP_MAGIC:
        return not _is_torchscript(path)
    if path.suffix == ".bin":  # a suffix of many formats
        return start[:2] in PICKLE_MAGIC
    return bool(start)


def _is_torchscript(path: Path) -> bool:
    try:
        with zipfile.ZipFile(path) as archive:
            return any(PurePosixPath(name).parts[1:] == ("constants.pkl",) for name in archive.namelist())
    except zipfile.BadZipFile:
        return False


def _refuse_other_handlers(archive: Archive, pickles: list[str]) -> None:
    """Refuse handlers without tsbatch: only tsbatch's loading looks for safetensors in place of a pickle."""
    if archive.config["tsbatch"].get("task") or any(
        IMPORTS_TSBATCH.search(file if isinstance(file, bytes) else file.read_bytes())
        for name, file in archive.files.items()
        if name.endswith(".py")
    ):
        return
    raise UsageError(
        f"{', '.join(pickles)}: pickled, so loading it can run hidden code, and the handler opens it itself;"
        " save safetensors and load those, or give --allow-pickle if you trust the author"
    )


def _convert_all(archive: Archive, pickles: list[str], folder: Path, on_progress: Callable[[str], None]) -> Archive:
    files, names, sources = dict(archive.files), {}, {}
    for number, name in enumerate(pickles):
        path = files.pop(name)
        assert isinstance(path, Path)
        new = _new_name(name)
        if new in files:
            raise UsageError(f"{name} and {new} would be the same file; remove one of them, or give --allow-pickle")
        target = folder / f"{number}.safetensors"
        on_progress(f"converting {name} to safetensors")
        to_safetensors(path, target)
        files[new], names[name] = target, new
        sources[new] = {"from": name, "sha256": sha256(path)}
    _rename_in_indexes(files, names)
    serialized = model_section(files).get("serializedFile")
    if serialized in names:
        manifest = files[MANIFEST_NAME]
        assert isinstance(manifest, bytes)
        files[MANIFEST_NAME] = with_model(manifest, {"serializedFile": names[serialized]})
    note = "pickles were converted to safetensors: " + ", ".join(f"{old} as {new}" for old, new in names.items())
    about = {**archive.about, "converted": sources}
    return replace(archive, files=files, about=about, notes=[*archive.notes, note])


def _new_name(name: str) -> str:
    path = PurePosixPath(name)
    if path.suffix not in STATE_DICTS:
        raise UsageError(f"{name}: a pickle, which can run code when it is loaded; remove it, or give --allow-pickle")
    # The names that transformers uses: pytorch_model-00001-of-00002.bin, model-00001-of-00002.safetensors.
    return str(path.with_name(path.stem.removeprefix("pytorch_") + ".safetensors"))


def _rename_in_indexes(files: dict[str, Path | bytes], names: Mapping[str, str]) -> None:
    """Put the new names into the index of a sharded model."""
    for name in [name for name in files if PurePosixPath(name).name == INDEX]:
        file, folder = files.pop(name), PurePosixPath(name).parent
        index = json.loads(file if isinstance(file, bytes) else file.read_bytes())
        shards = {old: PurePosixPath(names[str(folder / old)]).name for old in set(index["weight_map"].values())}
        index["weight_map"] = {weight: shards[old] for weight, old in index["weight_map"].items()}
        files[str(folder / "model.safetensors.index.json")] = json.dumps(index, indent=2).encode("utf-8")


def to_safetensors(path: Path, target: Path) -> None:
    """Write a pickled state dict as safetensors.

    Tensors that share memory, such as tied weights, are copied: safetensors cannot share memory, and this way every
    name can be loaded.

    Raises:
        UsageError: the file is broken, or holds more than tensors.
    """
    import torch
    from safetensors.torch import load_file, save_file

    state = _state_dict(path)
    try:
        save_file(_unshared(state), target, metadata={"format": "pt"})
    except (ValueError, RuntimeError, KeyError) as error:  # sparse and quantised tensors, for example
        raise _not_convertible(path, " ".join(str(error).split())) from None
    written = load_file(target)
    for name, tensor in state.items():
        if not torch.equal(_bits(tensor), _bits(written[name])):
            raise _not_convertible(path, f"{name} differs after the conversion")


def _unshared(state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the tensors, each with its own memory."""
    seen: set[int] = set()
    unshared: dict[str, torch.Tensor] = {}
    for name, tensor in state.items():
        memory = tensor.untyped_storage().data_ptr()
        unshared[name] = tensor.clone() if memory in seen else tensor.contiguous()
        seen.add(memory)
    return unshared


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    import torch

    return tensor.contiguous().reshape(-1).view(torch.uint8)


def _state_dict(path: Path) -> Mapping[str, torch.Tensor]:
    import torch

    try:
        # Files from before torch 1.6 are not zips and cannot be memory-mapped.
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except pickle.UnpicklingError:
        raise _not_convertible(path, "it is broken, or holds more than weights (a whole pickled module?)") from None
    except Exception as error:  # corrupt files raise anything
        raise _not_convertible(path, f"{type(error).__name__}: {' '.join(str(error).split())[:200]}") from None
    state = next((state[key] for key in KEYS if isinstance(state, Mapping) and _is_state_dict(state.get(key))), state)
    if not _is_state_dict(state):
        keys = ", ".join(map(str, list(state)[:8])) if isinstance(state, Mapping) else type(state).__name__
        raise _not_convertible(path, f"expected names and tensors only, found {keys}")
    return dict(state)


def _is_state_dict(value: Any) -> bool:
    import torch

    return isinstance(value, Mapping) and all(
        isinstance(name, str) and isinstance(tensor, torch.Tensor) for name, tensor in value.items()
    )


def _not_convertible(path: Path, reason: str) -> UsageError:
    return UsageError(
        f"{path}: a pickle that cannot be converted to safetensors: {reason}; save the state dict with"
        " safetensors.torch.save_file(model.state_dict(), ...), or give --allow-pickle if you trust the author"
    )
