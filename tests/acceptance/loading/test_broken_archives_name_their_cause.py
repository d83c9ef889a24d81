"""Of fourteen broken archives, check and register both name the cause in their first line."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.acceptance.broken import BROKEN
from tsbatch.cli.program import main


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("broken")


@pytest.fixture(scope="module")
def server(server_factory):
    with server_factory() as server:
        yield server


@pytest.fixture
def said(capfd):
    def run(*words):
        capfd.readouterr()
        began = time.monotonic()
        code = main([str(word) for word in words])
        out, err = capfd.readouterr()
        return code, (out + err).splitlines(), time.monotonic() - began

    return run


@pytest.mark.parametrize("name", BROKEN)
def test_check_and_register_name_the_cause_first(name, folder: Path, server, said, record_property):
    broken = BROKEN[name]
    archive = broken.archive(folder, name)

    code, lines, seconds = said("check", archive)
    assert code == 3, lines
    assert not lines[0].startswith("Traceback")
    first_two = " ".join(lines[:2])  # the remedy is the second
    assert broken.says[0] in lines[0]
    for words in broken.says:
        assert words in first_two

    code, lines, waited = said("register", archive, "--name", server.instance.name)
    assert code == 3, lines
    assert len(lines) == 1, lines
    for words in broken.says:
        assert words in lines[0]
    with server.management() as management:
        assert name not in management.models()
    record_property(f"{name}: check, register (s)", f"{seconds:.1f}, {waited:.1f}")
