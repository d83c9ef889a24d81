"""Connect to the Ray cluster that a command is for."""

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
EXPECTED: Final = "not the address of a Ray cluster; expected HOST:PORT, or ray://HOST:PORT"
TRIES_VARIABLE: Final = "RAY_gcs_server_port_wait_time_s"
"""Despite its name, how often Ray tries to connect (ray/_private/node.py): by default 20 times of up to 40 s."""
TRIES: Final = "1"
ACCESS_HINT: Final = "a cluster with tokens needs RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN or ~/.ray/auth_token"
ELSEWHERE: Final = "on other clusters, set RAY_SERVE_ENABLE_HA_PROXY=1 on every node (docs/ray.md)"
HERE: Final = "127.0.0.1"
SECONDS_TO_CONNECT: Final = 10.0
QUIET: Final = ("ray", "ray.serve", "ray._private.worker")
"""Loggers whose messages the command's own progress replaces."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster that this process is connected to.

    Attributes:
        address: its address.
        started: whether this command started it on this machine.
    """

    address: str
    started: bool = False


@contextmanager
def connected(address: str, *, start_here: bool = False, haproxy: bool = False) -> Iterator[Cluster]:
    """Connect to a cluster until the block ends.

    Args:
        address: the cluster's address; ``auto`` for ``RAY_ADDRESS``, a Ray that ``--local`` started, or one that runs
            on this machine.
        start_here: start a Ray on this machine if no address is given and ``--local`` has not started one yet; it is
            stopped if the block fails.
        haproxy: the Ray on this machine has HAProxy in front of its replicas.

    Raises:
        UsageError: there is no cluster, or it refuses the connection; or it has no HAProxy although ``haproxy`` is set.
        ServerError: the Ray on this machine cannot be started, or does not answer.
    """
    wanted = (os.environ.get(VARIABLE) or AUTO) if address == AUTO else address
    own = local_cluster.running()
    started = None
    with ExitStack() as ending:
        if haproxy and not (start_here and wanted == AUTO):
            raise UsageError(f"--haproxy is for a Ray that --local starts; {ELSEWHERE}")
        if own is not None and wanted in (AUTO, own.address):
            if haproxy and not own.haproxy:
                raise UsageError(
                    f"--haproxy: the Ray that --local started at {own.address} runs without it, which cannot change"
                    " while it runs; undeploy its applications first"
                )
            if why := _join(own):
                raise ServerError(
                    f"the Ray that --local started at {own.address} does not answer: {why}; its logs: {own.logs}; stop"
                    f" it with kill {own.process.pid}"
                )
        elif wanted == AUTO and start_here:
            started = local_cluster.start(with_haproxy=haproxy)
            ending.push(lambda error, *_: local_cluster.end(started) if error else None)
            if why := _join(started):
                raise ServerError(f"the Ray that was started here does not answer: {why}")
        elif why := _reach(wanted):
            raise UsageError(_explain(wanted, why, f"--address {address}" if address != AUTO else VARIABLE))
        import ray

        ending.callback(ray.shutdown)
        yield Cluster(ray.get_runtime_context().gcs_address, started is not None)


def _explain(wanted: str, why: str, named_by: str) -> str:
    if wanted != AUTO:
        shown = named_by if wanted in named_by else f"{named_by}={wanted}"
        return f"{shown}: {why}" if why == EXPECTED else f"{shown}: no Ray cluster answers there: {why}"
    if why != NONE_HERE:
        return f"the Ray that runs here refuses the connection: {why}"
    return (
        f"no Ray cluster runs here, and {VARIABLE} is not set: give --address HOST:PORT, or --local to start a Ray on"
        " this machine"
    )


def _join(own: local_cluster.LocalRay) -> str:
    os.environ.update(own.environment)  # Ray reads it once, at the first attempt to connect
    return _reach(own.address)


def _reach(address: str) -> str:
    """Connect; return the reason in one line if that fails, otherwise an empty string."""
    if address == AUTO and not (address := _local_address()):
        return NONE_HERE
    if why := _unreachable(address):
        return why
    import ray
    from ray.exceptions import RayError

    for name in QUIET:
        logging.getLogger(name).setLevel(logging.ERROR)
    environment = _replica_environment(address)
    os.environ.setdefault(TRIES_VARIABLE, TRIES)
    try:
        with _silent_stderr():
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, runtime_env=environment)
    except (ConnectionError, TimeoutError, RuntimeError, ValueError, RayError) as error:
        ray.shutdown()
        why = " ".join(str(error).split())[:300] or type(error).__name__
        return why if why.startswith("Version mismatch") else f"{why}; {ACCESS_HINT}"
    return ""


def _local_address() -> str:
    """Return the address of a Ray that runs on this machine, as Ray itself finds it; empty if there is none."""
    from ray._private.services import get_ray_address_from_environment

    try:
        found = str(get_ray_address_from_environment(AUTO, None))
    except ConnectionError:
        return ""
    return "" if _unreachable(found) else found  # Ray's file with it remains if Ray was killed


def _unreachable(address: str) -> str:
    """Return immediately why nothing answers there; Ray itself would keep trying for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or "/" in host or not port.isdecimal():
        return EXPECTED
    try:
        socket.create_connection((host.strip("[]"), int(port)), SECONDS_TO_CONNECT).close()
    except OSError as error:
        return error.strerror or str(error)
    except OverflowError as error:
        return str(error)
    return "" if _speaks_grpc(f"{host}:{port}") else "what listens there is not Ray"


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
def _silent_stderr() -> Iterator[None]:
    """Discard stderr, where Ray's C++ code reports every attempt to connect."""
    sys.stderr.flush()
    saved, devnull = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, 2)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(devnull)


def _replica_environment(address: str) -> dict[str, Any]:
    """Return the runtime environment that replicas inherit from the command that deploys them."""
    if not address.startswith(f"{HERE}:"):
        return {}
    # A replica's own gRPC server would listen on every address, although the cluster uses only this one.
    return {"worker_process_setup_hook": "tsbatch.ray.loopback.listen_here_only"}


def nodes() -> list[dict[str, Any]]:
    """Return the cluster's nodes, one JSON object each."""
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
