"""What a handler is told when it loads, whoever loads it.

TorchServe's worker, the runner and a plain script each make one of these; the handler core knows no other
source of facts about where it runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelContext:
    """Where a model lies and how it was configured.

    Attributes:
        model_dir: the folder with the model's files (for TorchServe the unpacked archive).
        model_name: the name it is served under.
        model_version: its version, from the manifest.
        batch_size: the largest number of requests a batch can have, never the number it has.
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
