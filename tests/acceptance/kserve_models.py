"""The package kserve in an environment of its own, and three models with the manifests that are made of them.

kserve asks for older releases of packages than this environment has (python-dateutil, psutil).
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from tests import tiny, tiny_images, varied_images
from tests.e2e.support import Answer, request
from tsbatch.archive.model_config import ModelConfig
from tsbatch.cli.program import main
from tsbatch.packaging.builder import package

ROOT: Final = Path(__file__).resolve().parents[2]
VENV: Final = ROOT / ".venv-kserve"
SIDE: Final = Path(__file__).with_name("kserve_side.py")
PACKAGES: Final = ("kserve==0.21.0", "kubernetes==36.0.3")

OWN = """
import time

import torch
from tsbatch import BatchHandler


class Doubles(BatchHandler):
    item_ndim = 1

    def load_model(self):
        time.sleep(4)
        return torch.nn.Identity()

    def postprocess(self, outputs, items):
        time.sleep(1.5 if float(outputs.max()) > 1000 else 0.02)
        return (2 * outputs).tolist()
"""
"""A handler of somebody's own, which loads for four seconds."""


def kserve_python() -> Path:
    """The Python of an environment with kserve, which is made when it is not there yet.

    Raises:
        subprocess.CalledProcessError: pip failed; its own output says why.
    """
    python = VENV / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    stamp, key = VENV / "stamp", hashlib.sha256(f"{sys.version} {PACKAGES}".encode()).hexdigest()
    if not (python.exists() and stamp.is_file() and stamp.read_text(encoding="utf-8") == key):
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(VENV)], check=True)
        subprocess.run(
            [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", *PACKAGES], check=True
        )
        stamp.write_text(key, encoding="utf-8")
    return python


def ask_kserve(*words: str) -> Any:
    """What kserve_side.py prints."""
    done = subprocess.run([str(kserve_python()), str(SIDE), *words], check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


def judged(manifests: Sequence[Any], folder: Path) -> list[str | None]:
    """What kserve's own models have against each manifest; None when nothing."""
    path = folder / "manifests.json"
    path.write_text(json.dumps(list(manifests)), encoding="utf-8")
    verdicts: list[str | None] = ask_kserve("judge", str(path))
    return verdicts


@dataclass(frozen=True)
class Deployed:
    """A model's archive, and the folder that ``tsbatch kserve`` wrote of it.

    Attributes:
        name: the model's.
        folder: what was written.
        bodies: requests as JSON, whose answers differ.
    """

    name: str
    folder: Path
    bodies: list[Any]

    @property
    def manifest(self) -> dict[str, Any]:
        """The InferenceService."""
        found: dict[str, Any] = yaml.safe_load((self.folder / "inference-service.yaml").read_text(encoding="utf-8"))
        return found

    @property
    def container(self) -> dict[str, Any]:
        """Its container."""
        predictor = self.manifest["spec"]["predictor"]
        found: dict[str, Any] = predictor["model"] if "model" in predictor else predictor["containers"][0]
        return found


def deploy(what: str, folder: Path) -> Deployed:
    """Packs, checks and deploys ``embedding``, ``images`` or ``own``, as a person does it at the command line."""
    folder.mkdir(parents=True, exist_ok=True)
    config = ModelConfig(workers=2, batch_size=4, max_batch_delay=100, threads=1)
    model = folder / "model"
    model.mkdir()
    if what == "own":
        (folder / "doubles.py").write_text(OWN, encoding="utf-8")
        options: dict[str, Any] = {"handler": folder / "doubles.py"}
        samples = bodies = [{"instances": [[float(number), 1.0]]} for number in range(6)]
    elif what == "embedding":
        tiny.save_encoder(model)
        options = {"task": "text-embedding", "model_dir": model}
        samples = bodies = [{"instances": [" ".join(tiny.WORDS[: number + 1])]} for number in range(6)]
    else:
        tiny_images.vit(model)
        options = {"task": "image-classification", "model_dir": model}
        samples = bodies = [{"instances": [{"b64": _picture(seed)}]} for seed in range(6)]
    archive = package(name=f"tiny_{what}", config=config, output_dir=folder, **options)
    (folder / "samples.jsonl").write_text("".join(json.dumps(one) + "\n" for one in samples), encoding="utf-8")
    checked = folder / "check.json"
    with checked.open("w", encoding="utf-8") as out:
        words = ["check", str(archive), "--data", str(folder / "samples.jsonl"), "--json"]
        subprocess.run([sys.executable, "-m", "tsbatch", *words], stdout=out, check=True)
    written = folder / "out"
    storage = [] if what == "images" else ["--storage-uri", f"s3://models/{what}"]
    words = [str(archive), "--check", str(checked), "-o", str(written), "--namespace", "ml", *storage]
    assert main(["kserve", *words, "--replicas", "1:4", "--prometheus", "http://prometheus:9090"]) == 0
    return Deployed(f"tiny_{what}", written, bodies)


def _picture(seed: int) -> str:
    from base64 import b64encode

    return b64encode(varied_images.encoded(varied_images.picture(seed, 40 + seed), "PNG")).decode()


def post(address: str, path: str, body: Any) -> Answer:
    """POST as JSON."""
    return request(address, "POST", path, json.dumps(body), {"Content-Type": "application/json"})
