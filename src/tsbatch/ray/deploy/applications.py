"""Deploy an application on Ray Serve and wait until it answers; list applications; remove one."""

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
from tsbatch.system.polling import wait_until
from tsbatch.system.ports import is_free

READY: Final = "RUNNING"
RETRIES: Final = 2
"""How often Ray restarts a replica that cannot load before the deployment fails."""
SECONDS_TO_SCHEDULE: Final = 120.0
"""Time limit for Ray to find a node and start a process, in addition to the replica's load."""
LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")
SECONDS_TO_REMOVE: Final = 60.0
"""Time limit for Ray to remove an application, in addition to the shutdown of its replicas."""
HAPROXY_SECONDS: Final = 30.0
"""Time limit for HAProxy to learn of the replicas."""
_REASON = re.compile(r"\b(?:LoadError|SettingsError): (.+)")
_ROUTE = re.compile(r"/|(/[\w.~-]+)+")


@dataclass(frozen=True, slots=True)
class HttpOptions:
    """The address at which Serve's proxies listen if this command starts them."""

    host: str = "127.0.0.1"
    port: int = 8000


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployed:
    """A deployed application that answers.

    Attributes:
        name, version: the model's name and version.
        url: the URL that answers.
        settings: its settings.
        remarks: what else the user should know.
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
    http: HttpOptions,
    on_progress: Callable[[str], None],
    surge: int | None,
) -> Deployed:
    """Deploy an archive on the connected cluster, and wait until all replicas answer.

    Raises:
        UsageError: no node is large enough, or the route or the port is taken.
        LoadFailed: its replicas cannot load.
        ServerError: its replicas do not answer in time.
    """
    from ray import serve

    from tsbatch.ray.application import application

    before = _details()
    current = before["applications"].get(settings.name)
    route = route or (current["route_prefix"] if current else None) or "/"
    _check_capacity(settings)
    _check_route(before, settings.name, route)
    _start_serve(http)
    settings = replace(settings, surge=_surge(settings, update=current is not None) if surge is None else surge)
    target = serve.RunTarget(
        application(source, settings, {"max_constructor_retry_count": RETRIES}), settings.name, route
    )
    serve.run_many([target], wait_for_ingress_deployment_creation=False, wait_for_applications_running=False)
    _wait(settings, on_progress)
    after = _details()
    root = f"{_address(after)}{route.rstrip('/')}"
    if os.environ.get(SWITCH) == "1":
        _wait_for_haproxy(root)
    return Deployed(
        name=settings.name,
        version=source.version,
        url=f"{root}/predictions/{settings.name}",
        settings=settings,
        remarks=tuple(_remarks(after, one_by_one=current is not None and settings.surge == 0)),
    )


def _remarks(details: Mapping[str, Any], *, one_by_one: bool) -> Iterator[str]:
    from tsbatch.ray.deploy.cluster import nodes

    if one_by_one:
        yield "no room for old and new replicas at once: each old one was stopped before its successor started"
    host = details["http_options"]["host"]
    if host in LOOPBACK and not all(is_free(0, node["address"]) for node in nodes() if node["alive"]):
        yield (
            f"Serve listens on {host} of each node, which only that node can reach; --host 0.0.0.0 in the first"
            " deployment opens it, and then something in front of it must authenticate clients"
        )


def _start_serve(http: HttpOptions) -> None:
    """Start Serve if it is not running, with tsbatch's middleware for requests that are lost with their replica."""
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


def _check_port(http: HttpOptions) -> None:
    """Check the port if the cluster is on this machine; Ray itself would share it with another Serve."""
    from tsbatch.ray.deploy.cluster import nodes

    here = any(is_free(0, node["address"]) for node in nodes())
    if here and ":" not in http.host and not is_free(http.port, http.host):
        raise UsageError(
            f"{http.host}:{http.port} is in use, or not an address of this machine: give Serve another --port or --host"
        )


def _details() -> dict[str, Any]:
    """Return the details of Serve's controller, as in its REST API; no applications if Serve is not running."""
    from ray.serve.context import _get_global_client

    client = _get_global_client(raise_if_no_controller_running=False)
    return dict(client.get_serve_details()) if client else {"applications": {}, "http_options": None, "proxies": {}}


