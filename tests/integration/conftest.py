"""Archives for the tests, written by hand: what TorchServe reads, without our own packer."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from textwrap import dedent

import pytest

MakeMar = Callable[..., Path]


@pytest.fixture
def make_mar(tmp_path: Path) -> MakeMar:
    """Write NAME.mar with a handler's source, further files and a model-config.yaml."""

    def make(
        handler: str,
        *,
        name: str = "m",
        entry: str = "handler.py",
        names: str | None = None,
        config: str | None = None,
        files: Mapping[str, str] | None = None,
    ) -> Path:
        model = {"modelName": name, "modelVersion": "1.0", "handler": names or entry}
        contents = {entry: dedent(handler), **(files or {})}
        if config is not None:
            model["configFile"] = "model-config.yaml"
            contents["model-config.yaml"] = config
        contents["MAR-INF/MANIFEST.json"] = json.dumps({"runtime": "python", "model": model})
        path = tmp_path / f"{name}.mar"
        with zipfile.ZipFile(path, "w") as archive:
            for file, text in contents.items():
                archive.writestr(file, text)
        return path

    return make
