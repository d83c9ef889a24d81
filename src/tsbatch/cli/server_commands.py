"""The commands that manage a server and its models, from ``serve`` to ``reconfigure``."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer
from typer import Argument, Option

from tsbatch.cli import options
from tsbatch.errors import ServerError, UsageError
from tsbatch.operations import registration
from tsbatch.operations.connection import reach
from tsbatch.operations.curl_commands import curl_line
from tsbatch.operations.reconfiguration import SETTINGS, reconfigure
from tsbatch.serving import instance as instances
from tsbatch.serving.instance import DEFAULT_NAME, Instance
from tsbatch.serving.java_command import error_in_console
from tsbatch.serving.management_client import Management, models_of, summary
from tsbatch.serving.server import Server
from tsbatch.serving.tokens import FixedToken
from tsbatch.system.console import emit_json, progress, say, table, telling
from tsbatch.system.polling import wait_until
from tsbatch.system.signals import end_on_signals

SCHEMA = 1
STOPPED_CODES = {-signal.SIGTERM, 128 + signal.SIGTERM, int(signal.SIGTERM)}
"""Java's exit codes after ``tsbatch stop``: from Python, from Java itself, and on Windows."""

COLUMNS = ("name", "version", "workers", "batch_size", "max_batch_delay", "status")


def serve_command(
    archives: Annotated[list[str] | None, Argument(help="Additional archives for --models.")] = None,
    models: Annotated[
        list[str] | None,
        Option(
            "--models",
            help="Archive to load, as FILE or NAME=FILE, or 'all' for the whole model store; can be repeated.",
        ),
    ] = None,
    model_store: Annotated[Path | None, Option(help="Model store; a private folder if omitted.")] = None,
    name: options.Name = DEFAULT_NAME,
    config: Annotated[
        Path | None, Option(help="A config.properties file; its settings take precedence.", envvar="TS_CONFIG_FILE")
    ] = None,
    log_dir: Annotated[
        Path | None, Option(help="Folder for the logs, which are kept when the server stops.", envvar="LOG_LOCATION")
    ] = None,
    detach: Annotated[
        bool, Option("--detach", help="Return when the models are READY, and leave the server running.")
    ] = False,
    json: options.Json = False,
) -> None:
    """Start TorchServe with private folders and free ports, and run it until Ctrl-C."""
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
        # From here on a signal is the normal way to end.
        with contextlib.suppress(KeyboardInterrupt):
            show_server(server, served, json=json)
            if not detach:
                serve_until_stopped(server)


def serve_until_stopped(server: Server) -> None:
    """Wait until TorchServe is stopped, by ``tsbatch stop`` for example.

    Raises:
        ServerError: it ended unexpectedly.
    """
    wait_until(lambda: not server.running(), interval=0.2)
    if server.exit_code not in STOPPED_CODES:
        raise ServerError(
            f"TorchServe ended unexpectedly (exit code {server.exit_code}): {error_in_console(server.log_dir)}"
        )


def stop_command(
    name: options.Name = DEFAULT_NAME,
    everything: Annotated[bool, Option("--all", help="Stop all servers of this user.")] = False,
    json: options.Json = False,
) -> None:
    """Stop a server and all processes it started."""
    stopped = []
    for one in instances.names() if everything else [name]:
        found = instances.load(one)
        if found is None:
            instances.find(one)  # raises the error that lists the servers
            continue
        with progress(f"stopping {one}"):
            found.stop()
        stopped.append(one)
    if json:
        emit_json({"schema": SCHEMA, "stopped": stopped})
    else:
        say(f"stopped: {', '.join(stopped)}" if stopped else "no server is running")


def register_command(
    archive: Annotated[str, Argument(help="A .mar file, its name in the model store, or a URL.")],
    model_name: Annotated[
        str | None, Option(help="Name to serve the model under; the archive's own if omitted.")
    ] = None,
    initial_workers: Annotated[int | None, Option(min=0, help="Number of workers to start.")] = None,
    batch_size: options.BatchSize = None,
    max_batch_delay: Annotated[int | None, Option(min=0, help=f"{options.BATCH_DELAY}.")] = None,
    response_timeout: options.ResponseTimeout = None,
    startup_timeout: options.StartupTimeout = None,
    default: Annotated[
        bool, Option("--default", help="Make it the default version when it is READY; the old one keeps running.")
    ] = False,
    name: options.Name = DEFAULT_NAME,
    server: options.ServerUrl = None,
    json: options.Json = False,
) -> None:
    """Register an archive, wait until it is READY, and report settings that differ from the requested ones."""
    options = {
        "initial_workers": initial_workers,
        "batch_size": batch_size,
        "max_batch_delay": max_batch_delay,
        "response_timeout": response_timeout,
        "startup_timeout": startup_timeout,
    }
    requested = {setting: value for setting, value in options.items() if value is not None}
    if default and initial_workers == 0:
        raise UsageError("--default needs a worker, but --initial-workers is 0")
    with end_on_signals(), connect(name, server) as (management, instance), telling() as tell:
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
    return f"version {done.replaced} is still running, without new requests; when it is idle, run: {shlex.join(words)}"


