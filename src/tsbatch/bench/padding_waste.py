"""Read the padding waste that tsbatch handlers report during a run from a managed server's metrics log."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Final

from tsbatch.serving.worker_log import Tail
from tsbatch.worker.metric_lines import parse_metric

LOG: Final = "model_metrics.log"
METRIC: Final = "PaddingWaste"


class WasteLog:
    """The padding waste that a model's workers report.

    Args:
        log_dir: the server's log folder; None if tsbatch does not manage the server, so nothing can be read.
        model: the model's name.
    """

    def __init__(self, log_dir: Path | None, model: str | None) -> None:
        self._tail = Tail(log_dir / LOG) if log_dir else None
        self._model = model

    def begin(self) -> None:
        """Ignore everything reported so far."""
        if self._tail:
            self._tail.skip()

    def end(self) -> float | None:
        """Return the mean over the batches since, 0 to 1; None if no batch reported it."""
        try:
            metrics = [
                parse_metric(line.partition(" - ")[2])
                for line in (self._tail.lines() if self._tail else ())
                if METRIC in line
            ]
        except OSError:
            return None
        wastes = [
            metric.value / 100
            for metric in metrics
            if metric and metric.name == METRIC and metric.dimensions.get("ModelName") == self._model
        ]
        return round(statistics.fmean(wastes), 4) if wastes else None
