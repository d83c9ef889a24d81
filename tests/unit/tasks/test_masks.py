"""Masks: classes by pixel a few layers at a time, and what JSON carries."""

from __future__ import annotations

import base64
import io

import numpy as np
import pytest
import torch
from PIL import Image

from tsbatch.tasks import image_segmentation
from tsbatch.tasks.image_segmentation import class_map, encode_mask, run_lengths


@pytest.mark.parametrize("at_once", [1, 2, 3, 7, 100])
def test_classes_a_few_at_a_time_as_all_together(at_once):
    torch.manual_seed(0)
    scores = torch.randn(7, 5, 6).round(decimals=1)  # rounded, so that some are equal
    scores[4] = scores[2]
    enlarged = torch.nn.functional.interpolate(scores[None], size=(33, 20), mode="bilinear", align_corners=False)
    found = class_map(scores, (33, 20), at_once * 4 * 33 * 20)
    assert np.array_equal(found, enlarged[0].argmax(0).numpy())


@pytest.mark.parametrize("in_cache", [1, 4 * 33 * 20 * 3, 1 << 30])
def test_a_row_of_a_batch_with_its_classes_side_by_side(monkeypatch, in_cache):
    monkeypatch.setattr(image_segmentation, "IN_CACHE", in_cache)
    monkeypatch.setattr(image_segmentation, "FEW", 2)
    torch.manual_seed(1)
    batch = torch.randn(3, 7, 5, 6).to(memory_format=torch.channels_last)
    enlarged = torch.nn.functional.interpolate(batch, size=(33, 20), mode="bilinear", align_corners=False)
    for row, expected in zip(batch, enlarged, strict=True):
        assert np.array_equal(class_map(row, (33, 20), 1 << 30), expected.argmax(0).numpy())


def test_run_lengths_go_column_by_column_and_begin_with_false():
    mask = np.array([[0, 1, 1], [0, 0, 1]], dtype=bool)
    assert run_lengths(mask) == {"size": [2, 3], "counts": [2, 1, 1, 2]}
    assert run_lengths(~mask) == {"size": [2, 3], "counts": [0, 2, 1, 1, 2]}
    assert run_lengths(np.zeros((2, 2), bool)) == {"size": [2, 2], "counts": [4]}
    assert run_lengths(np.ones((2, 2), bool)) == {"size": [2, 2], "counts": [0, 4]}


def test_a_png_is_grey_and_white_where_the_mask_is():
    mask = np.random.default_rng(0).random((9, 13)) > 0.5
    image = Image.open(io.BytesIO(base64.b64decode(encode_mask(mask, "png"))))
    assert image.mode == "L"
    assert np.array_equal(np.asarray(image), mask * 255)
    assert encode_mask(mask, "rle") == run_lengths(mask)
