"""The verbs ``ray deploy``, ``ray status`` and ``ray undeploy``."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tsbatch.errors import UsageError

if TYPE_CHECKING:
    from tsbatch.ray.deploy.applications import Deployed
    from tsbatch.ray.deploy.cluster import Cluster

PANEL = "Server"
SCHEMA = 1

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Address = Annotated[
    str, typer.Option(help="The cluster: HOST:PORT, ray://HOST:PORT, or auto: RAY_ADDRESS, or one that runs here.")
]


def register(app: typer.Typer) -> None:
    """Add the verbs to the command line."""
    verbs = typer.Typer(help="Run an archive on Ray Serve, on one machine or many.", no_args_is_help=True)
    for command in (deploy, status, undeploy):
        verbs.command(command.__name__)(command)
    app.add_typer(verbs, name="ray", rich_help_panel=PANEL)


def deploy(
    mar: Annotated[str, typer.Argument(help="The archive: a path, or http(s)://, s3://, gs:// …", metavar="MAR|URI")],
    name: Annotated[str | None, typer.Option(help="The name it is served under; the archive's when left out.")] = None,
    replicas: Annotated[int | None, typer.Option(help="Replicas; minWorkers when left out.")] = None,
    autoscale: Annotated[str | None, typer.Option(help="Let Ray scale between two numbers.", metavar="MIN:MAX")] = None,
    cpus: Annotated[
        float | None, typer.Option(help="Cores that a replica reserves, and its threads (tsbatch.threads, or 1).")
    ] = None,
    gpus: Annotated[float | None, typer.Option(help="GPUs that a replica reserves; also a part of one.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Requests in a batch, at most (batchSize).", min=1)] = None,
    max_batch_delay: Annotated[
        int | None, typer.Option(help="ms to wait for a batch to fill (maxBatchDelay).", min=0)
    ] = None,
    queue: Annotated[
        int | None, typer.Option(help="Requests that wait at each proxy before 503 (jobQueueSize, or 100).", min=1)
    ] = None,
    surge: Annotated[
        int | None, typer.Option(help="Percent of new replicas before old ones end; what there is room for.")
    ] = None,
    route: Annotated[
        str | None, typer.Option(help="What its addresses begin with, where several models are served (/).")
    ] = None,
    address: Address = "auto",
    here: Annotated[
        bool,
        typer.Option("--local", help="On a Ray of its own on this machine, which is started where it does not run."),
    ] = False,
    haproxy: Annotated[
        bool, typer.Option("--haproxy", help="With --local: HAProxy takes the requests, not Ray's own proxies; faster.")
    ] = False,
    host: Annotated[str, typer.Option(help="Where Serve listens, when this starts it.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Its port, likewise.", min=1, max=65535)] = 8000,
    json: Json = False,
) -> None:
    """Deploy an archive; one that runs under this name is replaced without losing a request."""
    _require_ray()
    from tsbatch.ray.archive_cache import describe
    from tsbatch.ray.deploy.applications import Http
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
            found = deploy_on(source, settings, route=route, http=Http(host, port), tell=tell, surge=surge)
    _show(found, cluster, json=json)


def status(address: Address = "auto", json: Json = False) -> None:
    """Say which applications run on a cluster, and on which nodes; exit code 1 when one of them does not."""
    _require_ray()
    from tsbatch.ray.deploy import applications as serving
    from tsbatch.ray.deploy.cluster import connected, nodes
    from tsbatch.system import console

    with connected(address) as cluster:
        applications, there = serving.status(), nodes()
    if json:
        about = {"schema": SCHEMA, "address": cluster.address, "nodes": there, "applications": applications}
        console.emit_json(about)
    else:
        console.table(["node", "address", "alive", "cores", "GPUs"], [list(node.values()) for node in there])
        console.out.print()
        console.table(["application", "status", "replicas", "where", "answers at"], [_row(one) for one in applications])
        for one in applications:
            if one["message"]:
                console.say(f"{one['name']}: {one['message']}")
    if any(one["status"] != serving.READY for one in applications):
        raise typer.Exit(1)


def undeploy(
    name: Annotated[str, typer.Argument(help="The application.")], address: Address = "auto", json: Json = False
) -> None:
    """Remove an application once its requests are answered; with the last one, a Ray that --local started ends too."""
    _require_ray()
    from tsbatch.ray.deploy import applications as serving
    from tsbatch.ray.deploy import local_cluster
    from tsbatch.ray.deploy.cluster import connected
    from tsbatch.system import console

    with console.progress(f"removing {name}"), connected(address) as cluster:
        left = serving.undeploy(name)
    mine = local_cluster.running()
    ended = mine is not None and not left and mine.address == cluster.address
    if mine is not None and ended:
        local_cluster.end(mine)
    if json:
        console.emit_json({"schema": SCHEMA, "removed": name, "left": left, "ended_ray": ended})
    else:
        console.say(f"removed: {name}{'; the Ray that --local started has ended too' if ended else ''}")


def _require_ray() -> None:
    if importlib.util.find_spec("ray") is None:
        raise UsageError('Ray Serve is not installed: pip install "tsbatch[ray]"')


def _bounds(text: str) -> tuple[int, int]:
    least, colon, most = text.partition(":")
    if not colon or not least.isdecimal() or not most.isdecimal():
        raise UsageError(f"--autoscale is {text!r}; expected MIN:MAX, as 1:4")
    return int(least), int(most)


def _show(found: Deployed, cluster: Cluster, *, json: bool) -> None:
    from tsbatch.system import console

    if json:
        about: dict[str, Any] = {"name": found.name, "version": found.version, "url": found.url}
        about |= {"address": cluster.address, "started_ray": cluster.started}
        about |= {"settings": found.settings.to_json(), "remarks": list(found.remarks)}
        console.emit_json({"schema": SCHEMA, **about})
        return
    if cluster.started:
        console.say(
            f"started a Ray on this machine, at {cluster.address}; it ends with: tsbatch ray undeploy {found.name}"
        )
    for remark in found.remarks:
        console.say(remark)
    settings = found.settings
    count = (
        settings.replicas if isinstance(settings.replicas, int) else f"{settings.replicas[0]} to {settings.replicas[1]}"
    )
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
