"""BentoML app: a batchable API; BentoML's dispatcher decides when to run a batch, within max_latency_ms."""

from __future__ import annotations

import bentoml
from padded_encoder import BATCH, WORKERS, PaddedEncoder

# Without batching it accepts no batch size, not even 1.
batching = {"batchable": True, "max_batch_size": BATCH, "max_latency_ms": 600_000} if BATCH > 1 else {}


@bentoml.service(workers=WORKERS, traffic={"timeout": 600})
class Encoder:
    """One worker."""

    def __init__(self) -> None:
        self.encoder = PaddedEncoder()

    @bentoml.api(**batching)  # type: ignore[untyped-decorator]
    def predict(self, inputs: list[str]) -> list[list[float]]:
        """Compute the vectors of a batch; each request sends a list of one text."""
        return self.encoder.vectors(inputs)
