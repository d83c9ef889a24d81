"""Archives that cannot load, each for a reason of its own, and what the first line about it must say."""

from __future__ import annotations

import json
import pickle
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from tests.tiny import save_encoder
from tsbatch.packaging.builder import package

CONFIG = "minWorkers: 1\nmaxWorkers: 1\nbatchSize: 4\nmaxBatchDelay: 20\nresponseTimeout: 120\nstartupTimeout: 120\n"
NET = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 5)
    def forward(self, rows):
        return self.layer(rows)
"""
HANDLER = """
from net import Net
from tsbatch import BatchHandler

class Handler(BatchHandler):
    def load_model(self):
        return self.load_weights(Net(), "net.safetensors")
"""
PLAIN = """
class Handler:
    def initialize(self, context):
        {initialize}
    def handle(self, data, context):
        return ["fine"] * len(data)
"""
Files = dict[str, str | bytes]


def weights(classes: int = 5) -> bytes:
    """Weights of ``Net`` with so many outputs, as safetensors."""
    from safetensors.torch import save

    torch.manual_seed(0)
    return save({"layer.weight": torch.randn(classes, 4), "layer.bias": torch.zeros(classes)})


def write(
    folder: Path, name: str, handler: str, files: Mapping[str, str | bytes] | None = None, config: str = CONFIG
) -> Path:
    """An archive with a handler, further files and a model-config.yaml; nothing is checked."""
    model = {"modelName": name, "modelVersion": "1.0", "handler": "handler.py", "configFile": "model-config.yaml"}
    manifest = json.dumps({"runtime": "python", "model": model})
    contents = {"handler.py": handler, "model-config.yaml": config, "MAR-INF/MANIFEST.json": manifest, **(files or {})}
    path = folder / f"{name}.mar"
    with zipfile.ZipFile(path, "w") as archive:
        for file, content in contents.items():
            archive.writestr(file, content)
    return path


@dataclass(frozen=True)
class Broken:
    """One way to be broken.

    Attributes:
        says: what the first line must have, all of it.
        handler: the handler's source.
        files: what lies beside it.
        config: model-config.yaml.
        make: makes the archive in a folder under a name, in place of all that.
    """

    says: tuple[str, ...]
    handler: str = HANDLER
    files: Callable[[], Mapping[str, str | bytes]] = field(default=dict)
    config: str = CONFIG
    make: Callable[[Path, str], Path] | None = None

    def archive(self, folder: Path, name: str) -> Path:
        """Write it."""
        if self.make is not None:
            return self.make(folder, name)
        return write(folder, name, self.handler, self.files(), self.config)


def _without_tokenizer(folder: Path, name: str) -> Path:
    model = save_encoder(folder / f"{name}-model")
    whole = package(name=name, model_dir=model, task="text-embedding", output_dir=folder / "whole", force=True)
    path = folder / f"{name}.mar"
    with zipfile.ZipFile(whole) as old, zipfile.ZipFile(path, "w") as new:
        for entry in old.namelist():
            if "token" not in entry:
                new.writestr(entry, old.read(entry))
    return path


class WholeModule(torch.nn.Module):
    """Not a state dict."""


def _pickled() -> Mapping[str, Any]:
    return {"net.py": NET, "net.pt": pickle.dumps(WholeModule)}


LABELS = """
from net import Net
from tsbatch import BatchHandler

class Handler(BatchHandler):
    def load_model(self):
        return self.load_weights(Net(), "net.safetensors")
    def prepare(self):
        labels, outputs = len(self.aux["labels"]), self.model.layer.out_features
        if labels != outputs:
            raise ValueError(f"labels.json has {labels} labels, the model has {outputs} outputs")
"""
DOUBLES = """
from net import Net
from tsbatch import BatchHandler
import torch

class Handler(BatchHandler):
    def load_model(self):
        return self.load_weights(Net(), "net.safetensors")
    def examples(self):
        return [[1.0, 2.0, 3.0, 4.0]]
    def preprocess(self, items):
        return torch.tensor([item.value for item in items], dtype=torch.float64)
"""
WITH_LABELS = f"{CONFIG}tsbatch:\n  aux: {{labels: labels.json}}\n"

BROKEN: Mapping[str, Broken] = {
    "words": Broken(("tokenizer cannot be loaded", "tokenizer.save_pretrained"), make=_without_tokenizer),
    "classes": Broken(
        ("size mismatch for layer", "[3, 4]", "number of classes"),
        files=lambda: {"net.py": NET, "net.safetensors": weights(classes=3)},
    ),
    "syntax": Broken(("SyntaxError", "handler.py:4"), handler=PLAIN.format(initialize="self.ready = (")),
    "package": Broken(
        ("No module named 'no_such_package'", "handler.py:1", "pip install"),
        handler=f"import no_such_package\n{PLAIN.format(initialize='pass')}",
    ),
    "corrupt": Broken(
        ("net.safetensors: cannot be read as weights", "SafetensorError", "copy it again"),
        files=lambda: {"net.py": NET, "net.safetensors": weights()[:150]},
    ),
    "dtype": Broken(
        ("same dtype", "torch.float32"),
        handler=DOUBLES,
        files=lambda: {"net.py": NET, "net.safetensors": weights()},
    ),
    "labels": Broken(
        ("3 labels, the model has 5 outputs", "handler.py:11", "one label for each output"),
        handler=LABELS,
        files=lambda: {"net.py": NET, "net.safetensors": weights(), "labels.json": '["a", "b", "c"]'},
        config=WITH_LABELS,
    ),
    "two": Broken(
        ("Expected only one class", "to another file"),
        handler=f"class Helper:\n    pass\n{PLAIN.format(initialize='pass')}",
    ),
    "function": Broken(
        ("handle() takes 1 positional argument but 2 were given", "a name 'handle'"),
        handler="def handle(data):\n    return data\n",
    ),
    "relative": Broken(
        ("No such file or directory: 'vocabulary/words.txt'", "handler.py:4", "--extra vocabulary/words.txt"),
        handler=PLAIN.format(initialize="open('vocabulary/words.txt')"),
    ),
    "pickled": Broken(
        ("net.pt: is broken or holds more than weights", "save the weights alone"),
        handler=HANDLER.replace("net.safetensors", "net.pt"),
        files=_pickled,
    ),
    "json": Broken(
        ("tsbatch.aux.labels: labels.json: cannot be read: JSONDecodeError", "json.tool"),
        handler=LABELS,
        files=lambda: {"net.py": NET, "net.safetensors": weights(), "labels.json": "["},
        config=WITH_LABELS,
    ),
    "hub": Broken(
        ("connect to", "package the whole model folder"),
        handler=PLAIN.format(
            initialize="from transformers import AutoModel; AutoModel.from_pretrained('nobody/no-such-model')"
        ),
    ),
    "setting": Broken(
        ("model-config.yaml: tsbatch.thread does not exist; did you mean 'threads'?",),
        files=lambda: {"net.py": NET, "net.safetensors": weights()},
        config=f"{CONFIG}tsbatch: {{thread: 2}}\n",
    ),
}
