"""Build a ready-made task's archive with the stock torch-model-archiver instead of `tsbatch package`.

    python scripts/archive.py text-classification --model FOLDER --name NAME -o model_store

Four caveats if you type the command yourself:

* `--extra-files FOLDER` (one folder, without `/*`) keeps its subfolders. `FOLDER/*` moves the files of every subfolder
  to the top level, so one of `config.json` and `1_Pooling/config.json` silently overwrites the other.
* The archiver empties `<temporary folder>/<model name>`, whatever it contains; this script gives it a private folder.
* `--config-file` should set every number: an archive whose file lacks the timeouts fixes both at 120 s.
* The archiver splits `--extra-files` at commas and expands `*`, `?` and `[...]`, so a path must not contain them.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tsbatch.archive import model_folder
from tsbatch.archive.model_config import CONFIG_NAME, ModelConfig, complete, dump
from tsbatch.errors import UsageError
from tsbatch.packaging.handler_files import entry_file, entry_files
from tsbatch.packaging.model_files import model_files, serialized_name

SPECIAL = ",*?["
"""Characters that make torch-model-archiver treat one path as several."""


def main() -> int:
    """Run torch-model-archiver; return 0 on success, 2 for bad input, otherwise the archiver's exit code."""
    options = parse()
    try:
        requested = requested_config(options)
        files, _ = model_files(options.model, options.task)
        contents = files_options(options, files)
        config = complete(requested, task=options.task, weight_bytes=model_folder.weight_bytes(files))
        if any(character in str(options.model.resolve()) for character in SPECIAL):
            raise UsageError(
                f"{options.model}: torch-model-archiver does not accept a path that contains , * ? or [; rename it"
            )
    except (UsageError, OSError) as error:
        print(f"archive: {error}", file=sys.stderr)
        return 2
    options.output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as private:
        config_file = Path(private, CONFIG_NAME)
        config_file.write_bytes(dump(config))
        command = archiver(options, config_file, contents)
        print(shlex.join(command), file=sys.stderr)
        own_temp = dict.fromkeys(("TMPDIR", "TEMP", "TMP"), private)
        return subprocess.run(command, env={**os.environ, **own_temp}, check=False).returncode


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="Build a ready-made task's archive with torch-model-archiver.")
    parser.add_argument("task", choices=sorted(entry_files()), metavar="TASK", help=", ".join(sorted(entry_files())))
    parser.add_argument("--model", type=Path, required=True, help="the model folder, or a file if the task accepts one")
    parser.add_argument("--model-file", type=Path, help="the Python file that defines the model class of the weights")
    parser.add_argument("--name", required=True, help="the model's name; the archive is NAME.mar")
    parser.add_argument("--version", default="1.0", help="the model's version (default 1.0)")
    for option in ("--batch-size", "--max-batch-delay", "--workers", "--response-timeout", "--startup-timeout"):
        parser.add_argument(option, type=int, help="see tsbatch package")
    parser.add_argument("-o", "--output", type=Path, default=Path("model_store"), help="default: model_store")
    parser.add_argument("--force", action="store_true", help="replace an existing archive")
    return parser.parse_args()


def requested_config(options: argparse.Namespace) -> ModelConfig:
    """Collect the settings that the options set in model-config.yaml."""
    return ModelConfig(
        workers=options.workers,
        batch_size=options.batch_size,
        max_batch_delay=options.max_batch_delay,
        response_timeout=options.response_timeout,
        startup_timeout=options.startup_timeout,
    )


def files_options(options: argparse.Namespace, files: Mapping[str, Path]) -> list[str]:
    """List the archiver's options for the model: a whole folder, or a file and the files that belong to it."""
    words: list[str] = []
    serialized = serialized_name(options.model, files, options.model_file)
    if serialized:
        words += ["--serialized-file", str(files[serialized])]
    if options.model_file:
        words += ["--model-file", str(options.model_file)]
    whole = [options.model] if options.model.is_dir() else [path for name, path in files.items() if name != serialized]
    return [*words, "--extra-files", ",".join(str(path.resolve()) for path in whole)] if whole else words


def archiver(options: argparse.Namespace, config_file: Path, contents: list[str]) -> list[str]:
    """Build the command as a list, so that no shell quoting is needed, not even on Windows."""
    program = "torch-model-archiver"
    beside_python = shutil.which(program, path=str(Path(sys.executable).parent))
    return [
        beside_python or shutil.which(program) or program,
        *("--model-name", options.name),
        *("--version", options.version),
        *("--handler", str(entry_file(options.task))),
        *contents,
        *("--config-file", str(config_file)),
        *("--archive-format", "zip-store"),
        *("--export-path", str(options.output)),
        *(["--force"] if options.force else []),
    ]


if __name__ == "__main__":
    sys.exit(main())
