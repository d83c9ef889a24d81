"""The verbs of the panel Server: serve, stop, register, models, scale, unregister."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer

from tsbatch.errors import UsageError
from tsbatch.operations import registration
from tsbatch.operations.connection import reach
from tsbatch.operations.curl_commands import curl_line
from tsbatch.serving import instance as instances
from tsbatch.serving.instance import DEFAULT_NAME, Instance
from tsbatch.serving.java_command import error_in_console
from tsbatch.serving.management_client import Management, models_of, summary
from tsbatch.serving.server import Server, ServerError
from tsbatch.serving.tokens import FixedToken
from tsbatch.system.console import emit_json, progress, say, table, telling
from tsbatch.system.signals import end_on_signals

SCHEMA = 1
PANEL = "Server"
ASKED_TO_END = {-signal.SIGTERM, 128 + signal.SIGTERM, int(signal.SIGTERM)}
"""Java's exit codes after ``tsbatch stop``: as Python tells it, as Java itself, and on Windows."""

COLUMNS = ("name", "version", "workers", "batch_size", "max_batch_delay", "status")

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Name = Annotated[str, typer.Option("--name", help="Name of the server's instance.")]
ServerUrl = Annotated[
    str | None,
    typer.Option("--server", help="Management address of a server others started; its token in TSBATCH_TOKEN."),
]
Version = Annotated[str | None, typer.Option("--version", help="Version; the default one when left out.")]


def register(app: typer.Typer) -> None:
    """Add the verbs to the command line."""
    for command in (serve, stop, register_model, models, scale, unregister):
        app.command(name=command.__name__.partition("_")[0], rich_help_panel=PANEL)(command)


def serve(
    archives: Annotated[list[str] | None, typer.Argument(help="More archives for --models.")] = None,
    models: Annotated[
        list[str] | None,
        typer.Option("--models", help="Archive to load, as FILE or NAME=FILE; several times; or 'all'."),
    ] = None,
    model_store: Annotated[Path | None, typer.Option(help="Model store; a private folder when left out.")] = None,
    name: Name = DEFAULT_NAME,
    config: Annotated[
        Path | None,
        typer.Option(help="A config.properties; what it says holds.", envvar="TS_CONFIG_FILE"),
    ] = None,
    log_dir: Annotated[Path | None, typer.Option(help="Where the logs go and stay.", envvar="LOG_LOCATION")] = None,
    detach: Annotated[bool, typer.Option("--detach", help="Return when the models are READY.")] = False,
    json: Json = False,
) -> None:
    """Start TorchServe with its own folders and free ports, until Ctrl-C."""
    with end_on_signals(), contextlib.ExitStack() as cleanup:
        with telling() as tell:
            server = Server.start(
                model_store=model_store,
                models=[*(models or []), *(archives or [])],
                name=name,
                config=config,
                log_dir=log_dir,
                on_progress=tell,
            )
            cleanup.callback(server.stop)
        with server.management() as management:
            served = models_of(management)
        if detach:
            server.detach()
        # From here on, being told to end is the normal end.
        with contextlib.suppress(KeyboardInterrupt):
            show_server(server, served, json=json)
            if not detach:
                serve_until_stopped(server)


def serve_until_stopped(server: Server) -> None:
    """Wait until TorchServe ends, as ``tsbatch stop`` from elsewhere makes it.

    Raises:
        ServerError: when it ends by itself.
    """
    while server.running():
        time.sleep(0.2)
    if server.exit_code not in ASKED_TO_END:
        raise ServerError(
            f"TorchServe ended unexpectedly (exit code {server.exit_code}): {error_in_console(server.log_dir)}"
        )


def stop(
    name: Name = DEFAULT_NAME,
    everything: Annotated[bool, typer.Option("--all", help="Stop every server of this user.")] = False,
    json: Json = False,
) -> None:
    """End a server and everything it started."""
    stopped = []
    for one in instances.names() if everything else [name]:
        found = instances.load(one)
        if found is None:
            instances.find(one)  # says which servers there are
            continue
        with progress(f"stopping {one}"):
            found.stop()
        stopped.append(one)
    if json:
        emit_json({"schema": SCHEMA, "stopped": stopped})
    else:
        say(f"stopped: {', '.join(stopped)}" if stopped else "no server is running")


def register_model(
    archive: Annotated[str, typer.Argument(help="A .mar file, its name in the model store, or a URL.")],
    model_name: Annotated[
        str | None, typer.Option(help="Name to serve it under; the archive's own when left out.")
    ] = None,
    initial_workers: Annotated[int | None, typer.Option(min=0, help="Workers to start.")] = None,
    batch_size: Annotated[int | None, typer.Option(min=1, help="Requests in a batch at most.")] = None,
    max_batch_delay: Annotated[int | None, typer.Option(min=0, help="Wait for a batch to fill, in ms.")] = None,
    response_timeout: Annotated[int | None, typer.Option(min=1, help="Time for a batch, in s.")] = None,
    startup_timeout: Annotated[int | None, typer.Option(min=1, help="Time for loading, in s.")] = None,
    default: Annotated[
        bool,
        typer.Option("--default", help="Make it the default version once it is READY; the one before goes on to run."),
    ] = False,
    name: Name = DEFAULT_NAME,
    server: ServerUrl = None,
    json: Json = False,
) -> None:
    """Register an archive, wait until it is READY, and say which settings differ from what was asked."""
    options = {
        "initial_workers": initial_workers,
        "batch_size": batch_size,
        "max_batch_delay": max_batch_delay,
        "response_timeout": response_timeout,
        "startup_timeout": startup_timeout,
    }
    requested = {setting: value for setting, value in options.items() if value is not None}
    if default and initial_workers == 0:
        raise UsageError("--default needs a worker: with --initial-workers 0 requests would find none")
    with end_on_signals(), target(name, server) as (management, instance), telling() as tell:
        done = registration.register(
            management,
            archive,
            instance=instance,
            model_name=model_name,
            requested=requested,
            default=default,
            on_progress=tell,
        )
    different = [str(difference) for difference in done.differences]
    if json:
        emit_json({"schema": SCHEMA, **summary(done.model), "differences": different, "replaced": done.replaced})
        return
    show_models([summary(done.model)])
    for line in different:
        say(f"warning: {line}")
    if done.replaced is not None:
        say(f"note: {_replaced(done, name, server)}")


