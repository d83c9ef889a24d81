"""The documented import path of the handler runner; the code is in :mod:`tsbatch.emulation`."""

from __future__ import annotations

from tsbatch.emulation.runner import DEFAULT_BATCH_SIZE, Answer, Call, HandlerRunner, Metric, WorkerDied

__all__ = ["DEFAULT_BATCH_SIZE", "Answer", "Call", "HandlerRunner", "Metric", "WorkerDied"]
