"""The verb ``reconfigure``."""

from __future__ import annotations

from typing import Annotated

import typer

from tsbatch.cli.server_commands import PANEL, Json, Name, ServerUrl, show_models, target
from tsbatch.errors import UsageError
from tsbatch.operations.reconfiguration import SETTINGS, Reconfigured, reconfigure
from tsbatch.serving.instance import DEFAULT_NAME
from tsbatch.serving.management_client import summary
from tsbatch.system.console import emit_json, say, telling
from tsbatch.system.signals import end_on_signals

SCHEMA = 1


def register(app: typer.Typer) -> None:
    """Add the verb to the command line."""
    app.command("reconfigure", rich_help_panel=PANEL)(reconfigure_command)


def reconfigure_command(
    model: Annotated[str, typer.Argument(help="The model.")],
    batch_size: Annotated[int | None, typer.Option(min=1, help="Requests in a batch at most.")] = None,
    max_batch_delay: Annotated[int | None, typer.Option(min=1, help="Wait for a batch to fill, in ms.")] = None,
    response_timeout: Annotated[int | None, typer.Option(min=1, help="Time for a batch, in s.")] = None,
    startup_timeout: Annotated[int | None, typer.Option(min=1, help="Time for loading, in s.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Go on when memory for two versions is missing.")] = False,
    name: Name = DEFAULT_NAME,
    server: ServerUrl = None,
    json: Json = False,
) -> None:
    """Change batch size, delay or time-outs of a running model without refusing a request.

    The same files are loaded again as a new version, which takes over; the old one is dropped when it is idle.
    """
    given = (batch_size, max_batch_delay, response_timeout, startup_timeout)
    changes = {setting: value for setting, value in zip(SETTINGS, given, strict=True) if value is not None}
    if not changes:
        options = ", ".join(f"--{setting.replace('_', '-')}" for setting in SETTINGS)
        raise UsageError(f"nothing to change; give one of {options}")
    with end_on_signals(), target(name, server) as (management, instance), telling() as tell:
        done = reconfigure(management, instance, model, changes, force=force, tell=tell)
    if json:
        emit_json({"schema": SCHEMA, **_report(done)})
        return
    show_models([summary(done.model)])
    for key, (before, now) in _changed(done).items():
        typer.echo(f"{key}: {before} -> {now}")
    for note in done.notes:
        say(f"note: {note}")


def _report(done: Reconfigured) -> dict[str, object]:
    changed = {key: {"before": before, "now": now} for key, (before, now) in _changed(done).items()}
    return {**summary(done.model), "old_version": done.before["modelVersion"], "changed": changed, "notes": done.notes}


def _changed(done: Reconfigured) -> dict[str, tuple[int, int]]:
    keys = SETTINGS.values()
    return {key: (done.before[key], done.model[key]) for key in keys if done.before[key] != done.model[key]}
