"""Auxiliary files (labels, vocabularies, thresholds), read once when the worker loads.

``tsbatch.aux`` in model-config.yaml maps names to files in the archive; ``self.aux["labels"]`` then holds
the content of the file. Reading such files on the first request, or on every request, makes handlers slow and fragile.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import yaml

from tsbatch.errors import LoadError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def _read_safetensors(path: Path) -> Any:
    from safetensors.torch import load_file

    return load_file(path)


def _read_array(path: Path) -> Any:
    loaded = np.load(path, allow_pickle=False)
    return dict(loaded) if isinstance(loaded, np.lib.npyio.NpzFile) else loaded


def _read_text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


READERS: Mapping[str, Callable[[Path], Any]] = {
    ".json": lambda path: json.loads(_read_text(path)),
    ".yaml": lambda path: yaml.safe_load(_read_text(path)),
    ".yml": lambda path: yaml.safe_load(_read_text(path)),
    ".toml": lambda path: tomllib.loads(_read_text(path)),
    ".txt": _read_text,
    ".npy": _read_array,
    ".npz": _read_array,
    ".safetensors": _read_safetensors,
}
"""The reader for each file extension. None of them runs code from the file (no pickles)."""


def load_auxiliary(files: Mapping[str, str], model_dir: Path) -> Mapping[str, Any]:
    """Return the contents of the files by name, in an immutable mapping.

    Raises:
        LoadError: a file is missing, outside the model folder, of an unknown type, or broken.
    """
    return MappingProxyType({name: _load(name, file, model_dir) for name, file in files.items()})


def _load(name: str, file: str, model_dir: Path) -> Any:
    where = f"model-config.yaml: tsbatch.aux.{name}: {file}"
    path = (model_dir / file).resolve()
    if not path.is_relative_to(model_dir.resolve()):
        raise LoadError(f"{where}: is outside the archive; use a file that was packaged")
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise LoadError(f"{where}: unknown file type; supported types are {', '.join(READERS)}")
    if not path.is_file():
        raise LoadError(f"{where}: no such file in the archive; add it with: tsbatch package --aux {name}={file}")
    try:
        return reader(path)
    except ImportError as error:
        raise LoadError(f"{where}: requires the package {error.name}: pip install {error.name}") from None
    except Exception as error:  # each format raises its own errors
        raise LoadError(f"{where}: cannot be read: {type(error).__name__}: {error}") from None
