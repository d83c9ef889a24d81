"""The commands ``ray deploy``, ``ray status`` and ``ray undeploy``."""

from __future__ import annotations

import importlib.util
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from tsbatch.cli import options
from tsbatch.cli.exit_codes import FINDINGS
from tsbatch.errors import UsageError

if TYPE_CHECKING:
    from tsbatch.ray.deploy.applications import Deployed
    from tsbatch.ray.deploy.cluster import Cluster

SCHEMA = 1

Address = Annotated[str, Option(help="Cluster: HOST:PORT, ray://HOST:PORT, or auto for RAY_ADDRESS or a local Ray.")]
Cpus = Annotated[
    float | None, Option(help="CPU cores per replica, and its number of threads (default: tsbatch.threads, or 1).")
]
BatchDelay = Annotated[int | None, Option(help=f"{options.BATCH_DELAY} (default: maxBatchDelay).", min=0)]
Queue = Annotated[
    int | None,
    Option(help="Requests that may wait at each proxy before it answers 503 (default: jobQueueSize, or 100).", min=1),
]
Surge = Annotated[
    int | None, Option(help="Percentage of new replicas to start before old ones stop (default: as many as fit).")
]
Route = Annotated[str | None, Option(help="URL prefix of the application; needed to serve several (default: /).")]
Local = Annotated[bool, Option("--local", help="Use a private Ray on this machine, and start it if it is not running.")]
Haproxy = Annotated[
    bool, Option("--haproxy", help="With --local: use HAProxy instead of Ray's own proxies; it is faster.")
]

app = typer.Typer(help="Run an archive on Ray Serve, on one machine or a cluster.", no_args_is_help=True)


@app.command()
def deploy(
    mar: Annotated[str, Argument(help="Archive: a path, or an http(s)://, s3:// or gs:// address.", metavar="MAR|URI")],
    name: Annotated[str | None, Option(help="Name to serve the model under; the archive's own if omitted.")] = None,
    replicas: Annotated[int | None, Option(help="Number of replicas; minWorkers if omitted.")] = None,
    autoscale: Annotated[
        str | None, Option(help="Let Ray scale the replicas within these limits.", metavar="MIN:MAX")
    ] = None,
    cpus: Cpus = None,
    gpus: Annotated[float | None, Option(help="GPUs per replica; can be a fraction.")] = None,
    batch_size: Annotated[int | None, Option(help=f"{options.BATCH_SIZE} (default: batchSize).", min=1)] = None,
    max_batch_delay: BatchDelay = None,
    queue: Queue = None,
    surge: Surge = None,
    route: Route = None,
    address: Address = "auto",
    here: Local = False,
    haproxy: Haproxy = False,
    host: Annotated[str, Option(help="Address that Serve listens on, if this command starts it.")] = "127.0.0.1",
    port: Annotated[
        int, Option(help="Port that Serve listens on, if this command starts it.", min=1, max=65535)
    ] = 8000,
    json: options.Json = False,
) -> None:
    """Deploy an archive, replacing any application of the same name without losing a request."""
    _require_ray()
    from tsbatch.ray.archive_cache import describe
    from tsbatch.ray.deploy.applications import HttpOptions
    from tsbatch.ray.deploy.applications import deploy as deploy_on
    from tsbatch.ray.deploy.cluster import connected
    from tsbatch.ray.deployment_options import ray_settings
    from tsbatch.system.console import telling
    from tsbatch.system.signals import end_on_signals

    with end_on_signals(), telling() as tell:
        tell(f"reading {mar}")
        source = describe(mar)
        settings = ray_settings(
            source.config,
            name=name or source.name,
            replicas=replicas,
            autoscale=None if autoscale is None else _bounds(autoscale),
            cpus=cpus,
            gpus=gpus,
            batch_size=batch_size,
            max_batch_delay=max_batch_delay,
            queue_size=queue,
            surge=100 if surge is None else surge,
        )
        tell("connecting to Ray")
        with connected(address, start_here=here, haproxy=haproxy) as cluster:
            found = deploy_on(
                source, settings, route=route, http=HttpOptions(host, port), on_progress=tell, surge=surge
            )
    _show(found, cluster, json=json)


