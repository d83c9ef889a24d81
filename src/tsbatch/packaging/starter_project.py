"""``tsbatch new``: a folder with a handler that runs, to start from.

The files lie in ``templates/handler``; those that end in ``.tmpl`` (so that no tool takes them for code of ours) have
``$name`` and ``$class_name`` filled in.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from pathlib import Path
from string import Template

from tsbatch.errors import UsageError

TEMPLATES = Path(__file__).with_name("templates") / "handler"
ENDING = ".tmpl"
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_\-]*")


def new_handler(folder: Path) -> list[str]:
    """Write the starter folder; it appears whole or not at all.

    Args:
        folder: where; its last part becomes the model's name.

    Returns:
        The files in it, by their paths inside.

    Raises:
        UsageError: something is there already, or the name cannot be one.
    """
    name = folder.absolute().name
    if not NAME.fullmatch(name):
        raise UsageError(f"{name!r} cannot name a model; expected a letter, then letters, digits, '_' and '-'")
    if folder.exists():
        raise UsageError(f"{folder} exists; choose another name, or remove it")
    if not folder.absolute().parent.is_dir():
        raise UsageError(f"{folder}: there is no folder {folder.absolute().parent}")
    fill = {"name": name, "class_name": class_name(name)}
    room = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=folder.absolute().parent))
    try:
        made = room / name  # mkdtemp's own folder is for its user alone
        files = [_write(template, made, fill) for template in sorted(TEMPLATES.rglob("*")) if template.is_file()]
        made.rename(folder)
    finally:
        shutil.rmtree(room, ignore_errors=True)
    return files


def class_name(name: str) -> str:
    """The name of a handler's class for a model: ``my_handler`` becomes ``MyHandler``, ``iris`` ``IrisHandler``."""
    words = [word for word in re.split(r"[^A-Za-z0-9]+", name) if word]
    whole = "".join(word[:1].upper() + word[1:] for word in words)
    return whole if whole.endswith("Handler") else f"{whole}Handler"


def _write(template: Path, folder: Path, fill: dict[str, str]) -> str:
    inside = template.relative_to(TEMPLATES).as_posix().removesuffix(ENDING)
    target = folder / inside
    target.parent.mkdir(parents=True, exist_ok=True)
    if template.suffix == ENDING:
        text = Template(template.read_text(encoding="utf-8")).substitute(fill)
        target.write_text(text, encoding="utf-8", newline="\n")
    else:
        shutil.copyfile(template, target)
    return inside
