"""A model with random weights, packaged by tsbatch and with the stock archiver."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from _systems import HANDLERS, model_dir
from _tables import Say

from tsbatch.archive.model_config import ModelConfig
from tsbatch.archive.writer import Format
from tsbatch.packaging.builder import package

LARGE: Final = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
"""BERT-large: 335 million parameters."""
SMALL: Final = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}
NO_WEIGHTS: Final = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
TOKENIZER: Final = ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "special_tokens_map.json")
WAYS: Final = {
    "archive": "tsbatch, archive",
    "folder": "tsbatch, --format folder",
    "stock": "state dict, torch.load, default archive",
}
FORMATS: Final[dict[str, Format]] = {"archive": "mar", "folder": "folder"}


def save_model(folder: Path, sizes: Mapping[str, Any]) -> None:
    """Save a BERT model of these sizes with random weights and MiniLM's tokenizer in save_pretrained format."""
    from transformers import BertConfig, BertModel
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    BertModel(BertConfig(vocab_size=30522, **sizes)).save_pretrained(folder)
    for file in tokenizer_files(model_dir()):
        shutil.copy(file, folder)


def tokenizer_files(folder: Path) -> list[Path]:
    """List the files of :data:`TOKENIZER` that exist in the folder."""
    return [folder / name for name in TOKENIZER if (folder / name).is_file()]


def pack(name: str, folder: Path, sizes: Mapping[str, Any], say: Say) -> dict[str, Path]:
    """Package the model in each of :data:`WAYS`, below ``folder``; return the paths to register."""
    store = folder / name
    with tempfile.TemporaryDirectory(dir=folder) as private:
        model = Path(private)
        say(f"{name}: creating the model")
        save_model(model, sizes)
        say(f"{name}: packaging it with tsbatch")
        paths = {way: _package(f"{name}-{way}", model, store, form) for way, form in FORMATS.items()}
        say(f"{name}: packaging it with torch-model-archiver, which compresses")
        paths["stock"] = pack_stock(f"{name}-stock", model, store)
    return paths


def _package(name: str, model: Path, store: Path, form: Format) -> Path:
    config = ModelConfig(batch_size=16, max_batch_delay=5)
    return package(name=name, model_dir=model, task="text-embedding", config=config, output_dir=store, form=form)


def pack_stock(name: str, model: Path, store: Path) -> Path:
    """Package a state dict with torch-model-archiver in its default archive format."""
    import torch
    from safetensors.torch import load_file

    torch.save(load_file(model / "model.safetensors"), model / "model.pt")
    extra = ",".join(map(str, [model / "config.json", *tokenizer_files(model)]))
    options = {
        "--model-name": name,
        "--version": "1.0",
        "--export-path": store,
        "--serialized-file": model / "model.pt",
        "--model-file": HANDLERS / "encoder.py",
        "--handler": HANDLERS / "state_dict.py",
        "--extra-files": extra,
    }
    command = [str(Path(sys.executable).with_name("torch-model-archiver"))]
    for option, value in options.items():
        command += [option, str(value)]
    # The archiver works in <temporary folder>/<model name> and deletes its contents.
    subprocess.run(command, check=True, stdout=sys.stderr, env={**os.environ, "TMPDIR": str(model)})
    return store / f"{name}.mar"
