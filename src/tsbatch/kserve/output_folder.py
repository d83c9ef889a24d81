"""Write the folder of ``tsbatch kserve``: the manifest, the storage, and the files to build the image."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from tsbatch.configuration.server_properties import METRICS_FILE
from tsbatch.errors import UsageError
from tsbatch.kserve import image, server_config
from tsbatch.kserve.archive_facts import Facts
from tsbatch.packaging.bundle import own_files
from tsbatch.system.atomic_write import atomic_folder

MANIFEST = "inference-service.yaml"
DOCKERFILE = "Dockerfile"


def write(folder: Path, facts: Facts, manifest: Mapping[str, Any], *, force: bool = False) -> list[str]:
    """Write everything; the folder appears complete or not at all.

    Args:
        folder: the folder to create.
        facts: the archive.
        manifest: the InferenceService.
        force: replace an existing folder.

    Returns:
        The files, relative to the folder.

    Raises:
        UsageError: it exists, or cannot be written.
    """
    with_storage = "containers" in manifest["spec"]["predictor"]
    texts = {
        MANIFEST: as_yaml(manifest),
        DOCKERFILE: image.dockerfile(facts, with_storage=with_storage),
        image.REQUIREMENTS: image.requirements(facts),
        f"{image.STORAGE}/{server_config.CONFIG}": server_config.config_properties(facts),
    }
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with atomic_folder(folder, replace=force) as part:
            for name, text in texts.items():
                (part / name).parent.mkdir(parents=True, exist_ok=True)
                (part / name).write_text(text, encoding="utf-8", newline="\n")
            _copy_files(part, facts)
            return sorted(path.relative_to(part).as_posix() for path in part.rglob("*") if path.is_file())
    except FileExistsError:
        raise UsageError(f"{folder} exists; replace it with --force, or choose another --output") from None


def as_yaml(manifest: Mapping[str, Any]) -> str:
    """Return the manifest as YAML for ``kubectl apply -f``."""
    return yaml.dump(dict(manifest), Dumper=_Dumper, sort_keys=False, width=110)


def _copy_files(part: Path, facts: Facts) -> None:
    storage = part / image.STORAGE
    shutil.copyfile(METRICS_FILE, storage / server_config.METRICS)
    (storage / server_config.STORE).mkdir()
    _copy_archive(facts.path, storage / server_config.STORE / facts.path.name)
    if facts.is_batch_handler and not facts.bundled:
        for name, file in own_files():
            target = part / image.WORKER / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target)


def _copy_archive(archive: Path, target: Path) -> None:
    if archive.is_dir():
        shutil.copytree(archive, target)
        return
    try:
        # A link is safe because an archive is never changed in place; it may be large.
        os.link(archive.resolve(), target)
    except OSError:
        shutil.copyfile(archive, target)


class _Dumper(yaml.SafeDumper):
    """Writes multi-line text as a block, and no references to earlier nodes."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - PyYAML's signature
        """Write each list in full."""
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)
