"""Rules over the manifest of an archive and the files it names, and over requirements."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from tsbatch.archive.model_store import MANIFEST
from tsbatch.lint.archive_file import ArchiveFile
from tsbatch.lint.documents import Document
from tsbatch.lint.findings import Found
from tsbatch.lint.registry import rule

STOCK_HANDLERS = {
    *("image_classifier", "image_segmenter", "object_detector", "text_classifier", "text_handler", "vision_handler"),
    *("base_handler", "densenet_handler"),
}
FILES = ("serializedFile", "modelFile", "requirementsFile", "configFile")
SUPPLIED = {"torch", "torchserve", "torch-model-archiver", "torch-workflow-archiver"}
"""Packages that the worker has already, and that must be the server's."""
YAML = (".yaml", ".yml")


@dataclass(frozen=True)
class RequirementsFile(Document):
    """A requirements.txt."""

    @cached_property
    def packages(self) -> list[tuple[int, str]]:
        """(line, package) of each requirement."""
        lines = self.source.data.decode("utf-8", "replace").splitlines()
        found = ((number, re.match(r"\s*([A-Za-z0-9][\w.-]*)", line)) for number, line in enumerate(lines, 1))
        return [(number, re.sub(r"[-_.]+", "-", match[1]).lower()) for number, match in found if match]


@rule(
    "archive-broken",
    ArchiveFile,
    "error",
    "an archive that TorchServe cannot read",
    "It must be a zip with the ending .mar, a .tar.gz or a folder, with MAR-INF/MANIFEST.json in it.",
)
def broken(file: ArchiveFile) -> Iterator[Found]:
    """No zip, no manifest, or one that is no JSON."""
    why = file.problem or ("" if file.manifest else f"{MANIFEST} has no section model")
    if why:
        yield Found(1, f"no model archive: {why}", "TorchServe does not register it", "tsbatch package")


@rule(
    "archive-missing-file",
    ArchiveFile,
    "error",
    "a file that the manifest names and the archive lacks",
    "TorchServe looks for it at the root of the archive when a worker loads; of a missing YAML it says nothing.",
)
def missing_file(file: ArchiveFile) -> Iterator[Found]:
    """The serialized file, the model's code, requirements, model-config.yaml or the handler."""
    for key in FILES:
        name = str(file.manifest.get(key) or "")
        # torch-model-archiver lists several serialized files with commas.
        for part in filter(None, name.split(",")):
            if part not in file.names:
                what = "starts without it" if key == "configFile" else "fails when a worker loads"
                yield Found(1, f"the manifest's {key} {part} is not in the archive", f"TorchServe {what}")
    handler = str(file.manifest.get("handler") or "").split(":")[0]
    module = re.split(r"[/\\]", handler)[-1].removesuffix(".py")
    if file.manifest and module and f"{module}.py" not in file.names and module not in STOCK_HANDLERS:
        below = [name for name in sorted(file.names) if name.endswith(f"/{module}.py")]
        where = f"; {below[0]} is not at the root" if below else ""
        message = f"the manifest's handler {handler} is not in the archive{where}"
        yield Found(1, message, f"no worker loads: No module named 'ts.torch_handler.{handler.removesuffix('.py')}'")


@rule(
    "archive-config-unnamed",
    ArchiveFile,
    "error",
    "a model-config.yaml that the manifest does not name",
    "TorchServe reads the YAML that the manifest calls configFile (torch-model-archiver --config-file). One that "
    "merely lies in the archive is ignored.",
)
def config_unnamed(file: ArchiveFile) -> Iterator[Found]:
    """model-config.yaml packed with --extra-files."""
    found = [
        name
        for name in sorted(file.names)
        if re.split("/", name)[-1].startswith("model-config") and name.endswith(YAML)
    ]
    if found and file.manifest and not file.manifest.get("configFile"):
        right = f"torch-model-archiver ... --config-file {found[0]}"
        message = f"{found[0]} is in the archive and the manifest does not name it"
        yield Found(1, message, "TorchServe ignores all of it: batchSize is 1", right)


@rule(
    "archive-handler-class",
    ArchiveFile,
    "error",
    "handler.py:ClassName in the manifest",
    "What follows the colon is the name of a function. TorchServe calls the class with (None, context), and the worker "
    "dies.",
)
def handler_class(file: ArchiveFile) -> Iterator[Found]:
    """``handler.py:MyHandler``."""
    module, colon, name = str(file.manifest.get("handler") or "").partition(":")
    if colon and re.match(r"_*[A-Z]", name):
        effect = f"no worker loads: TypeError: {name}() takes no arguments"
        yield Found(1, f"the manifest's handler is {module}:{name}", effect, f'"handler": "{module}"')


@rule(
    "archive-backslash",
    ArchiveFile,
    "error",
    "a Windows path in the manifest",
    "The names in the manifest are names inside the archive, with forward slashes; on Linux a backslash is a letter "
    "like any other.",
)
def manifest_backslash(file: ArchiveFile) -> Iterator[Found]:
    """A backslash in one of its names, as torch-model-archiver writes on Windows."""
    for key in (*FILES, "handler"):
        name = str(file.manifest.get(key) or "")
        if "\\" in name:
            right = f'"{key}": "{name.rpartition(chr(92))[2]}"'
            yield Found(1, f"the manifest's {key} is {name}", "TorchServe finds no such file", right)


@rule(
    "requirements-torch",
    RequirementsFile,
    "warning",
    "torch among the requirements",
    "With install_py_dep_per_model TorchServe installs each model's requirements into its folder with pip install -U: "
    "a second torch of some gigabytes for each model, other than the server's.",
)
def requirements_torch(file: RequirementsFile) -> Iterator[Found]:
    """Torch or torchserve in requirements.txt."""
    for line, package in file.packages:
        if package in SUPPLIED:
            effect = f"TorchServe installs another {package} into the model's folder, for each model"
            yield Found(line, f"{package} is there already", effect, f"remove line {line}")
