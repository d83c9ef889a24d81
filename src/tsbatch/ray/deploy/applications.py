"""Ray Serve's applications: deploy one and wait until it answers, list them, remove one."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

import httpx

from tsbatch.errors import LoadFailed, ServerError, UsageError
from tsbatch.ray.archive_cache import Source
from tsbatch.ray.deployment_options import RaySettings
from tsbatch.ray.haproxy import SWITCH
from tsbatch.ray.proxy import CALLBACK, VARIABLE
from tsbatch.system.ports import is_free

READY: Final = "RUNNING"
TRIES: Final = 2
"""How often a replica that cannot load is tried anew before the deployment has failed."""
SECONDS_TO_SCHEDULE: Final = 120.0
"""What Ray may take to find a place and start a process, beside what the replica takes to load."""
LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")
SECONDS_TO_REMOVE: Final = 60.0
"""What Ray may take to remove an application, beside what its replicas may take to end."""
SECONDS_TO_BE_TOLD: Final = 30.0
_REASON = re.compile(r"\b(?:LoadError|SettingsError): (.+)")
_ROUTE = re.compile(r"/|(/[\w.~-]+)+")


@dataclass(frozen=True, slots=True)
class Http:
    """Where Serve's proxies listen, where they are not there yet."""

    host: str = "127.0.0.1"
    port: int = 8000


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployed:
    """An application that answers.

    Attributes:
        name, version: the model's.
        url: where it answers.
        settings: as which it runs.
        remarks: what else the person should know.
    """

    name: str
    version: str
    url: str
    settings: RaySettings
    remarks: tuple[str, ...] = ()


def deploy(
    source: Source,
    settings: RaySettings,
    *,
    route: str | None,
    http: Http,
    tell: Callable[[str], None],
    surge: int | None,
) -> Deployed:
    """Deploy an archive on the cluster that this process is connected to, and wait until all replicas answer.

    Raises:
        UsageError: the cluster cannot have it: no node is large enough, or the route or the port is taken.
        LoadFailed: its replicas cannot load.
        ServerError: they do not come up in time.
    """
    from ray import serve

    from tsbatch.ray.application import application

    before = _details()
    there = settings.name in before["applications"]
    route = route or (before["applications"][settings.name]["route_prefix"] if there else None) or "/"
    _check_room(settings)
    _check_route(before, settings.name, route)
    _start_serve(http)
    settings = replace(settings, surge=_surge(settings, there=there) if surge is None else surge)
    target = serve.RunTarget(
        application(source, settings, {"max_constructor_retry_count": TRIES}), settings.name, route
    )
    serve.run_many([target], wait_for_ingress_deployment_creation=False, wait_for_applications_running=False)
    _wait(settings, tell)
    after = _details()
    root = f"{_address(after)}{route.rstrip('/')}"
    if os.environ.get(SWITCH) == "1":
        _wait_for_haproxy(root)
    return Deployed(
        name=settings.name,
        version=source.version,
        url=f"{root}/predictions/{settings.name}",
        settings=settings,
        remarks=tuple(_remarks(after, one_by_one=there and settings.surge == 0)),
    )


def _remarks(details: Mapping[str, Any], *, one_by_one: bool) -> Iterator[str]:
    from tsbatch.ray.deploy.cluster import nodes

    if one_by_one:
        yield "no room beside the old replicas: each was ended before a new one took its place"
    host = details["http_options"]["host"]
    if host in LOOPBACK and not all(is_free(0, node["address"]) for node in nodes() if node["alive"]):
        yield (
            f"Serve listens on {host} of each node, where only that node reaches it; --host 0.0.0.0, given to the first"
            " deployment, opens it, and then something in front of it has to ask who calls"
        )


def _start_serve(http: Http) -> None:
    """Start Serve where it does not run, with our answer to requests that are lost with their replica."""
    from ray import serve
    from ray.exceptions import RayError

    if serve.status().proxies:
        return
    _check_port(http)
    try:
        serve.start(
            proxy_location="EveryNode",
            http_options={"host": http.host, "port": http.port},
            controller_options={"runtime_env": {"env_vars": {VARIABLE: CALLBACK}}},
        )
    except (RayError, TimeoutError) as error:
        serve.shutdown()
        reason = reason_in(str(error))
        raise ServerError(f"Serve cannot listen at {http.host}:{http.port} on every node: {reason}") from None


def _check_port(http: Http) -> None:
    """Where the cluster is on this machine: Ray itself would share a port with another Serve that listens there."""
    from tsbatch.ray.deploy.cluster import nodes

    here = any(is_free(0, node["address"]) for node in nodes())
    if here and ":" not in http.host and not is_free(http.port, http.host):
        raise UsageError(
            f"{http.host}:{http.port} is in use, or no address of this machine: give --port, or --host, for Serve"
        )


def _details() -> dict[str, Any]:
    """What Serve's controller knows, as its REST API tells it; without applications where Serve does not run."""
    from ray.serve.context import _get_global_client

    client = _get_global_client(raise_if_no_controller_running=False)
    return dict(client.get_serve_details()) if client else {"applications": {}, "http_options": None, "proxies": {}}


def _check_room(settings: RaySettings) -> None:
    from tsbatch.ray.deploy.cluster import nodes

    alive = [node for node in nodes() if node["alive"]]
    if not any(node["cpus"] >= settings.cpus and node["gpus"] >= settings.gpus for node in alive):
        largest = max(alive, key=lambda node: (node["gpus"], node["cpus"]))
        raise UsageError(
            f"{settings.name}: a replica reserves {settings.cpus:g} cores and {settings.gpus:g} GPUs, and the largest"
            f" of the cluster's {len(alive)} nodes has {largest['cpus']:g} and {largest['gpus']:g}; see --cpus, --gpus"
        )


