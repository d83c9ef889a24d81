"""Restrict a replica to this machine if the cluster is this machine."""

from __future__ import annotations

from typing import Any

from tsbatch.ray import haproxy


def listen_here_only() -> None:
    """Make a replica's gRPC server and HAProxy listen on 127.0.0.1, where Ray would use every address.

    Called in each process of the cluster (``worker_process_setup_hook``). Ray 2.60 has no setting for it.
    """
    if folder := haproxy.configured_folder():
        haproxy.restrict_to_loopback(folder)
    from ray.serve._private import replica

    listen = replica.add_port_to_grpc_server

    def here(server: Any, _: str) -> Any:
        return listen(server, "127.0.0.1:0")

    replica.add_port_to_grpc_server = here
