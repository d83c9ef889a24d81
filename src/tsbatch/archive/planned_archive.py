"""The contents of an archive that is about to be written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Archive:
    """What an archive will hold, before a byte of it is written.

    Attributes:
        name: the model's name.
        version: its version.
        files: path inside the archive: where the file lies now, or its bytes.
        config: the whole model-config.yaml.
        left_out: the model folder's files that do not go in.
        notes: what the person who packs should know.
        about: what the archive says of itself, beside the hashes of its files.
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
        """Bytes of all files together."""
        return sum(len(file) if isinstance(file, bytes) else file.stat().st_size for file in self.files.values())
