"""The pods' image: Python, Java, torch, TorchServe, and the worker's part of tsbatch unless the archive contains it.

The packages are those that the worker imported during the check, in the same versions.
"""

from __future__ import annotations

import json
from importlib.metadata import PackageNotFoundError, version

from tsbatch.errors import UsageError
from tsbatch.kserve.archive_facts import Facts
from tsbatch.kserve.server_config import EXTRA_ARGUMENTS, MOUNT, RUNTIME_COMMAND
from tsbatch.packaging.bundle import worker_packages

REQUIREMENTS = "requirements.txt"
WORKER = "worker"
"""The folder with the worker's part of tsbatch, next to the Dockerfile."""

STORAGE = "storage"
"""The folder that is copied to the storage URI, or into the image."""

SERVER = ("torch", "torchserve", "requests", "PyYAML")
"""Packages that run any archive; torchserve imports the last two without declaring them."""

USER = 1000
"""The user of KServe's runtime kserve-torchserve."""

DOCKERFILE = """\
FROM python:{python}-slim

RUN apt-get update \\
 && apt-get install --yes --no-install-recommends default-jre-headless \\
 && rm -rf /var/lib/apt/lists/*

# The default torch includes CUDA. For a CPU-only image give the index of torch's CPU wheels:
# docker build --build-arg PIP_EXTRA_INDEX_URL=...
ARG PIP_EXTRA_INDEX_URL
COPY {requirements} /tmp/{requirements}
RUN pip install --no-cache-dir --requirement /tmp/{requirements}

RUN useradd --create-home --uid {user} model-server
{copies}
USER {user}
WORKDIR /home/model-server
CMD {command}
"""


def requirements(facts: Facts) -> str:
    """Return the image's requirements.txt: what the worker imported during the check, and what runs it.

    Raises:
        UsageError: a package is not installed here, so its version is unknown.
    """
    names = list(SERVER)
    if facts.is_batch_handler and not facts.bundled:
        names += [package.name for package in worker_packages(facts.section, why="the image")]
    pins = {name.lower(): f"{name}=={_version(name)}" for name in names}
    pins |= {name.lower(): f"{name}=={_public(number)}" for name, number in facts.imports.items()}
    return "".join(f"{pins[name]}\n" for name in sorted(pins))


def dockerfile(facts: Facts, *, with_storage: bool) -> str:
    """Return the text of the Dockerfile.

    Args:
        facts: the archive.
        with_storage: copy the archive and config.properties into the image, for clusters without model storage.
    """
    copies = ""
    if facts.is_batch_handler and not facts.bundled:
        copies += f"COPY {WORKER} /opt/tsbatch\nENV PYTHONPATH=/opt/tsbatch\n"
    if with_storage:
        copies += f"COPY {STORAGE} {MOUNT}\n"
    command = json.dumps([*RUNTIME_COMMAND, *EXTRA_ARGUMENTS])
    return DOCKERFILE.format(python=facts.python, requirements=REQUIREMENTS, user=USER, copies=copies, command=command)


def _version(name: str) -> str:
    try:
        return _public(version(name))
    except PackageNotFoundError:
        raise UsageError(f"{name} is not installed here, but the image needs its version: pip install {name}") from None


def _public(number: str) -> str:
    """Return a version without its local part: 2.13.0 for 2.13.0+cpu."""
    return number.partition("+")[0]
