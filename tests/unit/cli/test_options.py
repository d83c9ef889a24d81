from __future__ import annotations

from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from tsbatch.cli.options import check_finite, check_positive, given, refuse
from tsbatch.errors import UsageError

NAN, INF = float("nan"), float("inf")


def called(*words):
    app, found = typer.Typer(), []

    @app.command()
    def command(
        context: typer.Context,
        model: Annotated[str | None, typer.Argument()] = None,
        max_size: Annotated[int, typer.Option()] = 3,
        output: Annotated[str | None, typer.Option("--output", "-o")] = None,
        fast: Annotated[bool, typer.Option("--fast")] = False,
    ) -> None:
        found.append(given(context))
        refuse(context, ["model", "max_size"], "--fast has no use for them") if fast else None

    result = CliRunner().invoke(app, words)
    return found[0], result.exception


def test_what_stands_on_the_command_line_is_told_as_it_is_written_there():
    assert called() == ({}, None)
    # Also when it says what would be so anyway.
    told = {"model": "MODEL", "max_size": "--max-size", "output": "--output"}
    assert called("m", "--max-size", "3", "-o", "x") == (told, None)


def test_what_would_be_ignored_is_refused():
    assert called("--fast", "--output", "x")[1] is None
    error = called("--fast", "m", "--max-size", "3")[1]
    assert isinstance(error, UsageError)
    assert str(error) == "MODEL, --max-size would be ignored: --fast has no use for them"


def test_numbers():
    check_positive({"--a": 0.1, "--b": None})
    check_finite({"--a": 0.0, "--b": None})
    for value, said in ((0.0, "--a is 0;"), (-1.0, "--a is -1;"), (NAN, "--a is nan;"), (INF, "--a is inf;")):
        with pytest.raises(UsageError, match=said):
            check_positive({"--a": value})
    for value in (NAN, INF):
        with pytest.raises(UsageError, match=r"--a is (nan|inf); expected a number"):
            check_finite({"--a": value})
