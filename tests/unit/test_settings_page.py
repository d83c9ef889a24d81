"""docs/settings.md says which settings there are, and what holds where nobody says otherwise."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from pydantic import BaseModel

from tsbatch.archive.model_config import DEFAULTS, STARTUP_SECONDS_PER_GIGABYTE
from tsbatch.settings import Settings

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "settings.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| `([\w.]+)` \| (?:`([^`]+)`|none) \| (.+) \|$", re.MULTILINE)
STANDS_FOR_ITSELF = {"nan"}
"""Keys with a word as a default that YAML reads as something else."""


def rows(heading):
    """Key: default in the table under a heading, and each key once."""
    table = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    found = [(key, default) for key, default, _ in ROW.findall(table)]
    assert len(dict(found)) == len(found) == table.count("\n| `")
    return dict(found)


def settings_of(section, prefix=""):
    """Key: default of every setting, as model-config.yaml names it."""
    for name, field in type(section).model_fields.items():
        key, value = prefix + (field.alias or name), getattr(section, name)
        if isinstance(value, BaseModel):
            yield from settings_of(value, f"{key}.")
        else:
            yield key, value


def test_the_page_names_every_setting_with_its_default():
    told = rows("The `tsbatch:` section")
    there = dict(settings_of(Settings()))
    assert list(told) == list(there)
    read = {key: text if key in STANDS_FOR_ITSELF else yaml.safe_load(text or "~") for key, text in told.items()}
    assert read == there


def test_and_what_package_gives_torchserve_s_keys():
    told = rows("TorchServe keys")
    assert {key: int(text) for key, text in told.items()} == DEFAULTS
    assert f"grows by {STARTUP_SECONDS_PER_GIGABYTE} for each GB" in PAGE


def test_its_example_is_one():
    (example,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    Settings.model_validate(yaml.safe_load(example)["tsbatch"])


@pytest.mark.parametrize("page", ["README.md", "docs/package.md"])
def test_it_is_found(page):
    assert "settings.md)" in (Path(__file__).resolve().parents[2] / page).read_text(encoding="utf-8")
