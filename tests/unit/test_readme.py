"""The pages are true: their Python runs, their commands exist, their links lead somewhere."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest
import typer

from tsbatch.cli.program import build_app

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
TASK_PAGES = [page for page in PAGES if page.parent == ROOT / "docs" / "tasks" and page.name != "README.md"]
BLOCK = re.compile(r"(?:<!-- file: (?P<file>\S+) -->\n)?```(?P<language>\w+)\n(?P<text>.*?)```", re.DOTALL)
SHELL = {"sh", "bash", "console", "shell"}
ENDS = {"|", "||", "&&", ";", ">", ">>", "<", "&"}


def blocks(page, languages):
    for match in BLOCK.finditer(page.read_text(encoding="utf-8")):
        if match["language"] in languages:
            yield match


def shell_lines():
    for page in PAGES:
        for block in blocks(page, SHELL):
            for line in block["text"].replace("\\\n", " ").splitlines():
                yield pytest.param(line.removeprefix("$ "), id=f"{page.name}: {line[:60]}")


def calls(line, program):
    """The words after ``program`` wherever it is called in a line: alone, in a pipe, or inside ``$(…)``."""
    words = shlex.split(re.sub(r"\$\(|\)", " ; ", line), comments=True)
    for start in (at for at, word in enumerate(words) if word == program):
        end = next((at for at in range(start, len(words)) if words[at] in ENDS), len(words))
        yield words[start + 1 : end]


@pytest.mark.parametrize("page", [page for page in PAGES if any(blocks(page, {"python"}))], ids=lambda page: page.name)
def test_python_blocks_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for number, block in enumerate(blocks(page, {"python"}), 1):
        with monkeypatch.context() as patch:
            if block["file"]:
                # The block is a file beside others that it may import.
                patch.syspath_prepend(str((page.parent / block["file"]).parent))
            before = set(sys.modules)
            exec(compile(block["text"], f"{page.name}, block {number}", "exec"), {"__name__": "block"})
        for name in set(sys.modules) - before:
            if str(getattr(sys.modules[name], "__file__", None) or "").startswith(str(ROOT / "docs")):
                del sys.modules[name]


@pytest.mark.parametrize("line", list(shell_lines()))
def test_commands_exist_with_their_options(line):
    app = typer.main.get_command(build_app())
    for words in calls(line, "tsbatch"):
        if words[:1] == ["--version"]:
            continue
        command = app.commands[words[0]]
        if hasattr(command, "commands") and words[1:2] != ["--help"]:  # verbs under a verb
            words = words[1:]
            command = command.commands[words[0]]
        command.make_context(words[0], words[1:], resilient_parsing="--help" in words)


@pytest.mark.parametrize("line", list(shell_lines()))
def test_scripts_exist(line):
    for words in calls(line, "python"):
        if words and words[0].endswith(".py") and "/" in words[0]:
            assert (ROOT / words[0]).is_file()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#\s]+)", page.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("page", TASK_PAGES, ids=lambda page: page.name)
def test_a_task_says_where_port_and_token_for_its_lines_are(page):
    text = page.read_text(encoding="utf-8")
    assert "http://127.0.0.1:8080/predictions/" in text
    assert "use its address and its `-H @…/inference.header`" in text


def test_verbs_in_running_text_exist():
    app = typer.main.get_command(build_app())
    for page in PAGES:
        for verb in re.findall(r"`tsbatch ([a-z][a-z-]+)", page.read_text(encoding="utf-8")):
            assert verb in app.commands, f"{page.name} mentions tsbatch {verb}"


def test_a_wrong_option_would_be_found():
    with pytest.raises(typer.BadParameter.__mro__[1]):
        test_commands_exist_with_their_options("cd x && tsbatch package --nmae y")
