"""BentoML: a batchable API; its dispatcher chooses the moment by itself within max_latency_ms."""

from __future__ import annotations

import bentoml
from padded_encoder import BATCH, WORKERS, PaddedEncoder


@bentoml.service(workers=WORKERS, traffic={"timeout": 600})
class Encoder:
    """One worker."""

    def __init__(self) -> None:
        self.encoder = PaddedEncoder()

    @bentoml.api(batchable=BATCH > 1, max_batch_size=BATCH, max_latency_ms=600_000)  # type: ignore[untyped-decorator]
    def predict(self, inputs: list[str]) -> list[list[float]]:
        """Vectors of a batch; a request brings a list of one text."""
        return self.encoder.vectors(inputs)