@app.command()
def status(address: Address = "auto", json: options.Json = False) -> None:
    """Show a cluster's applications and their nodes; exit code 1 if an application is not running."""
    _require_ray()
    from tsbatch.ray.deploy import applications as serving
    from tsbatch.ray.deploy.cluster import connected, nodes
    from tsbatch.system import console

    with connected(address) as cluster:
        applications, found = serving.status(), nodes()
    if json:
        about = {"schema": SCHEMA, "address": cluster.address, "nodes": found, "applications": applications}
        console.emit_json(about)
    else:
        console.table(["node", "address", "alive", "cores", "GPUs"], [list(node.values()) for node in found])
        console.out.print()
        console.table(["application", "status", "replicas", "where", "answers at"], [_row(one) for one in applications])
        for one in applications:
            if one["message"]:
                console.say(f"{one['name']}: {one['message']}")
    if any(one["status"] != serving.READY for one in applications):
        raise typer.Exit(FINDINGS)


@app.command()
def undeploy(
    name: Annotated[str, Argument(help="Name of the application.")],
    address: Address = "auto",
    json: options.Json = False,
) -> None:
    """Remove an application when its requests are answered; after the last one, stop a Ray started by --local."""
    _require_ray()
    from tsbatch.ray.deploy import applications as serving
    from tsbatch.ray.deploy import local_cluster
    from tsbatch.ray.deploy.cluster import connected
    from tsbatch.system import console

    with console.progress(f"removing {name}"), connected(address) as cluster:
        left = serving.undeploy(name)
    local = local_cluster.running()
    ended = local is not None and not left and local.address == cluster.address
    if local is not None and ended:
        local_cluster.end(local)
    if json:
        console.emit_json({"schema": SCHEMA, "removed": name, "left": left, "ended_ray": ended})
    else:
        console.say(f"removed: {name}{'; stopped the Ray that --local started' if ended else ''}")


def _require_ray() -> None:
    if importlib.util.find_spec("ray") is None:
        raise UsageError('Ray Serve is not installed: pip install "tsbatch[ray]"')


def _bounds(text: str) -> tuple[int, int]:
    least, colon, most = text.partition(":")
    if not colon or not least.isdecimal() or not most.isdecimal():
        raise UsageError(f"--autoscale is {text!r}; expected MIN:MAX, such as 1:4")
    return int(least), int(most)


def _show(found: Deployed, cluster: Cluster, *, json: bool) -> None:
    from tsbatch.system import console

    if json:
        about: dict[str, Any] = {"name": found.name, "version": found.version, "url": found.url}
        about |= {"address": cluster.address, "started_ray": cluster.started}
        about |= {"settings": asdict(found.settings), "remarks": list(found.remarks)}
        console.emit_json({"schema": SCHEMA, **about})
        return
    if cluster.started:
        console.say(
            f"started Ray on this machine at {cluster.address}; to stop it, run: tsbatch ray undeploy {found.name}"
        )
    for remark in found.remarks:
        console.say(remark)
    settings = found.settings
    replicas = settings.replicas
    count = replicas if isinstance(replicas, int) else f"{replicas[0]} to {replicas[1]}"
    each = f"{settings.cpus:g} core{'s' * (settings.cpus != 1)}" + (f", {settings.gpus:g} GPU" if settings.gpus else "")
    console.out.print(f"{found.name} {found.version}: {found.url}", markup=False, soft_wrap=True)
    console.say(
        f"replicas: {count} ({each} each), batches of up to {settings.batch_size} within"
        f" {settings.batch_delay * 1000:g} ms, up to {settings.queue_size} waiting"
    )


def _row(one: dict[str, Any]) -> list[object]:
    replicas = [replica for each in one["deployments"].values() for replica in each["replicas"]]
    wanted = sum(each["wanted"] for each in one["deployments"].values())
    running = [replica for replica in replicas if replica["state"] == "RUNNING"]
    where = ", ".join(sorted({replica["node"] for replica in running}))
    return [one["name"], one["status"], f"{len(running)} of {wanted}", where or None, one["url"]]
