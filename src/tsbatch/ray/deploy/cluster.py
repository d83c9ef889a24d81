"""The Ray cluster that a command is for."""

from __future__ import annotations

import logging
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Final

from tsbatch.errors import ServerError, UsageError
from tsbatch.ray.deploy import local_cluster

AUTO: Final = "auto"
VARIABLE: Final = "RAY_ADDRESS"
NONE_HERE: Final = "none runs here"
EXPECTED: Final = "no address of a Ray cluster; expected HOST:PORT, or ray://HOST:PORT"
TRIES_VARIABLE: Final = "RAY_gcs_server_port_wait_time_s"
"""Despite its name, how often Ray tries to connect (ray/_private/node.py): else twenty times, each up to 40 s."""
TRIES: Final = "1"
LET_IN: Final = "one that wants a token needs RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN or ~/.ray/auth_token"
ELSEWHERE: Final = "other clusters have it where RAY_SERVE_ENABLE_HA_PROXY=1 is set on every node (docs/ray.md)"
HERE: Final = "127.0.0.1"
SECONDS_TO_CONNECT: Final = 10.0
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
def connected(address: str, *, start_here: bool = False, haproxy: bool = False) -> Iterator[Cluster]:
    """Connect to a cluster, for as long as the block lasts.

    Args:
        address: of the cluster; ``auto`` for ``RAY_ADDRESS``, what ``--local`` has started, or one that runs here.
        start_here: start one of its own on this machine, where no address is named and none of its own runs; it ends
            with a block that fails.
        haproxy: the one of its own has HAProxy in front of its replicas.

    Raises:
        UsageError: there is none, or it lets nobody in, and nobody asked to start one; or it has no HAProxy, though
            that is wanted.
        ServerError: the one on this machine cannot be started, or does not answer.
    """
    wanted = (os.environ.get(VARIABLE) or AUTO) if address == AUTO else address
    mine = local_cluster.running()
    started = False
    with ExitStack() as ending:
        if haproxy and not (start_here and wanted == AUTO):
            raise UsageError(f"--haproxy is for a Ray that --local starts; {ELSEWHERE}")
        if mine is not None and wanted in (AUTO, mine.address):
            if haproxy and not mine.haproxy:
                raise UsageError(
                    f"--haproxy: the Ray that --local started at {mine.address} runs without it, and cannot change"
                    " while it runs; undeploy what is on it first"
                )
            if why := _join(mine):
                raise ServerError(
                    f"the Ray that --local started at {mine.address} does not answer: {why}; its logs: {mine.logs}; end"
                    f" it with kill {mine.process.pid}"
                )
        elif wanted == AUTO and start_here:
            started = True
            if why := _join(ending.enter_context(_started_here(haproxy))):
                raise ServerError(f"the Ray that was started here does not answer: {why}")
        elif why := _reach(wanted):
            raise UsageError(_told(wanted, why, f"--address {address}" if address != AUTO else VARIABLE))
        import ray

        ending.callback(ray.shutdown)
        yield Cluster(ray.get_runtime_context().gcs_address, started)


def _told(wanted: str, why: str, named_by: str) -> str:
    if wanted != AUTO:
        shown = named_by if wanted in named_by else f"{named_by}={wanted}"
        return f"{shown}: {why}" if why == EXPECTED else f"{shown}: no Ray cluster answers there: {why}"
    if why != NONE_HERE:
        return f"the Ray that runs here lets nobody in: {why}"
    return (
        f"no Ray cluster runs here, and {VARIABLE} names none: give --address HOST:PORT, or --local to start a Ray on"
        " this machine"
    )


@contextmanager
def _started_here(haproxy: bool) -> Iterator[local_cluster.LocalRay]:
    """A new one; where the block fails it ends, since nobody would know of it."""
    started = local_cluster.start(with_haproxy=haproxy)
    try:
        yield started
    except BaseException:
        local_cluster.end(started)
        raise


def _join(mine: local_cluster.LocalRay) -> str:
    os.environ.update(mine.environment)  # Ray reads it once: before this, nothing may have tried to connect
    return _reach(mine.address)


def _reach(address: str) -> str:
    """Connect; why not, in one line, where that fails."""
    if address == AUTO and not (address := _running_here()):
        return NONE_HERE
    if why := _nobody_at(address):
        return why
    import ray
    from ray.exceptions import RayError

    for name in QUIET:
        logging.getLogger(name).setLevel(logging.ERROR)
    environment = _of_replicas(address)
    os.environ.setdefault(TRIES_VARIABLE, TRIES)
    try:
        with _nothing_on_stderr():
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, runtime_env=environment)
    except (ConnectionError, TimeoutError, RuntimeError, ValueError, RayError) as error:
        ray.shutdown()
        why = " ".join(str(error).split())[:300] or type(error).__name__
        return why if why.startswith("Version mismatch") else f"{why}; {LET_IN}"
    return ""


def _running_here() -> str:
    """The address of a Ray that runs on this machine, as Ray itself finds it; empty where none does."""
    from ray._private.services import get_ray_address_from_environment

    try:
        found = str(get_ray_address_from_environment(AUTO, None))
    except ConnectionError:
        return ""
    return "" if _nobody_at(found) else found  # the file in which Ray notes it outlives a Ray that was killed


def _nobody_at(address: str) -> str:
    """Why nobody can be asked there, told at once: Ray itself would go on trying for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or "/" in host or not port.isdecimal():
        return EXPECTED
    try:
        socket.create_connection((host.strip("[]"), int(port)), SECONDS_TO_CONNECT).close()
    except OSError as error:
        return error.strerror or str(error)
    except OverflowError as error:
        return str(error)
    return "" if _speaks_grpc(f"{host}:{port}") else "what listens there is no Ray"


def _speaks_grpc(address: str) -> bool:
    from grpc import FutureTimeoutError, channel_ready_future, insecure_channel

    if os.environ.get("RAY_USE_TLS", "0").lower() in ("1", "true"):
        return True  # only Ray has the certificates
    with insecure_channel(address, options=[("grpc.enable_http_proxy", 0)]) as channel:
        try:
            channel_ready_future(channel).result(SECONDS_TO_CONNECT)
        except FutureTimeoutError:
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
