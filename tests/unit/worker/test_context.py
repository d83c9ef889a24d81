"""What a handler is told when it loads."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from tsbatch.worker.context import ModelContext


def test_a_folder_is_enough():
    context = ModelContext(model_dir=Path("m"))
    assert (context.model_name, context.model_version, context.batch_size, context.gpu_id) == ("model", "1.0", 1, None)
    assert context.config == context.manifest == {}


def test_it_is_frozen_and_named():
    with pytest.raises(dataclasses.FrozenInstanceError):
        ModelContext(model_dir=Path("m")).batch_size = 3
    with pytest.raises(TypeError):
        ModelContext(Path("m"))
