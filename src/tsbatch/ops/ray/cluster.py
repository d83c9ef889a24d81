"""The Ray cluster that a command is for."""

from __future__ import annotations

import logging
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from tsbatch.errors import UsageError
from tsbatch.ops.failure import ServerError
from tsbatch.ops.ray import local

AUTO: Final = "auto"
HERE: Final = "127.0.0.1"
SECONDS_TO_CONNECT: Final = 5.0
QUIET: Final = ("ray", "ray.serve", "ray._private.worker")
"""Loggers that tell on stderr what the command's own progress tells."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster that this process is connected to.

    Attributes:
        address: its address.
        started: whether the command has just started it on this machine.
    """

    address: str
    started: bool = False

    @property
    def here(self) -> bool:
        """Whether all of it listens on this machine's own address alone."""
        return self.address.startswith(f"{HERE}:")


@contextmanager
def connected(address: str, *, start_here: bool = False) -> Iterator[Cluster]:
    """Connect to a cluster, for as long as the block lasts.

    Args:
        address: of the cluster; ``auto`` for ``RAY_ADDRESS``, what ``--local`` has started, or one that runs here.
        start_here: start one on this machine where there is none.

    Raises:
        UsageError: there is none, and nobody asked to start one.
        ServerError: the one on this machine cannot be started, or does not answer.
    """
    started, mine = False, local.running()
    if mine is not None and address in (AUTO, mine.address) and "RAY_ADDRESS" not in os.environ:
        _join(mine)
    elif not _reach(address):
        if address != AUTO:
            raise UsageError(
                f"--address {address}: no Ray cluster answers there, or not to this user: one that wants a token needs"
                " RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN or ~/.ray/auth_token"
            )
        if not start_here:
            raise UsageError(
                "no Ray cluster runs here, and RAY_ADDRESS names none: give --address HOST:PORT, or --local to start a"
                " Ray on this machine"
            )
        started = True
        _join(local.start())
    import ray

    try:
        yield Cluster(ray.get_runtime_context().gcs_address, started)
    finally:
        ray.shutdown()


def _join(mine: local.LocalRay) -> None:
    os.environ.update(mine.environment)
    if not _reach(mine.address):
        raise ServerError(f"the Ray that --local started at {mine.address} does not answer; its logs: {mine.logs}")


def _reach(address: str) -> bool:
    """Connect; False where nobody answers."""
    if address != AUTO and "://" not in address and not _listens(address):
        return False
    import ray

    for name in QUIET:
        logging.getLogger(name).setLevel(logging.ERROR)
    environment = _of_replicas(address)
    try:
        with _nothing_on_stderr():
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, runtime_env=environment)
    except (ConnectionError, TimeoutError, RuntimeError, ValueError):
        return False
    return True


@contextmanager
def _nothing_on_stderr() -> Iterator[None]:
    """Ray's own code in C++ tells there of every try to connect, and asks nobody."""
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def _listens(address: str) -> bool:
    """Whether anybody does: Ray itself would go on trying for a minute."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), SECONDS_TO_CONNECT).close()
    except (OSError, ValueError, OverflowError):
        return False
    return True


def _of_replicas(address: str) -> dict[str, Any]:
    """The environment that replicas inherit from the command that deploys them."""
    if not address.startswith(f"{HERE}:"):
        return {}
    # A replica's own gRPC server takes every address of the machine, though the cluster keeps to this one.
    return {"worker_process_setup_hook": "tsbatch.ray.loopback.listen_here_only"}


def nodes() -> list[dict[str, Any]]:
    """The cluster's nodes, as one JSON object each."""
    import ray

    return [
        {
            "id": node["NodeID"][:12],
            "address": node["NodeManagerAddress"],
            "alive": bool(node["Alive"]),
            "cpus": node["Resources"].get("CPU", 0.0),
            "gpus": node["Resources"].get("GPU", 0.0),
        }
        for node in ray.nodes()
    ]
