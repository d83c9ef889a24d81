"""LitServe app: sets max_batch_size and batch_timeout of its LitAPI, and workers_per_device of its server."""

from __future__ import annotations

from typing import Any

import litserve
from padded_encoder import BATCH, DELAY_SECONDS, PORT, WORKERS, PaddedEncoder


class Api(litserve.LitAPI):  # type: ignore[misc]  # installed in a separate environment
    """The API; with a batch size of 1 LitServe passes single texts, otherwise lists."""

    def setup(self, device: Any) -> None:
        """Load the model, once per worker."""
        del device
        self.encoder = PaddedEncoder()

    def decode_request(self, request):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201  LitServe reads annotations
        """Extract the text."""
        return request["inputs"]

    def predict(self, texts: Any) -> Any:
        """Compute the vectors of the batch, or the vector of the single text."""
        return self.encoder.vectors([texts])[0] if isinstance(texts, str) else self.encoder.vectors(texts)

    def encode_response(self, vector: Any) -> dict[str, Any]:
        """Build one answer."""
        return {"embedding": vector}


if __name__ == "__main__":
    batching = {"max_batch_size": BATCH, "batch_timeout": DELAY_SECONDS} if BATCH > 1 else {}
    server = litserve.LitServer(Api(**batching), accelerator="cpu", workers_per_device=WORKERS, timeout=600)
    server.run(host="127.0.0.1", port=PORT, generate_client_file=False, log_level="warning")
