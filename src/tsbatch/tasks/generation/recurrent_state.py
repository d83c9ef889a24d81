"""The state that some models keep between calls of ``generate``."""

from __future__ import annotations

from typing import Any


def reset_state(model: Any, rows: int) -> None:
    """Reset what a model has left of earlier texts.

    RecurrentGemma keeps its state in its layers, and takes a prompt of one token for the continuation of the last text.

    Args:
        model: a transformers model.
        rows: the number of texts that follow, beams included.
    """
    if hasattr(model, "_setup_cache"):
        model._setup_cache(model.config, rows, model.device, model.dtype)  # noqa: SLF001  # there is no public name
