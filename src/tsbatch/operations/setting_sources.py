"""Find the source of each setting of a running model: ``GET /models`` reports only the values."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any, Final
from urllib.parse import urlsplit

from tsbatch.archive.model_store import URL
from tsbatch.configuration.effective_settings import Deployment, effective
from tsbatch.configuration.server_properties import ServerProperties
from tsbatch.errors import UsageError
from tsbatch.lint.archive_file import read_archive
from tsbatch.lint.documents import Machine
from tsbatch.serving.instance import Instance
from tsbatch.serving.java_command import CONFIG_FILE
from tsbatch.worker.cpu_cores import usable_cores

BY_API: Final = "API (registered, scaled or reconfigured)"


def origins(instance: Instance, described: Mapping[str, Any]) -> dict[str, str]:
    """Return the layer that each setting comes from; empty if the archive or the settings cannot be read.

    A value that differs from what files and defaults give was set later through the management API.

    Args:
        instance: the server.
        described: the server's description of the model, from ``GET /models/NAME``.
    """
    path = instance.model_store / file_name(described.get("modelUrl", ""))
    if not path.exists():
        return {}
    archive = read_archive(path, str(path), Machine())
    if archive.problem:
        return {}
    try:
        settings = effective(
            Deployment(
                name=described["modelName"],
                version=described["modelVersion"],
                config=archive.config(),
                properties=ServerProperties.read(instance.work_dir / CONFIG_FILE),
                api=None if described.get("loadedAtStartup") else {},
                cores=usable_cores(),
            )
        )
    except UsageError:
        return {}
    return {each.name: each.layer if each.value == described.get(each.name) else BY_API for each in settings}


def file_name(model_url: str) -> str:
    """Return an archive's file name in the model store, into which TorchServe copies archives from URLs.

    (frontend/archive/.../utils/ArchiveUtils.java: getFilenameFromUrl)
    """
    return PurePosixPath(urlsplit(model_url).path).name if URL.match(model_url) else model_url
