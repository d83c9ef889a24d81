"""The commands ``new``, ``package`` and ``handler-path``."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer import Argument, Option

from tsbatch.archive import writer
from tsbatch.archive.model_config import DEFAULTS, ModelConfig, read
from tsbatch.archive.planned_archive import Archive
from tsbatch.archive.writer import Format
from tsbatch.cli import options
from tsbatch.configuration.server_properties import METRICS_FILE
from tsbatch.errors import UsageError
from tsbatch.packaging.builder import Written, free_target, plan, write
from tsbatch.packaging.bundle import with_bundle
from tsbatch.packaging.engine_trials import BOUND, COLUMNS, Trial
from tsbatch.packaging.handler_files import entry_file
from tsbatch.packaging.safetensors_conversion import converted
from tsbatch.packaging.starter_project import class_name, new_handler
from tsbatch.settings import Dtype
from tsbatch.system import console

SCHEMA = 1
METRICS = "metrics"
"""Argument of ``handler-path`` besides the tasks."""
MEGABYTE = 10**6
MAX_SKIPPED_SHOWN = 8
"""Names of skipped files to print; --json has all."""


def _setting(text: str, key: str, more: str = "") -> Any:
    return Option(help=f"{text} (default: {DEFAULTS[key]}{more}).", show_default=False)


_Model = Annotated[
    Path | None,
    Option(help="Model folder; with --handler also a single file (weights, TorchScript, .pt2 or .onnx)."),
]
_ModelFile = Annotated[Path | None, Option(help="Python file with the model class that the weights belong to.")]
_StartupTimeout = Annotated[int | None, _setting(options.STARTUP_TIMEOUT, "startupTimeout", " + 30 per gigabyte")]
_Engine = Annotated[str | None, Option(help="Engine that runs the model; auto tries all engines on this machine.")]
_Dtype = Annotated[Dtype | None, Option(help="Data type of the computation; --engine auto then tries only this one.")]
_EngineBound = Annotated[
    float, Option(help="Minimum agreement with eager float32 (cosine similarity).", min=0.0, max=1.0)
]
_Aux = Annotated[list[str] | None, Option(help="Auxiliary file for self.aux, as NAME=FILE; can be repeated.")]
_Labels = Annotated[
    Path | None, Option(help="File with the class names (JSON or lines of text), for index_to_name.json and self.aux.")
]
_Requirements = Annotated[
    str | None,
    Option(
        help="Requirements file for the server to install, or auto to install this version of tsbatch. By default"
        " nothing is installed, because TorchServe would install a second copy of torch. auto therefore also sets"
        " useVenv, which installs only what is missing. Needs install_py_dep_per_model=true on the server."
    ),
]
_Bundle = Annotated[
    bool,
    Option(
        "--bundle",
        help="Include tsbatch's worker code and its dependencies except torch, torchserve and transformers, for this"
        " Python and platform: for servers where you cannot install packages.",
    ),
]
_AllowPickle = Annotated[
    bool,
    Option(
        "--allow-pickle",
        help="Include pickled weights unchanged, although loading them can run code. By default state dicts are"
        " converted to safetensors, and other pickles are rejected.",
    ),
]
_Format = Annotated[
    Format,
    Option(
        "--format",
        help="mar (uncompressed), mar-compressed, tar.gz, or folder: a folder in the model store that TorchServe uses"
        " in place, for models too large to copy.",
    ),
]
_Link = Annotated[
    bool,
    Option(
        "--link",
        help="With --format folder: use hard links, not copies; changes to a source file then change the model too.",
    ),
]


def new_command(
    folder: Annotated[Path, Argument(help="Folder to create; its name becomes the model's name.")],
    json: options.Json = False,
) -> None:
    """Create a starter project for your own handler, with passing tests and a README with the next steps."""
    files = new_handler(folder)
    name = folder.absolute().name
    if json:
        about = {"folder": folder.absolute(), "name": name, "class": class_name(name), "files": files}
        console.emit_json({"schema": SCHEMA, **about})
        return
    print("\n".join([f"{folder}/", *(f"  {file}" for file in files)]))
    if find_spec("pytest") is None:
        console.say("note: the tests need pytest, which is not installed: pip install pytest")
    print(
        f"next: cd {folder} && pytest && tsbatch package --name {name} --handler handler.py --model model && "
        f"tsbatch check model_store/{name}.mar --data samples.jsonl"
    )


def handler_path_command(
    task: Annotated[
        str, Argument(help=f"Ready-made task, such as text-embedding, or {METRICS} for tsbatch's metrics.yaml.")
    ],
    as_json: options.Json = False,
) -> None:
    """Print the path of a ready-made handler file for torch-model-archiver --handler, or of metrics.yaml."""
    path = METRICS_FILE if task == METRICS else entry_file(task)
    if as_json:
        console.emit_json({"schema": SCHEMA, "task": task, "path": str(path)})
    else:
        typer.echo(path)


def package_command(
    name: Annotated[str, Option(help="Name of the model and its archive.")],
    model: _Model = None,
    task: Annotated[str | None, Option(help="Ready-made task, such as text-embedding.")] = None,
    handler: Annotated[Path | None, Option(help="Your own handler file, instead of a task.")] = None,
    model_file: _ModelFile = None,
    version: Annotated[str, Option(help="Version of the model.")] = "1.0",
    batch_size: Annotated[int | None, _setting(options.BATCH_SIZE, "batchSize")] = None,
    max_batch_delay: Annotated[int | None, _setting(options.BATCH_DELAY, "maxBatchDelay")] = None,
    workers: Annotated[int | None, _setting("Number of worker processes", "minWorkers")] = None,
    response_timeout: Annotated[int | None, _setting(options.RESPONSE_TIMEOUT, "responseTimeout")] = None,
    startup_timeout: _StartupTimeout = None,
    threads: Annotated[str | None, Option(help="PyTorch threads of each worker: auto, or a number.")] = None,
    engine: _Engine = None,
    dtype: _Dtype = None,
    engine_bound: _EngineBound = BOUND,
    config: Annotated[Path | None, Option(help="model-config.yaml to start from.")] = None,
    aux: _Aux = None,
    labels: _Labels = None,
    extra: Annotated[list[Path] | None, Option(help="Additional file or folder to include; can be repeated.")] = None,
    requirements: _Requirements = None,
    bundle: _Bundle = False,
    allow_pickle: _AllowPickle = False,
    form: _Format = "mar",
    link: _Link = False,
    output: Annotated[Path, Option("--output", "-o", help="Folder for the archive.")] = Path("model_store"),
    force: Annotated[bool, Option("--force", help="Replace an existing archive.")] = False,
    as_json: options.Json = False,
) -> None:
    """Package a model folder as an archive for dynamic batching."""
    if link and form != "folder":
        raise UsageError(f"--link needs --format folder, but the format is {form}")
    settings = ModelConfig(
        workers=workers, batch_size=batch_size, max_batch_delay=max_batch_delay, response_timeout=response_timeout,
        startup_timeout=startup_timeout, threads=_number_of_threads(threads), base=read(config) if config else {},
    )  # fmt: skip
    planned = plan(
        name=name, version=version, model=model, task=task, handler=handler, model_file=model_file, config=settings,
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
            _show(whole, written, trials)


def _number_of_threads(value: str | None) -> int | Literal["auto"] | None:
    if value is None:
        return None
    if value == "auto":
        return "auto"
    if not value.isdecimal() or int(value) < 1:
        raise UsageError(f"--threads {value}: expected auto or a positive number")
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
    """The archive with the engine that the options or its YAML select; unchanged if they select none."""
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


def _show(archive: Archive, written: Written, trials: Sequence[Trial]) -> None:
    if trials:
        console.table(COLUMNS, [trial.cells() for trial in trials])
        chosen = archive.config["tsbatch"]
        typer.echo(f"engine {chosen['engine']}, dtype {chosen['dtype']}")
    for note in archive.notes:
        console.say(f"note: {note}")
    if archive.left_out:
        rest = len(archive.left_out) - MAX_SKIPPED_SHOWN
        names = ", ".join(archive.left_out[:MAX_SKIPPED_SHOWN]) + (f" and {rest} more" if rest > 0 else "")
        console.say(f"skipped (not needed for serving): {names}")
    numbers = ", ".join(f"{key} {archive.config[key]}" for key in DEFAULTS)
    typer.echo(f"{written.path}  {written.bytes / MEGABYTE:.1f} MB  {archive.name} {archive.version}")
    typer.echo(f"sha256 {written.sha256}")
    typer.echo(numbers)
    typer.echo(f"next: {_quoted(['tsbatch', 'serve', '--models', str(written.path)])}")


def _quoted(words: list[str]) -> str:
    return subprocess.list2cmdline(words) if sys.platform == "win32" else shlex.join(words)
