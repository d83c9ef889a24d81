"""The verb ``new``."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from tsbatch.packaging.starter_project import class_name, new_handler
from tsbatch.system.console import emit_json, say

PANEL = "Develop"
SCHEMA = 1


def register(app: typer.Typer) -> None:
    """Adds the verb to the command line."""
    app.command("new", rich_help_panel=PANEL)(new_command)


def new_command(
    folder: Annotated[Path, typer.Argument(help="The folder to make; its name becomes the model's.")],
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Make a starter folder for a handler of your own, with tests that run and a README that says what to do next."""
    files = new_handler(folder)
    name = folder.absolute().name
    if json:
        emit_json(
            {"schema": SCHEMA, "folder": folder.absolute(), "name": name, "class": class_name(name), "files": files}
        )
        return
    print("\n".join([f"{folder}/", *(f"  {file}" for file in files)]))
    if find_spec("pytest") is None:
        say("note: its tests need pytest, which is not installed here: pip install pytest")
    print(
        f"next: cd {folder} && pytest && tsbatch package --name {name} --handler handler.py --model model && "
        f"tsbatch check model_store/{name}.mar --data samples.jsonl"
    )
