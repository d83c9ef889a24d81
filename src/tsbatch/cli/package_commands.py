"""The verbs ``package`` and ``handler-path``."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from tsbatch.archive import writer
from tsbatch.archive.model_config import DEFAULTS, ModelConfig, read
from tsbatch.archive.planned_archive import Archive
from tsbatch.archive.writer import Format
from tsbatch.configuration.server_properties import METRICS_FILE
from tsbatch.errors import UsageError
from tsbatch.packaging.builder import Written, free_target, plan, write
from tsbatch.packaging.bundle import with_bundle
from tsbatch.packaging.engine_trials import BOUND, COLUMNS, Trial
from tsbatch.packaging.handler_files import entry_file
from tsbatch.packaging.safetensors_conversion import converted
from tsbatch.settings import Dtype
from tsbatch.system import console

PANEL = "Archive"
SCHEMA = 1
METRICS = "metrics"
"""What ``handler-path`` takes beside the tasks."""
MEGABYTE = 10**6
SHOWN = 8
"""Names of left-out files that are listed; --json has all."""


def _number(text: str, key: str, more: str = "") -> Any:
    return typer.Option(help=f"{text} (default {DEFAULTS[key]}{more})", show_default=False)


_Model = Annotated[
    Path | None,
    typer.Option(help="The model's folder; own handler: or a file, weights, TorchScript .pt, exported .pt2 or .onnx."),
]
_Task = Annotated[str | None, typer.Option(help="A ready-made task, text-embedding for example.")]
_Handler = Annotated[Path | None, typer.Option(help="Your own handler file instead of a task.")]
_ModelFile = Annotated[Path | None, typer.Option(help="The Python file with the class that the weights belong to.")]
_BatchSize = Annotated[int | None, _number("The most requests in a batch.", "batchSize")]
_MaxBatchDelay = Annotated[int | None, _number("Milliseconds to wait for a batch to fill.", "maxBatchDelay")]
_Workers = Annotated[int | None, _number("Processes that serve the model.", "minWorkers")]
_ResponseTimeout = Annotated[int | None, _number("Seconds a batch may take.", "responseTimeout")]
_StartupTimeout = Annotated[
    int | None, _number("Seconds a worker may take to load.", "startupTimeout", " + 30 a gigabyte")
]
_Threads = Annotated[str | None, typer.Option(help="Torch threads of one worker: auto, or a number.")]
_Engine = Annotated[str | None, typer.Option(help="What computes the model; auto tries all on this machine.")]
_Dtype = Annotated[Dtype | None, typer.Option(help="What numbers it computes with; with auto: only these.")]
_EngineBound = Annotated[float, typer.Option(help="Least agreement (cosine) with eager float32.", min=0.0, max=1.0)]
_Config = Annotated[Path | None, typer.Option(help="A model-config.yaml to start from.")]
_Aux = Annotated[list[str] | None, typer.Option(help="NAME=FILE, read once into self.aux; may be repeated.")]
_Labels = Annotated[
    Path | None, typer.Option(help="The classes' names (JSON or lines of text), for index_to_name.json and self.aux.")
]
_Extra = Annotated[list[Path] | None, typer.Option(help="A further file or folder; may be repeated.")]
_Requirements = Annotated[
    str | None,
    typer.Option(
        help="A requirements file for the server to install, or auto for this tsbatch. Without it nothing is installed:"
        " TorchServe would put a second torch beside its own. auto therefore also sets useVenv, under which it installs"
        " only what is missing. Read with install_py_dep_per_model=true alone."
    ),
]
_Bundle = Annotated[
    bool,
    typer.Option(
        "--bundle",
        help="Bring tsbatch's worker side and what it needs beyond torch, torchserve and transformers along, for this"
        " Python and platform: for servers where nobody can install.",
    ),
]
_AllowPickle = Annotated[
    bool,
    typer.Option(
        "--allow-pickle",
        help="Pack pickled weights as they are, though loading them can run code. Without it state dicts become"
        " safetensors, and other pickles are refused.",
    ),
]
_Format = Annotated[
    Format,
    typer.Option(
        "--format",
        help="mar (stored, not compressed), mar-compressed, tar.gz, or folder: a directory of the model store that"
        " TorchServe uses in place, for models too big to copy.",
    ),
]
_Link = Annotated[
    bool,
    typer.Option(
        "--link", help="With --format folder: hard links, not copies; a file changed at its source changes there too."
    ),
]
_Output = Annotated[Path, typer.Option("--output", "-o", help="The folder to write to.")]


def register(app: typer.Typer) -> None:
    """Adds the verbs to the command line."""
    app.command("package", rich_help_panel=PANEL)(package_command)
    app.command("handler-path", rich_help_panel=PANEL)(handler_path_command)


def handler_path_command(
    task: Annotated[
        str,
        typer.Argument(help=f"A ready-made task, text-embedding for example; or {METRICS}, for our metrics.yaml."),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Print the path of a ready-made handler file, for torch-model-archiver --handler; or of metrics.yaml."""
    path = METRICS_FILE if task == METRICS else entry_file(task)
    if as_json:
        console.emit_json({"schema": SCHEMA, "task": task, "path": str(path)})
    else:
        typer.echo(path)


