"""What each ready-made task requires: of a model folder, and of the worker's environment.

TorchServe reads an archive's pip requirements only with ``install_py_dep_per_model=true``, and then runs ``pip install
-U -t <model folder>``, which would install a second torch beside the server's (wlm/ModelManager.java). With ``useVenv:
true`` it creates a separate environment for the model on top of the server's, and installs only what is missing there.
So ``auto`` switches that on, and an archive gets no requirements unless they are asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from tsbatch._version import __version__
from tsbatch.archive.file_set import Contents

REQUIREMENTS_NAME: Final = "requirements.txt"
PACKAGES_OF_EXTRAS: Final = {"image": ("Pillow",), "audio": ("soundfile", "soxr")}
"""The distributions that each extra of tsbatch installs, as in pyproject.toml."""
EXTRAS_OF_ENGINES: Final = {"onnxruntime": "onnx", "openvino": "openvino"}


@dataclass(frozen=True, slots=True)
class Needs:
    """The requirements of a task.

    Attributes:
        transformers: the model folder must be a transformers folder (config.json and weights), not just any model file.
        tokenizer: the folder must have one of the tokenizer's files.
        processor: it must have ``preprocessor_config.json`` (``processor_config.json`` with transformers 5).
        extra: the extra of tsbatch with the other packages that the worker imports.
    """

    transformers: bool = True
    tokenizer: bool = False
    processor: bool = False
    extra: str | None = None

    @property
    def packages(self) -> tuple[str, ...]:
        """The distributions of :attr:`extra`."""
        return PACKAGES_OF_EXTRAS[self.extra] if self.extra else ()


_TEXT: Final = Needs(tokenizer=True)
_IMAGE: Final = Needs(processor=True, extra="image")
_AUDIO: Final = Needs(processor=True, extra="audio")

TASKS: Final[Mapping[str, Needs]] = {
    "text-embedding": _TEXT,
    "text-classification": _TEXT,
    "token-classification": _TEXT,
    "question-answering": _TEXT,
    "fill-mask": _TEXT,
    "zero-shot-classification": _TEXT,
    "reranking": _TEXT,
    "summarization": _TEXT,
    "translation": _TEXT,
    "text-generation": _TEXT,
    "image-classification": Needs(transformers=False, extra="image"),
    "image-embedding": _IMAGE,
    "object-detection": _IMAGE,
    "image-segmentation": _IMAGE,
    "speech-recognition": _AUDIO,
    "audio-classification": _AUDIO,
    "tensor": Needs(transformers=False),
}
"""The ready-made tasks. Image classification takes a transformers folder or a PyTorch model with a preprocessing
file, so its handler checks the folder when it loads."""


def needs(task: str | None) -> Needs:
    """Return the requirements of ``task``; empty ones for your own handler and for a task of another package."""
    return TASKS.get(task or "", Needs(transformers=False))


def add_requirements(
    contents: Contents, requirements: Path | Literal["auto"] | None, config: MutableMapping[str, Any]
) -> str | None:
    """Add a requirements file to the archive; return its name for the manifest.

    Args:
        contents: the archive's files.
        requirements: a file; ``auto`` for this version of tsbatch; None for no requirements.
        config: the complete model-config.yaml; ``auto`` sets ``useVenv``.

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


def _extras(section: Mapping[str, Any]) -> str:
    wanted = needs(section.get("task"))
    extras = ["transformers" if wanted.transformers else None, wanted.extra]
    names = ",".join(filter(None, [*extras, EXTRAS_OF_ENGINES.get(section.get("engine", "eager"))]))
    return f"[{names}]" if names else ""
