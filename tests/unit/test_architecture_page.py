"""docs/architecture.md and its pictures show the package as it is."""

from __future__ import annotations

import re

import pytest

from tests.unit.test_structure import NAMES, PACKAGE, imports

DOCS = PACKAGE.parents[1] / "docs"
PAGE = (DOCS / "architecture.md").read_text(encoding="utf-8")
FOLDERS = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").is_file()}
ROOM_OF = {"loop": "handler", "errors": "settings"}
"""Modules of the root that share a box."""


def boxes():
    """The arrows of the picture of the packages, those that only place the boxes left out."""
    text = (DOCS / "architecture-packages.dot").read_text(encoding="utf-8")
    for line in text[text.index("cli ->") :].splitlines():
        for statement in line.split(";"):
            if "->" in statement and "invis" not in statement:
                start, *rest = (re.findall(r"\w+", part) for part in statement.split("->"))
                for end in rest:
                    yield from ((a, b) for a in start for b in end)
                    start = end


def real_arrows():
    found = set()
    for name in NAMES:
        top = name.split(".")[1] if "." in name else ""
        for other in imports(NAMES[name]):
            below = other.split(".")[1] if "." in other else ""
            found.add((ROOM_OF.get(top, top), ROOM_OF.get(below, below)))
    return found


def test_the_picture_has_every_package():
    text = (DOCS / "architecture-packages.dot").read_text(encoding="utf-8")
    assert FOLDERS | {"handler", "settings"} == set(re.findall(r"^\s*(\w+)\s+\[label=", text, re.MULTILINE))


def test_the_arrows_are_imports():
    drawn = set(boxes())
    assert len(drawn) > 20
    assert drawn - real_arrows() == set()


@pytest.mark.parametrize("name", ["packages", "request"])
def test_the_svg_is_made_from_its_source(name):
    source = (DOCS / f"architecture-{name}.dot").read_text(encoding="utf-8")
    svg = (DOCS / f"architecture-{name}.svg").read_text(encoding="utf-8")
    words = {word for label in re.findall(r'label="([^"]+)"', source) for word in label.split(r"\n")}
    shown = {text.replace("&#45;", "-").replace("&#39;", "'") for text in re.findall(r">([^<>]+)</text>", svg)}
    hidden = {"items of all good requests"}
    assert words - hidden == shown


def test_the_table_has_every_package():
    rows = set(re.findall(r"^\| (`.*?) \|", PAGE, re.MULTILINE))
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} >= FOLDERS


def test_the_files_to_change_exist():
    files = re.findall(r"^\| .* \| `([\w/]+\.py)` \|$", PAGE, re.MULTILINE)
    assert len(files) >= 20
    assert [name for name in files if not (PACKAGE / name).is_file()] == []
