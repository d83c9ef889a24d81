"""Rules for the manifest of an archive and the files it names, and for requirements."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from tsbatch.archive.manifest import MANIFEST_NAME
from tsbatch.lint.archive_file import ArchiveFile
from tsbatch.lint.documents import Document
from tsbatch.lint.findings import Issue
from tsbatch.lint.registry import rule

STOCK_HANDLERS = {
    *("image_classifier", "image_segmenter", "object_detector", "text_classifier", "text_handler", "vision_handler"),
    *("base_handler", "densenet_handler"),
}
FILE_KEYS = ("serializedFile", "modelFile", "requirementsFile", "configFile")
SUPPLIED = {"torch", "torchserve", "torch-model-archiver", "torch-workflow-archiver"}
"""Packages that the worker already has, and that must be the server's."""


@dataclass(frozen=True)
class RequirementsFile(Document):
    """A requirements.txt."""

    @cached_property
    def packages(self) -> list[tuple[int, str]]:
        """(line, package) of each requirement."""
        lines = self.source.data.decode("utf-8", "replace").splitlines()
        matches = ((number, re.match(r"\s*([A-Za-z0-9][\w.-]*)", line)) for number, line in enumerate(lines, 1))
        return [(number, re.sub(r"[-_.]+", "-", match[1]).lower()) for number, match in matches if match]


@rule("archive-broken", ArchiveFile, "error")
def broken(file: ArchiveFile) -> Iterator[Issue]:
    """An archive that TorchServe cannot read.

    It must be a zip named .mar, a .tar.gz or a folder, with MAR-INF/MANIFEST.json in it.
    """
    cause = file.problem or ("" if file.manifest else f"{MANIFEST_NAME} has no section model")
    if cause:
        yield Issue(1, f"not a model archive: {cause}", "TorchServe does not register it", "tsbatch package")


@rule("archive-missing-file", ArchiveFile, "error")
def missing_file(file: ArchiveFile) -> Iterator[Issue]:
    """A file that the manifest names is missing.

    When a worker loads, TorchServe looks for it at the root of the archive; it silently ignores a missing YAML file.
    """
    for key in FILE_KEYS:
        # torch-model-archiver separates several serialized files with commas.
        for name in filter(None, file.named(key).split(",")):
            if name not in file.names:
                what = "starts without it" if key == "configFile" else "fails when a worker loads"
                yield Issue(1, f"the manifest's {key} {name} is not in the archive", f"TorchServe {what}")
    module, handler = file.handler_module, file.named("handler").split(":")[0]
    if module and f"{module}.py" not in file.names and module not in STOCK_HANDLERS:
        below = next((name for name in sorted(file.names) if name.endswith(f"/{module}.py")), None)
        hint = f"; {below} is not at the root" if below else ""
        effect = f"no worker loads: No module named 'ts.torch_handler.{handler.removesuffix('.py')}'"
        yield Issue(1, f"the manifest's handler {handler} is not in the archive{hint}", effect)


@rule("archive-config-unnamed", ArchiveFile, "error")
def config_unnamed(file: ArchiveFile) -> Iterator[Issue]:
    """A model-config.yaml that the manifest does not name.

    TorchServe reads the YAML that the manifest calls configFile (torch-model-archiver --config-file) and ignores one
    that is merely in the archive, as with --extra-files.
    """
    names = (name for name in sorted(file.names) if re.search(r"(^|/)model-config[^/]*\.ya?ml$", name))
    name = next(names, None)
    if name and file.manifest and not file.named("configFile"):
        right = f"torch-model-archiver ... --config-file {name}"
        message = f"{name} is in the archive, but the manifest does not name it"
        yield Issue(1, message, "TorchServe ignores all of it: batchSize is 1", right)


@rule("archive-handler-class", ArchiveFile, "error")
def handler_class(file: ArchiveFile) -> Iterator[Issue]:
    """handler.py:ClassName in the manifest.

    TorchServe takes the name after the colon for a function: it calls the class with (None, context), and the worker
    dies.
    """
    module, colon, name = file.named("handler").partition(":")
    if colon and re.match(r"_*[A-Z]", name):
        effect = f"no worker loads: TypeError: {name}() takes no arguments"
        yield Issue(1, f"the manifest's handler is {module}:{name}", effect, f'"handler": "{module}"')


@rule("archive-backslash", ArchiveFile, "error")
def manifest_backslash(file: ArchiveFile) -> Iterator[Issue]:
    """A Windows path in the manifest.

    The names in the manifest are paths inside the archive, with forward slashes; on Linux, a backslash is an ordinary
    character.
    """
    for key in (*FILE_KEYS, "handler"):
        name = file.named(key)
        if "\\" in name:
            right = f'"{key}": "{name.rpartition(chr(92))[2]}"'
            yield Issue(1, f"the manifest's {key} is {name}", "TorchServe finds no such file", right)


@rule("requirements-torch", RequirementsFile, "warning")
def requirements_torch(file: RequirementsFile) -> Iterator[Issue]:
    """Torch in the requirements.

    With install_py_dep_per_model, TorchServe installs each model's requirements into the model's folder with pip
    install -U: a second torch of several gigabytes for each model, which differs from the server's.
    """
    for line, package in file.packages:
        if package in SUPPLIED:
            effect = f"TorchServe installs another {package} into the model's folder, for each model"
            yield Issue(line, f"{package} is already installed", effect, f"remove line {line}")
