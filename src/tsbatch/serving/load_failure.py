"""Explain a failed load: the cause from the logs, and what to do about it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tsbatch.errors import LoadFailed
from tsbatch.serving import load_times
from tsbatch.serving.load_remedies import remedy
from tsbatch.serving.worker_log import Reason

DEFAULT_STARTUP_TIMEOUT = 120
"""TorchServe's default in seconds (ConfigManager.java)."""
GROWTH = 4
"""Factor of the recommended timeout over the one that was too short, if the load time is unknown."""


def load_failed(
    model_version: str, reason: Reason, model: Mapping[str, Any], archive: Path | None = None
) -> LoadFailed:
    """Make the error for a worker that died while loading.

    Args:
        model_version: name and version of the model.
        reason: the cause from the logs.
        model: the server's description of the model.
        archive: the archive, if it is on this machine.
    """
    if not reason.timed_out:
        return LoadFailed(model_version, reason.text, remedy(reason.text))
    timeout = int(model.get("startupTimeout", DEFAULT_STARTUP_TIMEOUT))
    return LoadFailed(model_version, *too_slow(timeout, archive), timeout=timeout)


def too_slow(timeout: int, archive: Path | None) -> tuple[str, str]:
    """Return cause and remedy of a load that took longer than ``timeout`` seconds.

    They include the load time that ``tsbatch check`` measured, if it did.
    """
    measured = load_times.recall(archive) if archive is not None else None
    where = "in model-config.yaml (tsbatch package --startup-timeout)"
    if measured is None:
        seconds = max(DEFAULT_STARTUP_TIMEOUT, GROWTH * timeout)
        check = f"tsbatch check {archive or 'ARCHIVE'} measures how long it takes"
        return (
            f"loading took over {timeout} s (startupTimeout)",
            f"set startupTimeout to at least {seconds} {where}; {check}",
        )
    seconds = max(measured.startup_timeout, timeout + 10)
    return (
        f"loading took over {timeout} s (startupTimeout); in-process it took {measured.seconds:.0f} s",
        f"set startupTimeout to at least {seconds} {where}",
    )


def with_archive(failure: LoadFailed, archive: Path | None, outcome: str) -> LoadFailed:
    """Add to a failure the archive's load time and the model's state after it."""
    cause, advice = failure.cause, failure.remedy
    if failure.timeout is not None:
        cause, advice = too_slow(failure.timeout, archive)
    return LoadFailed(failure.who, cause, "; ".join(filter(None, (advice, outcome))), timeout=failure.timeout)