def models_command(
    model: options.OnlyModel = None,
    name: options.Name = DEFAULT_NAME,
    server: options.ServerUrl = None,
    json: options.Json = False,
) -> None:
    """List a server's models with their workers and settings."""
    with connect(name, server) as (management, _):
        found = models_of(management) if model is None else [summary(one) for one in management.versions(model)]
    if json:
        emit_json({"schema": SCHEMA, "models": found})
    else:
        show_models(found)


def scale_command(
    model: options.Model,
    workers: Annotated[int, Option("--workers", min=0, help="New number of workers.")],
    version: options.Version = None,
    name: options.Name = DEFAULT_NAME,
    server: options.ServerUrl = None,
    json: options.Json = False,
) -> None:
    """Set a model's number of workers and wait until they are READY."""
    with end_on_signals(), connect(name, server) as (management, _), telling() as tell:
        scaled = registration.scale(management, model, workers, version, on_progress=tell)
    if json:
        emit_json({"schema": SCHEMA, **summary(scaled)})
    else:
        show_models([summary(scaled)])


def unregister_command(
    model: options.Model,
    version: options.Version = None,
    name: options.Name = DEFAULT_NAME,
    server: options.ServerUrl = None,
    json: options.Json = False,
) -> None:
    """Unregister a model and stop its workers."""
    with connect(name, server) as (management, _):
        gone = management.describe(model, version)["modelVersion"]
        with progress(f"unregistering {model} {gone}"):
            management.unregister(model, version)
    if json:
        emit_json({"schema": SCHEMA, "name": model, "version": gone})
    else:
        say(f"unregistered: {model} {gone}")


def reconfigure_command(
    model: options.Model,
    batch_size: options.BatchSize = None,
    max_batch_delay: Annotated[int | None, Option(min=1, help=f"{options.BATCH_DELAY}.")] = None,
    response_timeout: options.ResponseTimeout = None,
    startup_timeout: options.StartupTimeout = None,
    force: Annotated[
        bool, Option("--force", help="Continue even if there seems to be too little memory for two versions.")
    ] = False,
    name: options.Name = DEFAULT_NAME,
    server: options.ServerUrl = None,
    json: options.Json = False,
) -> None:
    """Change the batch size, delay or timeouts of a running model without rejecting a request.

    This loads the same files as a new version, switches to it, and unregisters the old version when it is idle.
    """
    given = (batch_size, max_batch_delay, response_timeout, startup_timeout)
    changes = {setting: value for setting, value in zip(SETTINGS, given, strict=True) if value is not None}
    if not changes:
        options = ", ".join(f"--{setting.replace('_', '-')}" for setting in SETTINGS)
        raise UsageError(f"nothing to change; give one of {options}")
    with end_on_signals(), connect(name, server) as (management, instance), telling() as tell:
        done = reconfigure(management, instance, model, changes, force=force, tell=tell)
    now, before = done.model, done.before
    changed = {key: (before[key], now[key]) for key in SETTINGS.values() if before[key] != now[key]}
    if json:
        about: dict[str, Any] = {"schema": SCHEMA, **summary(now), "old_version": before["modelVersion"]}
        about["changed"] = {key: {"before": old, "now": new} for key, (old, new) in changed.items()}
        emit_json({**about, "notes": done.notes})
        return
    show_models([summary(now)])
    for key, (old, new) in changed.items():
        typer.echo(f"{key}: {old} -> {new}")
    for note in done.notes:
        say(f"note: {note}")


@contextlib.contextmanager
def connect(name: str, server: str | None) -> Iterator[tuple[Management, Instance | None]]:
    """Connect to the server of a command: an instance by its name, or another server by its address.

    Raises:
        UsageError: there is no such instance, or the address or TSBATCH_TOKEN is not valid.
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
        raise UsageError("TSBATCH_TOKEN contains a line break or another character that is not valid in a token")
    with Management(server, FixedToken(token)) as management:
        yield management, None


def is_address(text: str) -> bool:
    """Whether ``text`` is a valid HTTP address, including its port."""
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # an unclosed bracket, or a port above 65535
        return False


def show_server(server: Server, served: Sequence[dict[str, Any]], *, json: bool) -> None:
    """Print a server's addresses and how to call it."""
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
    for label, value in lines.items():
        print(f"  {label:<11} {value}")
    if not instance.token_lifetime:
        windows = " (TorchServe's key file does not work on Windows)" if os.name == "nt" else ""
        print(f"  tokens      off: anyone on this machine can call it{windows}")
    show_models(served)
    print(curl_line(instance, "/models", kind="management"))
    for model in served:
        print(curl_line(instance, f"/predictions/{model['name']}", data={"inputs": "a sentence"}))


def describe_server(instance: Instance, served: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the object that ``tsbatch serve --json`` prints."""
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
    """Print models as a table."""
    table(COLUMNS, [[model[column] for column in COLUMNS] for model in found])


SERVER_COMMANDS = (
    serve_command,
    stop_command,
    register_command,
    models_command,
    scale_command,
    unregister_command,
    reconfigure_command,
)
