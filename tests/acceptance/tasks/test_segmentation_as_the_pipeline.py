"""The ways to segment that the fast tests leave out, against transformers' pipeline."""

from __future__ import annotations

import pytest

from tests.integration.tasks.test_image_segmentation import KINDS, as_the_pipeline

CASES = [
    ("maskformer", None),
    ("maskformer", "instance"),
    ("mask2former", "instance"),
    ("detr", None),
    ("detr", "semantic"),
]


@pytest.mark.parametrize("kind, subtask", CASES)
def test_as_the_pipeline_alone_and_in_mixed_batches(tmp_path, kind, subtask, record_property):
    KINDS[kind](tmp_path)
    record_property("worst", as_the_pipeline(tmp_path, subtask))