def _check_capacity(settings: RaySettings) -> None:
    from tsbatch.ray.deploy.cluster import nodes

    alive = [node for node in nodes() if node["alive"]]
    if not any(node["cpus"] >= settings.cpus and node["gpus"] >= settings.gpus for node in alive):
        largest = max(alive, key=lambda node: (node["gpus"], node["cpus"]))
        raise UsageError(
            f"{settings.name}: a replica reserves {settings.cpus:g} cores and {settings.gpus:g} GPUs, but the largest"
            f" of the cluster's {len(alive)} nodes has {largest['cpus']:g} and {largest['gpus']:g}; see --cpus, --gpus"
        )


def _check_route(details: Mapping[str, Any], name: str, route: str) -> None:
    if not _ROUTE.fullmatch(route):
        raise UsageError(f"--route is {route!r}; expected / or one like /{name}")
    for other, about in details["applications"].items():
        if other != name and about.get("route_prefix") == route:
            raise UsageError(
                f"the application {other} already answers at {route}: give --route /{name} to prefix its URLs, or"
                f" remove the other: tsbatch ray undeploy {other}"
            )


def _surge(settings: RaySettings, *, update: bool) -> int:
    """Start all new replicas before stopping the old ones if the cluster has room for at least one."""
    import ray

    free = ray.available_resources()
    fits = free.get("CPU", 0.0) >= settings.cpus and free.get("GPU", 0.0) >= settings.gpus
    return 100 if fits or not update else 0


def _wait(settings: RaySettings, on_progress: Callable[[str], None]) -> None:
    """Wait until all replicas answer. Ray's controller resets the status when it accepts a deployment."""
    limit = SECONDS_TO_SCHEDULE + settings.startup_timeout * (1 + RETRIES)
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
                f"{settings.name}: not all replicas answer after {limit:g} s ({status or 'unknown'}):"
                f" {reason_in(message)}; tsbatch ray status shows the progress"
            )
        states = [replica["state"] for one in deployments.values() for replica in one["replicas"]]
        on_progress(f"{settings.name}: {states.count(READY)} of {len(states)} replicas answer")
        time.sleep(0.3)


def _wait_for_haproxy(root: str) -> None:
    """Wait until HAProxy knows the route; it learns of new replicas a moment after they are ready."""
    statuses: list[int] = []

    def answers() -> bool:
        with suppress(httpx.TransportError):
            statuses.append(httpx.get(f"{root}/ping", trust_env=False, timeout=5).status_code)
        return httpx.codes.OK in statuses

    if not wait_until(answers, HAPROXY_SECONDS):
        last = f"; its last status is {statuses[-1]}" if statuses else ""
        raise ServerError(
            f"{root}: all replicas are ready, but HAProxy does not find them{last}; its files are next to Ray's logs"
        )


def reason_in(message: str) -> str:
    """Return the essential line of Ray's message, which is a traceback in a traceback."""
    found: list[str] = _REASON.findall(message)
    if found:
        return found[-1].strip()
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    return lines[-1][:500] if lines else "Ray gives no reason"


def _address(details: Mapping[str, Any]) -> str:
    options = details["http_options"]
    host = options["host"]
    if host in ("0.0.0.0", "::"):  # noqa: S104  compared, not listened on
        nodes = (proxy.get("node_ip") for proxy in details["proxies"].values())
        host = next(filter(None, nodes), "127.0.0.1")
    return f"http://{f'[{host}]' if ':' in host else host}:{options['port']}"


def status() -> list[dict[str, Any]]:
    """Return every application on the cluster."""
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
    """Remove an application after its requests are answered.

    Returns:
        The remaining applications.

    Raises:
        UsageError: there is no such application.
        ServerError: it is not removed within the time limit of its replicas' shutdown.
    """
    applications = _details()["applications"]
    names = sorted(applications)
    if name not in names:
        known = ", ".join(names) or "none"
        raise UsageError(f"no application named {name!r} is deployed; deployed: {known}")
    from ray import serve

    configs = [one.get("deployment_config") or {} for one in applications[name]["deployments"].values()]
    limit = SECONDS_TO_REMOVE + max((float(one.get("graceful_shutdown_timeout_s") or 0) for one in configs), default=0)
    serve.delete(name, _blocking=False)  # Ray itself waits only a minute, but requests may take longer
    if not wait_until(lambda: name not in _details()["applications"], limit, interval=0.2):
        raise ServerError(f"{name}: not removed after {limit:g} s; tsbatch ray status shows the progress")
    return [other for other in names if other != name]
