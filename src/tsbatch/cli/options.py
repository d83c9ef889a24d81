"""Options that several commands share, and checks beyond those of typer."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, Literal

import typer
from typer import Argument, Option

from tsbatch.errors import UsageError

CLIENTS = 8

ArrivalPattern = Literal["poisson", "uniform", "bursts"]

BATCH_SIZE = "Maximum number of requests in a batch"
BATCH_DELAY = "Maximum time to wait for a batch to fill, in ms"
RESPONSE_TIMEOUT = "Time limit for a batch, in seconds"
STARTUP_TIMEOUT = "Time limit for loading the model, in seconds"


def _check_report(path: Path | None) -> Path | None:
    if path:
        from tsbatch.report.html_page import check_path

        check_path(path)
    return path


Json = Annotated[bool, Option("--json", help="Print the result as one JSON object.")]
RawJson = Annotated[bool, Option("--json", help="Print one JSON object, including the raw samples.")]
Html = Annotated[Path | None, Option(help="Write an HTML report to this file.", metavar="FILE", callback=_check_report)]
ArchivePath = Annotated[Path, Argument(help="Archive, or a folder with an archive's files.")]
Name = Annotated[str, Option("--name", help="Name of the server instance.")]
ServerUrl = Annotated[
    str | None,
    Option(
        "--server",
        help="Management address of a server that tsbatch did not start; its token is read from TSBATCH_TOKEN.",
    ),
]
Model = Annotated[str, Argument(help="Name of the model.")]
OnlyModel = Annotated[str | None, Argument(help="Show only this model.")]
Version = Annotated[str | None, Option("--version", help="Version of the model; the default one if omitted.")]

BatchSize = Annotated[int | None, Option(min=1, help=f"{BATCH_SIZE}.")]
ResponseTimeout = Annotated[int | None, Option(min=1, help=f"{RESPONSE_TIMEOUT}.")]
StartupTimeout = Annotated[int | None, Option(min=1, help=f"{STARTUP_TIMEOUT}.")]

Concurrency = Annotated[int | None, Option(min=1, help=f"Number of clients in a closed loop (default: {CLIENTS}).")]
Rate = Annotated[float | None, Option(help="Requests per second in an open loop.")]
ContentType = Annotated[str | None, Option(help="Content type of the requests; by default that of the data.")]
GoodputLimit = Annotated[float | None, Option(help="Maximum latency of a response that counts as goodput, in ms.")]
Seed = Annotated[int, Option(min=0, help="Seed for the random numbers.")]


def given(context: typer.Context) -> dict[str, str]:
    """Return the parameters on the command line by name, as they are written there: ``--warm-up``, ``MODEL``."""
    found = {}
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        # Compared by name, because some versions of typer have their own copy of click.
        if source is not None and source.name == "COMMANDLINE":
            word = parameter.opts[0]
            found[parameter.name or word] = word if word.startswith("-") else word.upper()
    return found


def refuse(context: typer.Context, names: Collection[str], why: str) -> None:
    """Reject parameters that would be ignored.

    Args:
        context: the command's.
        names: parameters that have no effect together with the others.
        why: the reason, in a sentence.

    Raises:
        UsageError: one of them is on the command line.
    """
    if useless := [word for name, word in given(context).items() if name in names]:
        raise UsageError(f"{', '.join(useless)} would be ignored: {why}")


def check_positive(options: Mapping[str, float | None]) -> None:
    """Reject a number that is not positive; None stands for an option that was not given.

    Raises:
        UsageError: a number is zero, negative, infinite or NaN.
    """
    for option, value in options.items():
        if value is not None and not 0 < value < math.inf:
            raise UsageError(f"{option} is {value:g}; expected a positive number")


def check_finite(options: Mapping[str, float | None]) -> None:
    """Reject infinity and NaN, which pass typer's own limits.

    Raises:
        UsageError: a number is infinite or NaN.
    """
    for option, value in options.items():
        if value is not None and not math.isfinite(value):
            raise UsageError(f"{option} is {value:g}; expected a number")


def positive_numbers(option: str, text: str, example: str) -> list[float]:
    """Read positive numbers separated by commas.

    Raises:
        UsageError: the text is anything else.
    """
    try:
        numbers = [float(word) for word in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or not all(0 < number < math.inf for number in numbers):
        raise UsageError(f"{option} is {text!r}; expected positive numbers like {example}")
    return numbers
