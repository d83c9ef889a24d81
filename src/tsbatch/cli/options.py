"""What a verb asks of its options beyond what typer checks: numbers that are some, and options that count."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

import typer

from tsbatch.errors import UsageError


def given(context: typer.Context) -> dict[str, str]:
    """The parameters that stand on the command line, by name, as they are written there: ``--warm-up``, ``MODEL``."""
    found = {}
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        # By its name, since typer brings click along in some versions and imports it in others.
        if source is not None and source.name == "COMMANDLINE":
            word = parameter.opts[0]
            found[parameter.name or word] = word if word.startswith("-") else word.upper()
    return found


def refuse(context: typer.Context, names: Collection[str], why: str) -> None:
    """Refuse parameters that somebody gave and that would be ignored.

    Args:
        context: the verb's.
        names: parameters that mean nothing beside the others.
        why: in a sentence.

    Raises:
        UsageError: one of them was given.
    """
    if useless := [word for name, word in given(context).items() if name in names]:
        raise UsageError(f"{', '.join(useless)} would be ignored: {why}")


def check_positive(options: Mapping[str, float | None]) -> None:
    """Refuse what is no positive number; None is an option that nobody gave.

    Raises:
        UsageError: one of them is none.
    """
    for option, value in options.items():
        if value is not None and not 0 < value < math.inf:
            raise UsageError(f"{option} is {value:g}; expected a positive number")


def check_finite(options: Mapping[str, float | None]) -> None:
    """Refuse what is no number, or infinite, which typer's own limits let pass.

    Raises:
        UsageError: one of them is.
    """
    for option, value in options.items():
        if value is not None and not math.isfinite(value):
            raise UsageError(f"{option} is {value:g}; expected a number")