def _replaced(done: registration.Registered, name: str, server: str | None) -> str:
    words = ["tsbatch", "unregister", done.model["modelName"], "--version", str(done.replaced)]
    if server is not None:
        words += ["--server", server]
    elif name != DEFAULT_NAME:
        words += ["--name", name]
    return f"version {done.replaced} still runs, without new requests; once it is idle: {shlex.join(words)}"


def models(
    model: Annotated[str | None, typer.Argument(help="Only this model.")] = None,
    name: Name = DEFAULT_NAME,
    server: ServerUrl = None,
    json: Json = False,
) -> None:
    """List the models of a server with their workers and settings."""
    with target(name, server) as (management, _):
        found = models_of(management) if model is None else [summary(one) for one in management.versions(model)]
    if json:
        emit_json({"schema": SCHEMA, "models": found})
    else:
        show_models(found)


def scale(
    model: Annotated[str, typer.Argument(help="The model.")],
    workers: Annotated[int, typer.Option("--workers", min=0, help="How many workers it shall have.")],
    version: Version = None,
    name: Name = DEFAULT_NAME,
    server: ServerUrl = None,
    json: Json = False,
) -> None:
    """Set a model's number of workers and wait until they are READY."""
    with end_on_signals(), target(name, server) as (management, _), telling() as tell:
        scaled = registration.scale(management, model, workers, version, on_progress=tell)
    if json:
        emit_json({"schema": SCHEMA, **summary(scaled)})
    else:
        show_models([summary(scaled)])


def unregister(
    model: Annotated[str, typer.Argument(help="The model.")],
    version: Version = None,
    name: Name = DEFAULT_NAME,
    server: ServerUrl = None,
    json: Json = False,
) -> None:
    """Unregister a model and end its workers."""
    with target(name, server) as (management, _):
        gone = management.describe(model, version)["modelVersion"]
        with progress(f"unregistering {model} {gone}"):
            management.unregister(model, version)
    if json:
        emit_json({"schema": SCHEMA, "name": model, "version": gone})
    else:
        say(f"unregistered: {model} {gone}")


@contextlib.contextmanager
def target(name: str, server: str | None) -> Iterator[tuple[Management, Instance | None]]:
    """The server a command is for: an instance of ours, or the address of another one.

    Raises:
        UsageError: when there is no such instance, the address is none, or TSBATCH_TOKEN cannot be a token.
    """
    if server is None:
        instance = reach(name)
        with instance.management() as management:
            yield management, instance
        return
    if not is_address(server):
        raise UsageError(f"--server is {server}; expected a management address like http://127.0.0.1:8081")
    token = os.environ.get("TSBATCH_TOKEN")
    if token and not (token.isascii() and token.isprintable()):
        raise UsageError("TSBATCH_TOKEN holds a line break or another character that no token has")
    with Management(server, FixedToken(token)) as management:
        yield management, None


def is_address(text: str) -> bool:
    """Whether ``text`` is an address of HTTP, its port included."""
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a bracket that is not closed, a port over 65535
        return False


def show_server(server: Server, served: Sequence[dict[str, Any]], *, json: bool) -> None:
    """Say where a server is and how to call it."""
    instance = server.instance
    if json:
        emit_json(describe_server(instance, served))
        return
    lines = {
        "inference": instance.inference_address,
        "management": instance.management_address,
        "metrics": instance.metrics_address,
        "gRPC": instance.grpc_inference_address,
        "logs": instance.log_dir,
    }
    print(f"{instance.name} is READY (process {instance.process.pid})")
    for what, where in lines.items():
        print(f"  {what:<11} {where}")
    if not instance.token_lifetime:
        print("  tokens      off: anyone on this machine can call it" + windows_reason())
    show_models(served)
    print(curl_line(instance, "/models", kind="management"))
    for model in served:
        print(curl_line(instance, f"/predictions/{model['name']}", data={"inputs": "a sentence"}))


def windows_reason() -> str:
    """Why there are no tokens on Windows; nothing elsewhere."""
    return " (TorchServe's key file does not work on Windows)" if os.name == "nt" else ""


def describe_server(instance: Instance, served: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What ``tsbatch serve --json`` prints."""
    return {
        "schema": SCHEMA,
        "name": instance.name,
        "inference_address": instance.inference_address,
        "management_address": instance.management_address,
        "metrics_address": instance.metrics_address,
        "grpc_inference_address": instance.grpc_inference_address,
        "inference_token": instance.tokens.token("inference"),
        "management_token": instance.tokens.token("management"),
        "log_dir": str(instance.log_dir),
        "pid": instance.process.pid,
        "models": list(served),
    }


def show_models(found: Sequence[dict[str, Any]]) -> None:
    """Models as a table."""
    table(COLUMNS, [[model[column] for column in COLUMNS] for model in found])
