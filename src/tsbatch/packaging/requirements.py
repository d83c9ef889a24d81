"""The pip requirements of an archive.

TorchServe reads them only with ``install_py_dep_per_model=true``, and then with ``pip install -U -t <model folder>``,
which would bring a second torch beside the server's (wlm/ModelManager.java). With ``useVenv: true`` it makes an
environment of the model's own on top of the server's, and installs only what is missing there. So ``auto`` switches
that on, and without being asked nothing is written.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from pathlib import Path
from typing import Any, Literal

from tsbatch._version import __version__
from tsbatch.archive.file_set import Contents
from tsbatch.packaging.task_requirements import needs

REQUIREMENTS_NAME = "requirements.txt"
EXTRAS_OF_ENGINES = {"onnxruntime": "onnx", "openvino": "openvino"}


def add_requirements(
    contents: Contents, requirements: Path | Literal["auto"] | None, config: MutableMapping[str, Any]
) -> str | None:
    """Takes a requirements file in; returns its name for the manifest.

    Args:
        contents: the archive's files.
        requirements: a file; ``auto`` for this tsbatch; None for nothing.
        config: the whole model-config.yaml; ``auto`` sets ``useVenv``.

    Raises:
        UsageError: no such file, or another file has its name.
    """
    if requirements is None:
        return None
    if requirements != "auto":
        contents.add_file("--requirements", requirements, requirements.name)
        return requirements.name
    contents.add(REQUIREMENTS_NAME, f"tsbatch{_extras(config['tsbatch'])}=={__version__}\n".encode("ascii"))
    config.setdefault("useVenv", True)
    return REQUIREMENTS_NAME


def _extras(section: MutableMapping[str, Any]) -> str:
    wanted = needs(section.get("task"))
    names = [*(["transformers"] if wanted.transformers else []), *([wanted.extra] if wanted.extra else [])]
    if (engine := section.get("engine")) in EXTRAS_OF_ENGINES:
        names.append(EXTRAS_OF_ENGINES[engine])
    return f"[{','.join(names)}]" if names else ""
