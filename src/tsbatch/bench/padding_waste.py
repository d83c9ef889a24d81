"""The padding that tsbatch's handlers reported during a run, from a server's own log of metrics."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tsbatch.worker.metric_lines import parse_metric

LOG: Final = "model_metrics.log"
METRIC: Final = "PaddingWaste"


@dataclass(slots=True)
class WasteLog:
    """Reads what a model's workers report from now on.

    Args:
        log_dir: the server's log folder; None when it is not ours, then nothing is known.
        model: the model's name.
    """

    log_dir: Path | None
    model: str | None
    _at: int = 0

    def begin(self) -> None:
        """What was reported until now does not count."""
        self._at = self._size()

    def end(self) -> float | None:
        """The mean over the batches since, 0 to 1; None when no batch told."""
        if self.log_dir is None:
            return None
        size = self._size()
        start = self._at if size >= self._at else 0  # the log was rotated meanwhile
        found = []
        try:
            with (self.log_dir / LOG).open("rb") as file:
                file.seek(start)
                for line in file:
                    if METRIC.encode() in line:
                        metric = parse_metric(line.decode("utf-8", "replace").partition(" - ")[2].rstrip())
                        if metric and metric.name == METRIC and metric.dimensions.get("ModelName") == self.model:
                            found.append(metric.value / 100)
        except OSError:
            return None
        return round(statistics.fmean(found), 4) if found else None

    def _size(self) -> int:
        try:
            return (self.log_dir / LOG).stat().st_size if self.log_dir else 0
        except OSError:
            return 0
