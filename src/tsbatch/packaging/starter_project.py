"""``tsbatch new``: create a starter project with a working handler.

The templates are in ``templates/handler``. In files that end in ``.tmpl`` (so that no tool takes them for code of
tsbatch) ``$name`` and ``$class_name`` are replaced.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from string import Template

from tsbatch.errors import UsageError
from tsbatch.system.atomic_write import atomic_folder

TEMPLATES = Path(__file__).with_name("templates") / "handler"
SUFFIX = ".tmpl"
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_\-]*")


def new_handler(folder: Path) -> list[str]:
    """Create the starter project; it appears complete or not at all.

    Args:
        folder: the folder to create; its last part becomes the model's name.

    Returns:
        The files in it, relative to the folder.

    Raises:
        UsageError: it exists, its parent does not, or it is no valid name for a model.
    """
    name = folder.absolute().name
    if not NAME.fullmatch(name):
        raise UsageError(f"{name!r} cannot be a model's name; expected a letter, then letters, digits, '_' and '-'")
    if folder.exists():
        raise UsageError(f"{folder} exists; choose another name, or remove it")
    if not folder.absolute().parent.is_dir():
        raise UsageError(f"{folder}: there is no folder {folder.absolute().parent}")
    values = {"name": name, "class_name": class_name(name)}
    with atomic_folder(folder.absolute(), replace=False) as part:
        return [_write(template, part, values) for template in sorted(TEMPLATES.rglob("*")) if template.is_file()]


def class_name(name: str) -> str:
    """Return the handler class's name for a model: ``MyHandler`` for ``my_handler``, ``IrisHandler`` for ``iris``."""
    words = [word for word in re.split(r"[^A-Za-z0-9]+", name) if word]
    whole = "".join(word[:1].upper() + word[1:] for word in words)
    return whole if whole.endswith("Handler") else f"{whole}Handler"


def _write(template: Path, folder: Path, values: dict[str, str]) -> str:
    name = template.relative_to(TEMPLATES).as_posix().removesuffix(SUFFIX)
    target = folder / name
    target.parent.mkdir(parents=True, exist_ok=True)
    if template.suffix == SUFFIX:
        text = Template(template.read_text(encoding="utf-8")).substitute(values)
        target.write_text(text, encoding="utf-8", newline="\n")
    else:
        shutil.copyfile(template, target)
    return name