def package_command(
    name: Annotated[str, typer.Option(help="The model's name, and the archive's.")],
    model: _Model = None,
    task: _Task = None,
    handler: _Handler = None,
    model_file: _ModelFile = None,
    version: Annotated[str, typer.Option(help="The model's version.")] = "1.0",
    batch_size: _BatchSize = None,
    max_batch_delay: _MaxBatchDelay = None,
    workers: _Workers = None,
    response_timeout: _ResponseTimeout = None,
    startup_timeout: _StartupTimeout = None,
    threads: _Threads = None,
    engine: _Engine = None,
    dtype: _Dtype = None,
    engine_bound: _EngineBound = BOUND,
    config: _Config = None,
    aux: _Aux = None,
    labels: _Labels = None,
    extra: _Extra = None,
    requirements: _Requirements = None,
    bundle: _Bundle = False,
    allow_pickle: _AllowPickle = False,
    form: _Format = "mar",
    link: _Link = False,
    output: _Output = Path("model_store"),
    force: Annotated[bool, typer.Option("--force", help="Replace an archive that is there.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Turn a model folder into an archive ready for dynamic batching."""
    if link and form != "folder":
        raise UsageError(f"--link goes with --format folder, not with {form}")
    asked = ModelConfig(
        workers=workers, batch_size=batch_size, max_batch_delay=max_batch_delay, response_timeout=response_timeout,
        startup_timeout=startup_timeout, threads=_number_of_threads(threads), base=read(config) if config else {},
    )  # fmt: skip
    planned = plan(
        name=name, version=version, model=model, task=task, handler=handler, model_file=model_file, config=asked,
        aux=_named_files(aux or ()), labels=labels, extra=extra or (), requirements=_requirements(requirements),
    )  # fmt: skip
    free_target(planned, output, form=form, force=force)  # before anything moves
    with (
        converted(planned, allow_pickle=allow_pickle, on_progress=console.say) as archive,
        _engine(archive, engine, dtype, engine_bound) as (archive, trials),
    ):
        whole = with_bundle(archive) if bundle else archive
        written = _write(whole, output, form, link=link, force=force)
        if as_json:
            console.emit_json({**_report(whole, written), "engines": [asdict(trial) for trial in trials]})
        else:
            _tell(whole, written, trials)


def _number_of_threads(value: str | None) -> int | Literal["auto"] | None:
    if value is None:
        return None
    if value == "auto":
        return "auto"
    if not value.isdecimal() or int(value) < 1:
        raise UsageError(f"--threads {value}: expected auto or a number from 1")
    return int(value)


def _named_files(pairs: Sequence[str]) -> dict[str, Path]:
    files: dict[str, Path] = {}
    for pair in pairs:
        name, equals, file = pair.partition("=")
        if not (name and equals and file):
            raise UsageError(f"--aux {pair}: expected NAME=FILE, as in --aux labels=labels.json")
        if name in files:
            raise UsageError(f"--aux {pair}: the name {name!r} is given twice")
        files[name] = Path(file)
    return files


def _requirements(value: str | None) -> Path | Literal["auto"] | None:
    return "auto" if value == "auto" else Path(value) if value else None


@contextmanager
def _engine(
    archive: Archive, engine: str | None, dtype: Dtype | None, bound: float
) -> Iterator[tuple[Archive, list[Trial]]]:
    """The archive with the engine that was asked for, here or in its YAML; as it is when none was."""
    own = archive.config["tsbatch"]
    if engine is None and dtype is None and own.get("engine", "eager") == "eager":
        yield archive, []
        return
    from tsbatch.packaging.engine_selection import with_engine

    with console.progress("trying engines") as step:
        name = engine or own.get("engine", "eager")

        def on_progress(candidate: str) -> None:
            step.describe(f"trying {candidate}")

        dtype = dtype or own.get("dtype")
        with with_engine(archive, name, dtype=dtype, bound=bound, on_progress=on_progress) as (chosen, trials):
            yield chosen, trials


def _write(archive: Archive, output: Path, form: Format, *, link: bool, force: bool) -> Written:
    name, size = writer.file_name(archive.name, form), archive.size / MEGABYTE
    with console.progress(f"packing {name} (MB)", total=round(size if form == "folder" else 2 * size)) as step:

        def moved(count: int) -> None:
            step.advance(count / MEGABYTE)

        return write(archive, output, form=form, link=link, force=force, on_bytes=moved)


def _report(archive: Archive, written: Written) -> dict[str, object]:
    return {
        "schema": SCHEMA,
        "archive": str(written.path.resolve()),
        "name": archive.name,
        "version": archive.version,
        "bytes": written.bytes,
        "sha256": written.sha256,
        "config": dict(archive.config),
        "left_out": list(archive.left_out),
        "notes": list(archive.notes),
    }


def _tell(archive: Archive, written: Written, trials: Sequence[Trial]) -> None:
    if trials:
        console.table(COLUMNS, [trial.cells() for trial in trials])
        chosen = archive.config["tsbatch"]
        typer.echo(f"engine {chosen['engine']}, dtype {chosen['dtype']}")
    for note in archive.notes:
        console.say(f"note: {note}")
    if archive.left_out:
        rest = len(archive.left_out) - SHOWN
        names = ", ".join(archive.left_out[:SHOWN]) + (f" and {rest} more" if rest > 0 else "")
        console.say(f"left out as not needed: {names}")
    numbers = ", ".join(f"{key} {archive.config[key]}" for key in DEFAULTS)
    typer.echo(f"{written.path}  {written.bytes / MEGABYTE:.1f} MB  {archive.name} {archive.version}")
    typer.echo(f"sha256 {written.sha256}")
    typer.echo(numbers)
    typer.echo(f"next: {_quoted(['tsbatch', 'serve', '--models', str(written.path)])}")


def _quoted(words: list[str]) -> str:
    return subprocess.list2cmdline(words) if sys.platform == "win32" else shlex.join(words)
