"""The image of the pods: Python, Java, torch, TorchServe, and tsbatch's worker side unless the archive brings it.

The packages are those that the worker imported when the archive was checked, in the versions that it had there.
"""

from __future__ import annotations

import json
from importlib.metadata import PackageNotFoundError, version

from tsbatch.errors import UsageError
from tsbatch.kserve.archive_facts import Facts
from tsbatch.kserve.server_config import MORE_ARGUMENTS, MOUNT, RUNTIME_COMMAND
from tsbatch.packaging.bundle import worker_packages

REQUIREMENTS = "requirements.txt"
WORKER = "worker"
"""The folder with tsbatch's worker side, beside the Dockerfile."""

STORAGE = "storage"
"""The folder that lies at the storage URI, or in the image."""

SERVER = ("torch", "torchserve", "requests", "PyYAML")
"""What runs any archive; the last two are what torchserve imports and does not declare."""

USER = 1000
"""The user of KServe's runtime kserve-torchserve."""

DOCKERFILE = """\
FROM python:{python}-slim

RUN apt-get update \\
 && apt-get install --yes --no-install-recommends default-jre-headless \\
 && rm -rf /var/lib/apt/lists/*

# The usual torch brings CUDA along. For the CPU alone give the index of torch's CPU wheels:
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
    """The packages of the image, each with its version: what the worker imported when it was checked, and what runs it.

    Raises:
        UsageError: one is not installed here, so nobody knows its version.
    """
    names = list(SERVER)
    if facts.ours and not facts.bundled:
        names += [package.name for package in worker_packages(facts.section, why="the image")]
    pins = {name.lower(): f"{name}=={_version(name)}" for name in names}
    pins |= {name.lower(): f"{name}=={_public(number)}" for name, number in facts.imports.items()}
    return "".join(f"{pins[name]}\n" for name in sorted(pins))


def dockerfile(facts: Facts, *, with_storage: bool) -> str:
    """The text of the Dockerfile.

    Args:
        facts: the archive.
        with_storage: copy the archive and config.properties in, for clusters without storage for models.
    """
    copies = ""
    if facts.ours and not facts.bundled:
        copies += f"COPY {WORKER} /opt/tsbatch\nENV PYTHONPATH=/opt/tsbatch\n"
    if with_storage:
        copies += f"COPY {STORAGE} {MOUNT}\n"
    command = json.dumps([*RUNTIME_COMMAND, *MORE_ARGUMENTS])
    return DOCKERFILE.format(python=facts.python, requirements=REQUIREMENTS, user=USER, copies=copies, command=command)


def _version(name: str) -> str:
    try:
        return _public(version(name))
    except PackageNotFoundError:
        raise UsageError(
            f"{name} is not installed here, and the image is made of what is: pip install {name}"
        ) from None


def _public(number: str) -> str:
    """A version without what names one build of it: 2.13.0 of 2.13.0+cpu."""
    return number.partition("+")[0]
