"""The contents of an archive that is about to be written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Archive:
    """The contents of an archive before it is written.

    Attributes:
        name: the model's name.
        version: its version.
        files: each file's current path or its bytes, by path inside the archive.
        config: the complete model-config.yaml.
        left_out: the model folder's files that are not included.
        notes: what the user should know.
        about: what the archive records about itself, besides the hashes of its files.
    """

    name: str
    version: str
    files: Mapping[str, Path | bytes]
    config: Mapping[str, Any]
    left_out: Sequence[str] = ()
    notes: Sequence[str] = ()
    about: Mapping[str, Any] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Size of all files together, in bytes."""
        return sum(len(file) if isinstance(file, bytes) else file.stat().st_size for file in self.files.values())
