"""BentoML: a batchable API; its dispatcher chooses the moment by itself within max_latency_ms."""

from __future__ import annotations

import bentoml
from padded_encoder import BATCH, WORKERS, PaddedEncoder

# Without batching it takes no batch size, not even 1.
batching = {"batchable": True, "max_batch_size": BATCH, "max_latency_ms": 600_000} if BATCH > 1 else {}


@bentoml.service(workers=WORKERS, traffic={"timeout": 600})
class Encoder:
    """One worker."""

    def __init__(self) -> None:
        self.encoder = PaddedEncoder()

    @bentoml.api(**batching)  # type: ignore[untyped-decorator]
    def predict(self, inputs: list[str]) -> list[list[float]]:
        """Vectors of a batch; a request brings a list of one text."""
        return self.encoder.vectors(inputs)
