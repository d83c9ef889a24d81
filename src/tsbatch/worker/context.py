"""The context in which a handler loads.

TorchServe's worker, the runner and a plain script each create a :class:`ModelContext`; the handler has no other
source of information about where it runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelContext:
    """The location and configuration of a model.

    Attributes:
        model_dir: the folder with the model's files (for TorchServe the unpacked archive).
        model_name: the name it is served under.
        model_version: its version, from the manifest.
        batch_size: the largest number of requests in a batch, never the actual number.
        gpu_id: the GPU TorchServe assigned, or None.
        config: the whole of model-config.yaml.
        manifest: the ``model`` section of MAR-INF/MANIFEST.json.
    """

    model_dir: Path
    model_name: str = "model"
    model_version: str = "1.0"
    batch_size: int = 1
    gpu_id: int | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    manifest: Mapping[str, Any] = field(default_factory=dict)
