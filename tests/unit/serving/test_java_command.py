from __future__ import annotations

import os
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from tsbatch.configuration.server_properties import ServerProperties
from tsbatch.errors import UsageError
from tsbatch.serving import java_command
from tsbatch.system.processes import MARK


@pytest.fixture
def made(tmp_path):
    def command(**values):
        values.setdefault("model_store", "/store")
        return java_command.command(Path("/java"), ServerProperties(values), tmp_path, tmp_path / "tmp")

    return command


def test_the_command_of_torchserve(made, tmp_path):
    words = made()
    assert words[0] == "/java"
    assert f"-Djava.io.tmpdir={tmp_path / 'tmp'}" in words
    assert words[words.index(java_command.MAIN_CLASS) + 1 :][2:] == [
        "-f",
        str(tmp_path / "config.properties"),
        "-s",
        "/store",
        "-ncs",
    ]


def test_what_the_users_file_says_to_the_launcher(made):
    words = made(vmargs="-Xmx1g -Dlog4j.configurationFile=/mine.xml", plugins_path="/plugins")
    assert "-Xmx1g" in words
    assert [word for word in words if word.startswith("-Dlog4j.")] == ["-Dlog4j.configurationFile=/mine.xml"]
    assert words[words.index("-cp") + 1].split(os.pathsep)[1:] == ["/plugins/*"]


def test_the_workers_python_is_this_one_or_the_users(made):
    assert [words[words.index("--python") + 1] for words in (made(), made(python="/theirs/python"))] == [
        sys.executable,
        "/theirs/python",
    ]


def test_the_logging_lacks_the_console_and_nothing_else(tmp_path):
    tree = ET.parse(java_command.logging_without_console(java_command.torchserve_home(), tmp_path))
    assert tree.findall(".//Console") == []
    assert {one.get("ref") for one in tree.findall(".//AppenderRef")} == {
        *("access_log", "model_log", "model_metrics", "ts_log", "ts_metrics")
    }


def test_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("TS_CONFIG_FILE", "/other")
    env = java_command.environment(tmp_path, tmp_path / "tmp", tmp_path / "logs", {"MINE": "1"})
    assert "TS_CONFIG_FILE" not in env
    assert (env["MINE"], env["TMPDIR"], env["LOG_LOCATION"], env[MARK]) == (
        *("1", str(tmp_path / "tmp"), str(tmp_path / "logs")),
        str(tmp_path),
    )


def test_torchserve_is_not_installed(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(UsageError, match=r"pip install \"tsbatch\[serve\]\""):
        java_command.torchserve_home()


BOUND = "java.io.IOException: Failed to bind to address: http://h"
HEAP = "Invalid maximum heap size: -Xmx1k1"


@pytest.mark.parametrize(
    "text, last",
    [
        (f"{HEAP}\nError: Could not create the Java Virtual Machine.\n", HEAP),
        (f"WARNING: sun.misc\nx\n{BOUND}\n\tat x\n", BOUND),
        ("WARNING: x\nModel server started.\n", "it printed nothing"),
    ],
)
def test_why_java_ended(tmp_path, text, last):
    (tmp_path / java_command.CONSOLE).write_text(text)
    assert java_command.error_in_console(tmp_path) == last
