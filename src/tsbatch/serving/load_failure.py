"""A failed load explained: TorchServe's words and the worker's, with what to do about them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tsbatch.errors import LoadFailed
from tsbatch.serving import load_times
from tsbatch.serving.load_remedies import remedy
from tsbatch.serving.worker_log import Reason

LEAST = 120
"""Seconds; TorchServe's own startupTimeout where nobody sets one (ConfigManager.java)."""
GROWTH = 4
"""How many times as long to give a load of which nobody knows more than that it was too slow."""


def load_failed(who: str, reason: Reason, model: Mapping[str, Any], archive: Path | None = None) -> LoadFailed:
    """The error for a worker that died while it loaded.

    Args:
        who: the model and its version.
        reason: what the logs say.
        model: the model as the server describes it.
        archive: the archive, when it lies on this machine.
    """
    if not reason.timed_out:
        return LoadFailed(who, reason.text, remedy(reason.text))
    timeout = int(model.get("startupTimeout", LEAST))
    return LoadFailed(who, *too_slow(timeout, archive), timeout=timeout)


def too_slow(timeout: int, archive: Path | None) -> tuple[str, str]:
    """Cause and remedy of a load that took longer than ``timeout`` seconds.

    With what ``tsbatch check`` measured of this archive, when it did.
    """
    measured = load_times.recall(archive) if archive is not None else None
    where = "in model-config.yaml (tsbatch package --startup-timeout)"
    if measured is None:
        check = f"tsbatch check {archive or 'ARCHIVE'} measures what it needs"
        most = max(LEAST, GROWTH * timeout)
        return (
            f"loading took over {timeout} s (startupTimeout)",
            f"set startupTimeout to at least {most} {where}; {check}",
        )
    seconds, wanted = measured
    enough = max(wanted, timeout + 10)
    return (
        f"loading took over {timeout} s (startupTimeout); in-process it took {seconds:.0f} s",
        f"set startupTimeout to at least {enough} {where}",
    )


def with_archive(failure: LoadFailed, archive: Path | None, outcome: str) -> LoadFailed:
    """The same failure, with what is known of the archive and what became of the model."""
    cause, advice = failure.cause, failure.remedy
    if failure.timeout is not None:
        cause, advice = too_slow(failure.timeout, archive)
    return LoadFailed(failure.who, cause, "; ".join(filter(None, (advice, outcome))), timeout=failure.timeout)