def _check_route(details: Mapping[str, Any], name: str, route: str) -> None:
    if not _ROUTE.fullmatch(route):
        raise UsageError(f"--route is {route!r}; expected / or one like /{name}")
    for other, about in details["applications"].items():
        if other != name and about.get("route_prefix") == route:
            raise UsageError(
                f"the application {other} answers at {route} already: give --route /{name}, with which the addresses of"
                f" {name} begin then, or remove it: tsbatch ray undeploy {other}"
            )


def _surge(settings: RaySettings, *, there: bool) -> int:
    """All new replicas before the old ones end, where the cluster has room for at least one."""
    import ray

    free = ray.available_resources()
    fits = free.get("CPU", 0.0) >= settings.cpus and free.get("GPU", 0.0) >= settings.gpus
    return 100 if fits or not there else 0


def _wait(settings: RaySettings, tell: Callable[[str], None]) -> None:
    """Ray's controller has set the status back when it took the deployment, so what it says is of this one."""
    limit = SECONDS_TO_SCHEDULE + settings.startup_timeout * (1 + TRIES)
    deadline = time.monotonic() + limit
    while True:
        about = _details()["applications"].get(settings.name) or {}
        status, deployments = about.get("status"), about.get("deployments") or {}
        message = " ".join([str(about.get("message") or ""), *(str(one["message"]) for one in deployments.values())])
        if status == READY:
            return
        if status in ("DEPLOY_FAILED", "UNHEALTHY"):
            raise LoadFailed(settings.name, reason_in(message))
        if time.monotonic() > deadline:
            raise ServerError(
                f"{settings.name}: not all replicas answer after {limit:g} s ({status or 'nothing known'}):"
                f" {reason_in(message)}; tsbatch ray status shows how it goes on"
            )
        states = [replica["state"] for one in deployments.values() for replica in one["replicas"]]
        tell(f"{settings.name}: {states.count(READY)} of {len(states)} replicas answer")
        time.sleep(0.3)


def _wait_for_haproxy(root: str) -> None:
    """It is told of new replicas a moment after they are ready, and does not know the route until then."""
    deadline = time.monotonic() + SECONDS_TO_BE_TOLD
    said = ""
    while time.monotonic() < deadline:
        with suppress(httpx.TransportError):
            answer = httpx.get(f"{root}/ping", trust_env=False, timeout=5)
            if answer.status_code == httpx.codes.OK:
                return
            said = f"; it says {answer.status_code}"
        time.sleep(0.1)
    raise ServerError(
        f"{root}: all replicas are ready, and HAProxy does not find them{said}; its files lie beside Ray's logs"
    )


def reason_in(message: str) -> str:
    """What a person wants to know of Ray's message, which is a traceback in a traceback."""
    found: list[str] = _REASON.findall(message)
    if found:
        return found[-1].strip()
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    return lines[-1][:500] if lines else "Ray says nothing more"


def _address(details: Mapping[str, Any]) -> str:
    options = details["http_options"]
    host = options["host"]
    if host in ("0.0.0.0", "::"):  # noqa: S104  compared, not listened on
        nodes = (proxy.get("node_ip") for proxy in details["proxies"].values())
        host = next(filter(None, nodes), "127.0.0.1")
    return f"http://{f'[{host}]' if ':' in host else host}:{options['port']}"


def status() -> list[dict[str, Any]]:
    """Every application on the cluster."""
    details = _details()
    return [_application(details, name, about) for name, about in sorted(details["applications"].items())]


def _application(details: Mapping[str, Any], name: str, about: Mapping[str, Any]) -> dict[str, Any]:
    deployments = about["deployments"]
    message = " ".join([about["message"], *(one["message"] for one in deployments.values())]).strip()
    healthy = about["status"] == READY
    return {
        "name": name,
        "status": about["status"],
        "message": "" if healthy else reason_in(message),
        "url": f"{_address(details)}{(about['route_prefix'] or '/').rstrip('/')}/predictions/{name}",
        "deployments": {
            key: {
                "status": one["status"],
                "wanted": one["target_num_replicas"],
                "replicas": [
                    {
                        "id": replica["replica_id"],
                        "state": replica["state"],
                        "node": (replica.get("node_id") or "")[:12],
                    }
                    for replica in one["replicas"]
                ],
            }
            for key, one in deployments.items()
        },
    }


def undeploy(name: str) -> list[str]:
    """Remove an application once its requests are answered.

    Returns:
        The applications that are left.

    Raises:
        UsageError: there is none of that name.
        ServerError: it is not gone in the time that its replicas may take to end.
    """
    applications = _details()["applications"]
    there = sorted(applications)
    if name not in there:
        known = ", ".join(there) or "none"
        raise UsageError(f"no application named {name!r} is deployed; deployed: {known}")
    from ray import serve

    configs = [one.get("deployment_config") or {} for one in applications[name]["deployments"].values()]
    limit = SECONDS_TO_REMOVE + max((float(one.get("graceful_shutdown_timeout_s") or 0) for one in configs), default=0)
    serve.delete(name, _blocking=False)  # Ray's own waiting ends after a minute, and requests may take longer
    deadline = time.monotonic() + limit
    while name in _details()["applications"]:
        if time.monotonic() > deadline:
            raise ServerError(f"{name}: not removed after {limit:g} s; tsbatch ray status shows how it goes on")
        time.sleep(0.2)
    return [other for other in there if other != name]
