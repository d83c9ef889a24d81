"""`tsbatch new` and what it and our README say to do next, word for word, with the built wheel."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import psutil
import pytest

from tests.acceptance.stranger import ROOT, fresh_clone

BLOCK = re.compile(r"```sh\n(.*?)```", re.DOTALL)


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A folder with the built wheel's files, which stands first on the path: entry points and templates as shipped."""
    folder = tmp_path_factory.mktemp("line8")
    clone = fresh_clone(folder / "tsbatch")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(clone)]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = folder.glob("tsbatch-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    programs = folder / "bin"
    programs.mkdir()
    # As pip would write them: with a folder of their own in front of the path, not the current one.
    for name, entry in {"tsbatch": "tsbatch.cli:main", "pytest": "pytest:console_main"}.items():
        module, _, function = entry.partition(":")
        program = programs / name
        program.write_text(f"#!{sys.executable}\nimport sys\nfrom {module} import {function}\nsys.exit({function}())\n")
        program.chmod(0o755)
    return {
        **os.environ,
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(folder / "site"),
        "TSBATCH_STATE_DIR": str(folder / "state"),
    }


@pytest.fixture
def shell(installed):
    def run(line: str, folder: Path) -> str:
        done = subprocess.run(
            ["sh", "-c", line], cwd=folder, env=installed, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
        return done.stdout

    return run


def line_in(page: Path, start: str) -> str:
    """The one line of a page's shell blocks that begins so."""
    blocks = "\n".join(BLOCK.findall(page.read_text(encoding="utf-8")))
    (found,) = [line for line in blocks.replace("\\\n", " ").splitlines() if line.startswith(start)]
    return found


def test_line_8_our_readme_s_line_works_as_it_stands(shell, tmp_path, record_property):
    line = line_in(ROOT / "README.md", "tsbatch new ")
    assert "&& pytest && tsbatch package " in line
    assert "&& tsbatch check " in line
    out = shell(line, tmp_path)
    assert "6 passed" in out
    assert "no findings" in out
    record_property("line of the README", line)


def test_line_8_so_do_the_starter_s_own_readme_and_last_line(shell, tmp_path):
    told = shell("tsbatch new my_handler", tmp_path).splitlines()[-1]
    next_line = told.removeprefix("next: ")
    assert told != next_line
    assert "no findings" in shell(next_line, tmp_path)

    shutil.rmtree(tmp_path / "my_handler")
    shell("tsbatch new my_handler", tmp_path)
    folder = tmp_path / "my_handler"
    own, then = BLOCK.findall((folder / "README.md").read_text(encoding="utf-8"))
    for line in own.splitlines():
        shell(line, folder)
    serve, models, stop = then.splitlines()
    try:
        out = shell(serve, folder)
        (pid,) = re.findall(r"READY \(process (\d+)\)", out)
        assert "my_handler" in shell(models, folder)
    finally:
        shell(stop, folder)
    assert not psutil.pid_exists(int(pid)) or psutil.Process(int(pid)).status() == psutil.STATUS_ZOMBIE


def test_line_8_it_is_what_we_would_write(shell, tmp_path):
    """ruff finds nothing in it, formatted as it is."""
    shell("tsbatch new my_handler", tmp_path)
    for words in (["check", "--select", "F,I,B,UP"], ["format", "--check"]):
        command = [sys.executable, "-m", "ruff", *words, "--isolated", "--line-length", "120", "."]
        done = subprocess.run(command, cwd=tmp_path / "my_handler", capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
