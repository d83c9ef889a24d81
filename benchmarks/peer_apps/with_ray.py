"""Ray Serve app: @serve.batch in each replica."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ray
from padded_encoder import BATCH, DELAY_SECONDS, PORT, THREADS, WORKERS, PaddedEncoder
from ray import serve


class Encoder:
    """One replica."""

    def __init__(self) -> None:
        self.encoder = PaddedEncoder()

    @serve.batch(max_batch_size=BATCH, batch_wait_timeout_s=DELAY_SECONDS)  # type: ignore[untyped-decorator]
    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """Compute the vectors of a batch in a thread, so that the replica can read the next requests meanwhile."""
        return await asyncio.to_thread(self.encoder.vectors, texts)

    async def __call__(self, request: Any) -> dict[str, Any]:
        """Answer one request."""
        return {"embedding": await self.embed((await request.json())["inputs"])}


def stay_on_this_machine() -> None:
    """Make a replica's gRPC server and HAProxy listen on 127.0.0.1; Ray would use all addresses."""
    from ray.serve._private import replica

    if os.environ.get("RAY_SERVE_ENABLE_HA_PROXY") == "1":
        from tsbatch.ray import haproxy

        haproxy.restrict_to_loopback(Path(os.environ[haproxy.CONFIG]).parent)

    listen = replica.add_port_to_grpc_server
    replica.add_port_to_grpc_server = lambda server, _: listen(server, "127.0.0.1:0")


if __name__ == "__main__":
    ray.init(
        runtime_env={"worker_process_setup_hook": stay_on_this_machine},
        num_cpus=WORKERS * THREADS + 1,
        include_dashboard=False,
        object_store_memory=200_000_000,
        _temp_dir=str(Path.cwd()),
    )
    serve.start(http_options={"host": "127.0.0.1", "port": PORT})
    deployment = serve.deployment(
        num_replicas=WORKERS, max_ongoing_requests=1000, ray_actor_options={"num_cpus": THREADS}
    )
    serve.run(deployment(Encoder).bind(), route_prefix="/predict")
    signal.pause()
