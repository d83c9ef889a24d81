"""The steps before a model: of a preprocessing file by hand, of transformers' processors against themselves."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from PIL import Image

from tests.tiny_images import PROCESSORS, processor_of, save_processor
from tests.varied_images import SIZES, picture
from tsbatch.errors import LoadError, Unprocessable
from tsbatch.tasks.images import preprocessing
from tsbatch.tasks.images.preprocessing import (
    FileSteps,
    Preprocessing,
    SplitProcessor,
    WholeProcessor,
    processor_steps,
    read_preprocessing,
)

PICTURES = [picture(seed, height, width) for seed, (height, width) in enumerate(SIZES)]
SPLIT = {"ViT", "ConvNext", "CLIP", "Detr", "Yolos", "Segformer", "Mask2Former", "MaskFormer"}


def run(steps, images):
    """All images through both halves, each in a group of its own."""
    return [
        steps.finish({name: torch.from_numpy(np.stack([array])) for name, array in steps.arrays(image).items()})
        for image in images
    ]


@pytest.mark.parametrize("kind", PROCESSORS)
def test_as_the_processor_alone(tmp_path, kind):
    save_processor(tmp_path, kind)
    (tmp_path / "config.json").write_text("{}")
    processor = processor_of(tmp_path)
    steps = processor_steps(processor)
    if kind != "MobileViT":  # that of transformers 4 does not know do_normalize, so it stays whole there
        assert isinstance(steps, SplitProcessor) == (kind in SPLIT)
    for image, made in zip(PICTURES, run(steps, PICTURES), strict=True):
        expected = processor(image, return_tensors="pt")
        assert made.keys() == expected.keys()
        for name in made:
            assert made[name].shape == expected[name].shape
            assert (made[name].double() - expected[name].double()).abs().max() <= 1e-5, (name, image.size)


def test_a_group_is_finished_at_once(tmp_path):
    save_processor(tmp_path, "ViT")
    processor = processor_of(tmp_path)
    steps = processor_steps(processor)
    stacked = torch.from_numpy(np.stack([steps.arrays(image)["pixel_values"] for image in PICTURES]))
    assert stacked.dtype == torch.uint8
    made = steps.finish({"pixel_values": stacked})["pixel_values"]
    expected = processor(PICTURES, return_tensors="pt")["pixel_values"]
    assert (made - expected).abs().max() <= 1e-5


def test_a_processor_that_cannot_be_split_stays_whole():
    class Odd:
        do_rescale, rescale_factor, do_normalize = True, 1 / 255, False
        size = None

        def __call__(self, image, *, return_tensors, input_data_format, do_rescale=True, do_normalize=True):
            values = np.asarray(image, dtype=np.float32)[None, :4, :4] * (2 / 255 if do_rescale else 1)
            return {"pixel_values": values}

    steps = processor_steps(Odd())
    assert type(steps) is WholeProcessor
    [made] = run(steps, PICTURES[:1])
    assert made["pixel_values"].max() <= 2


@pytest.mark.parametrize("kind", ["ConvNext", "CLIP"])
def test_a_thin_image_is_refused_before_it_grows(tmp_path, kind):
    save_processor(tmp_path, kind, size={"shortest_edge": 224})
    steps = processor_steps(processor_of(tmp_path))
    with pytest.raises(Unprocessable, match=r"20000 × 1 pixels, too thin for a shorter side of 224"):
        steps.arrays(Image.new("RGB", (20_000, 1)))


def test_what_a_processor_cannot_take_is_the_clients_fault(tmp_path):
    class Picky:
        size = None

        def __call__(self, image, **options):
            raise ValueError("height and width must be > 0")

    with pytest.raises(Unprocessable, match=r"64 × 48 pixels: height and width"):
        WholeProcessor(Picky()).arrays(picture(0))


# ---- the preprocessing file -----------------------------------------------------------------------------------


def by_hand(image, *, resize, crop, mean, std):
    """Resize and CenterCrop of torchvision, ToTensor, Normalize."""
    width, height = image.size
    short = min(width, height)
    new = (resize, int(resize * height / width)) if width <= height else (int(resize * width / height), resize)
    assert min(new) == resize
    assert short
    image = image.resize(new, Image.Resampling.BILINEAR)
    left, top = round((new[0] - crop) / 2), round((new[1] - crop) / 2)
    values = np.asarray(image, dtype=np.float64)[top : top + crop, left : left + crop] / 255
    return ((values - mean) / std).transpose(2, 0, 1)


def test_the_stock_steps_as_torchvision_computes_them():
    mean, std = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
    steps = FileSteps(Preprocessing(resize=64, crop=56, mean=mean, std=std))
    for image, made in zip(PICTURES, run(steps, PICTURES), strict=True):
        expected = by_hand(image, resize=64, crop=56, mean=mean, std=std)
        assert np.abs(made["pixel_values"][0].numpy() - expected).max() <= 1e-5, image.size


def test_colours_sizes_and_scales():
    image = picture(5, 20, 30)
    values = np.asarray(image).transpose(2, 0, 1)
    [rgb] = run(FileSteps(Preprocessing(scale=1)), [image])
    [bgr] = run(FileSteps(Preprocessing(scale=1, color="bgr")), [image])
    [gray] = run(FileSteps(Preprocessing(scale=1, color="gray")), [image])
    [shifted] = run(FileSteps(Preprocessing(scale=1, mean=127, std=128)), [image])
    assert np.array_equal(rgb["pixel_values"][0], values)
    assert np.array_equal(bgr["pixel_values"][0], values[::-1])
    assert np.array_equal(gray["pixel_values"][0, 0], np.asarray(image.convert("L")))
    assert np.abs(shifted["pixel_values"][0].numpy() - (values - 127.0) / 128).max() <= 1e-5
    [sized] = run(FileSteps(Preprocessing(resize=[7, 9], interpolation="nearest", scale=1)), [image])
    assert np.array_equal(sized["pixel_values"][0], np.asarray(image.resize((9, 7), 0)).transpose(2, 0, 1))


@pytest.mark.parametrize("size", [(10, 10), (11, 8), (7, 30), (40, 9)])
def test_a_crop_larger_than_the_image_has_black_around_it(size):
    image = Image.new("RGB", size[::-1], "white")
    [made] = run(FileSteps(Preprocessing(crop=[21, 16], scale=1)), [image])
    white = made["pixel_values"][0, 0].numpy() == 255
    assert white.sum() == min(size[0], 21) * min(size[1], 16)
    rows, columns = np.flatnonzero(white.any(1)), np.flatnonzero(white.any(0))
    assert abs(rows[0] - (20 - rows[-1])) <= 1
    assert abs(columns[0] - (15 - columns[-1])) <= 1


def test_the_file_and_the_section(tmp_path):
    assert read_preprocessing(tmp_path, None) is None
    given = Preprocessing(resize=5)
    assert read_preprocessing(tmp_path, given) is given
    (tmp_path / "preprocessing.json").write_text(json.dumps({"resize": [3, 4], "mean": 1, "std": [1, 2.5, 3]}))
    assert read_preprocessing(tmp_path, None) == Preprocessing(resize=[3, 4], mean=1.0, std=[1.0, 2.5, 3.0])


@pytest.mark.parametrize(
    "content, part",
    [
        ({"resiz": 5}, "preprocessing.resiz does not exist; did you mean 'resize'"),
        ({"resize": 0}, "greater than or equal to 1"),
        ({"crop": [1, 2, 3]}, "crop"),
        ({"interpolation": "cubic"}, "interpolation"),
        ([1], "expected keys and values, got a list"),
    ],
)
def test_a_wrong_file_stops_the_load(tmp_path, content, part):
    (tmp_path / "preprocessing.json").write_text(json.dumps(content))
    with pytest.raises(LoadError) as caught:
        read_preprocessing(tmp_path, None)
    assert str(caught.value).startswith("preprocessing.json: ")
    assert part in str(caught.value)


@pytest.mark.parametrize(
    "wanted, part",
    [
        ({"std": [1.0, 0.0, 1.0]}, "has a zero"),
        ({"mean": [0.5, 0.5]}, "2 numbers for 3 channels"),
        ({"mean": [0.5, 0.5, 0.5], "color": "gray"}, "3 numbers for 1 channels"),
    ],
)
def test_numbers_that_fit_no_image(wanted, part):
    with pytest.raises(LoadError, match=part):
        FileSteps(Preprocessing(**wanted))


def test_a_large_enlargement_has_an_end(monkeypatch):
    monkeypatch.setattr(preprocessing, "MAX_ENLARGED", 10_000)
    steps = FileSteps(Preprocessing(resize=100))
    assert run(steps, [picture(0, 30, 30)])
    with pytest.raises(Unprocessable, match="too thin"):
        steps.arrays(picture(0, 30, 31))
