"""Changing a running model: what is done, in which order, and what is put back."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from tsbatch.cli.program import main
from tsbatch.errors import ServerError, UsageError
from tsbatch.operations import reconfiguration as module
from tsbatch.operations.reconfiguration import link_files, next_version, reconfigure
from tsbatch.packaging.builder import plan, write
from tsbatch.serving.management_client import ModelNotFound, ModelVersion

OLD, NEW = ModelVersion("m", "1.0"), ModelVersion("m", "1.0-r1")


@pytest.fixture
def unpacked(tmp_path):
    """The folder that a worker works in."""
    source = tmp_path / "source"
    (source / "deep").mkdir(parents=True)
    (source / "deep" / "w.safetensors").write_bytes(b"weights")
    (tmp_path / "h.py").write_text("class H:\n    pass\n")
    folder = write(plan(name="packed-as", handler=tmp_path / "h.py", model=source), tmp_path, form="folder").path
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__" / "h.pyc").touch()
    return folder


@pytest.fixture
def worker(unpacked):
    process = subprocess.Popen([sys.executable, "-c", "input()"], cwd=unpacked, stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.communicate()


class Server:
    """A management API that keeps what it was told, and fails where it shall."""

    def __init__(self, pid, fail=None):
        self.done, self.fail, self.default, self.folder = [], fail, "1.0", None
        settings = {"batchSize": 8, "maxBatchDelay": 0, "responseTimeout": 77, "startupTimeout": 99}
        workers = [{"pid": pid, "gpu": False}]
        self.models = {"1.0": {**settings, "modelVersion": "1.0", "minWorkers": 1, "maxWorkers": 1, "workers": workers,
                               "modelUrl": "m.mar"}}  # fmt: skip

    def step(self, *what):
        self.done.append(what)
        if self.fail == what[0]:
            self.fail = None
            raise ServerError(f"{what[0]} failed")

    def describe(self, name, version=None):
        return self.models[version or self.default]

    def versions(self, name):
        return list(self.models.values())

    def set_default(self, name, version):
        self.step("set_default", version)
        self.default = version

    def unregister(self, name, version):
        self.step("unregister", version)
        if version not in self.models:
            raise ModelNotFound(f"Model version is not found: {version}")
        if version == self.default:
            raise UsageError("Cannot remove default version")
        del self.models[version]

    def register(self, management, archive, *, model_name, requested, on_progress):
        self.step("register", model_name, dict(requested))
        self.folder = archive
        config = yaml.safe_load(Path(archive, "model-config.yaml").read_text())
        version = json.loads(Path(archive, "MAR-INF/MANIFEST.json").read_text())["model"]["modelVersion"]
        own = {key: config[key] for key in module.KEPT}
        own |= {"batchSize": requested["batch_size"], "maxBatchDelay": requested["max_batch_delay"]}
        self.models[version] = {**own, "modelVersion": version, "workers": []}


@pytest.fixture
def change(tmp_path, worker, monkeypatch):
    monkeypatch.setattr(module, "lack_of_room", lambda model: None)
    instance = SimpleNamespace(
        name="mine", work_dir=tmp_path / "work", log_dir=tmp_path / "logs", model_store=tmp_path / "store"
    )
    for folder in (instance.work_dir, instance.model_store):
        folder.mkdir()

    def run(changes, fail=None, server=None, **options):
        server = server or Server(worker.pid, fail)
        monkeypatch.setattr(module.registration, "register", server.register)
        monkeypatch.setattr(module, "drain", lambda management, who, log_dir, tell: server.step("drain", who.version))
        run.server, run.folder = server, instance.work_dir / "reconfigured" / "m-1.0-r1"
        return reconfigure(server, instance, "m", changes, **options)

    run.instance = instance
    return run


def test_the_steps_in_their_order(change):
    done = change({"batch_size": 16})
    requested = {"batch_size": 16, "max_batch_delay": 0, "initial_workers": 1}
    assert change.server.done == [
        ("register", "m", requested),
        ("set_default", "1.0-r1"),
        ("drain", "1.0"),
        ("unregister", "1.0"),
    ]
    assert (done.before["batchSize"], done.model["batchSize"]) == (8, 16)
    assert any("version 1.0 get 404" in note for note in done.notes)


def test_what_a_killed_change_left_is_in_nobodys_way(change, tmp_path):
    left = tmp_path / "work" / "reconfigured" / "m-1.0-r1"
    left.mkdir(parents=True)
    assert change({"batch_size": 16}).model["modelVersion"] == "1.0-r2"


def test_the_new_folder_has_the_old_files_and_what_the_server_had_effective(change, unpacked):
    change({"batch_size": 16})
    folder = change.folder
    assert (folder / "deep" / "w.safetensors").samefile(unpacked / "deep" / "w.safetensors")
    assert not (folder / "__pycache__").exists()
    assert not (folder / "MAR-INF" / "tsbatch.json").exists(), "it would not be true any more"
    config = yaml.safe_load((folder / "model-config.yaml").read_text())
    assert (config["batchSize"], config["responseTimeout"], config["startupTimeout"]) == (16, 77, 99)
    assert config["maxBatchDelay"] == 1, "0 in a file would be 100 ms; registering says 0 again"
    assert config["tsbatch"]["schema"] == 1, "the rest is the archive's own"
    old = yaml.safe_load((unpacked / "model-config.yaml").read_text())
    assert old["batchSize"] == 8, "the old one is as it was"


@pytest.mark.parametrize("fail", ["register", "set_default", "drain"])
def test_a_failure_puts_everything_back(change, fail):
    with pytest.raises(ServerError, match=f"{fail} failed"):
        change({"batch_size": 16}, fail=fail)
    server = change.server
    assert server.default == "1.0"
    assert list(server.models) == ["1.0"]
    assert not change.folder.exists()
    if fail == "drain":
        back = server.done.index(("set_default", "1.0"))
        assert server.done[back:] == [("set_default", "1.0"), ("drain", "1.0-r1"), ("unregister", "1.0-r1")]


class Interrupted(Server):
    """Does what it is told, and its answer is lost."""

    def __init__(self, pid, at, error):
        super().__init__(pid)
        self.at, self.error = at, error

    def answer(self, what):
        if self.at == what:
            self.at = None
            raise self.error

    def register(self, *words, **options):
        super().register(*words, **options)
        self.answer("register")

    def set_default(self, *words):
        super().set_default(*words)
        self.answer("set_default")

    def unregister(self, *words):
        super().unregister(*words)
        self.answer("unregister")


@pytest.mark.parametrize("at", ["register", "set_default"])
def test_ctrl_c_while_the_server_does_a_step_puts_everything_back(change, worker, at):
    with pytest.raises(KeyboardInterrupt):
        change({"batch_size": 16}, server=Interrupted(worker.pid, at, KeyboardInterrupt()))
    assert change.server.default == "1.0"
    assert list(change.server.models) == ["1.0"]
    assert not change.folder.exists()


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ServerError("did not answer in 300 s")])
def test_once_the_old_version_is_being_dropped_the_new_one_stays(change, worker, error):
    with pytest.raises(type(error)):
        change({"batch_size": 16}, server=Interrupted(worker.pid, "unregister", error))
    assert change.server.default == "1.0-r1"
    assert list(change.server.models) == ["1.0-r1"], "it would have none at all"
    assert change.folder.is_dir(), "its workers are started from there"


def test_an_old_version_that_cannot_be_dropped_is_told_with_the_remedy(change):
    with pytest.raises(ServerError) as caught:
        change({"batch_size": 16}, fail="unregister")
    assert list(change.server.models) == ["1.0", "1.0-r1"]
    assert str(caught.value) == (
        "m 1.0-r1 has the new settings and is in use, but m 1.0 could not be unregistered (unregister failed)"
        " and may still use memory; run: tsbatch unregister m --version 1.0 --name mine"
    )


def test_an_old_version_that_is_gone_already_is_fine(change, worker):
    server = Server(worker.pid)
    server.unregister = lambda name, version: (_ for _ in ()).throw(ModelNotFound("not found"))
    assert change({"batch_size": 16}, server=server).model["modelVersion"] == "1.0-r1"


@pytest.mark.parametrize("delay", [0, -10000])
def test_settings_that_were_found_come_back_as_they_were(change, worker, delay):
    server = Server(worker.pid)
    server.models["1.0"]["maxBatchDelay"] = 5
    change({"batch_size": 16}, server=server)
    server.models["1.0-r1"]["workers"] = [{"pid": worker.pid, "gpu": False}]
    before = server.describe("m")
    back = module.exchange(server, change.instance, "m", before, {"batchSize": 8, "maxBatchDelay": delay}).model
    assert (back["modelVersion"], back["batchSize"], back["maxBatchDelay"]) == ("1.0-r2", 8, delay)
    assert yaml.safe_load(Path(server.folder, "model-config.yaml").read_text())["maxBatchDelay"] == 1


def test_settings_that_did_not_come_through_are_an_error(change, worker):
    class Deaf(Server):
        def register(self, *words, **options):
            super().register(*words, **options)
            self.models["1.0-r1"]["batchSize"] = 8

    with pytest.raises(ServerError, match=r"runs with \{'batchSize': 8\}"):
        change({"batch_size": 16}, server=Deaf(worker.pid))


def test_once_more(change, worker):
    change({"batch_size": 16})
    first, server = change.folder, change.server
    server.models["1.0-r1"]["workers"] = [{"pid": worker.pid, "gpu": False}]
    done = change({"max_batch_delay": 30}, server=server)
    assert (done.model["modelVersion"], done.model["batchSize"], done.model["maxBatchDelay"]) == ("1.0-r2", 16, 30)
    assert not first.exists(), "nobody runs from it any more"


@pytest.mark.skipif(os.name == "nt", reason="there is no such lock")
def test_one_change_of_a_model_at_a_time(change, worker):
    other = Server(worker.pid)

    class Slow(Server):
        def register(self, management, archive, **options):
            super().register(management, archive, **options)
            with pytest.raises(ServerError, match=r"^another reconfigure .* is changing m on this server"):
                change({"batch_size": 32}, server=other)

    change({"batch_size": 16}, server=Slow(worker.pid))
    assert "register" not in {what[0] for what in other.done}
    change({"batch_size": 32}, server=other)  # the lock is gone with the change
    assert other.describe("m")["batchSize"] == 32


def test_a_model_without_workers_is_taken_from_its_archive(change, worker, tmp_path, unpacked):
    server = Server(worker.pid)
    server.models["1.0"]["workers"] = []
    with pytest.raises(ServerError, match="no running worker and no archive"):
        change({"batch_size": 16}, server=server)
    write(plan(name="m", handler=tmp_path / "h.py"), tmp_path / "store")
    change({"batch_size": 16}, server=server)
    assert (change.folder / "h.py").is_file()
    assert [path.name for path in change.folder.parent.iterdir()] == ["m-1.0-r1"]


def test_what_is_refused_before_anything_is_done(change, monkeypatch):
    with pytest.raises(UsageError, match="nothing to change"):
        change({"batch_size": 8})
    with pytest.raises(UsageError, match="--max-batch-delay: must be from 1"):
        change({"max_batch_delay": 0})
    monkeypatch.setattr(module, "lack_of_room", lambda model: "no room")
    with pytest.raises(UsageError, match=r"no room; .*--force"):
        change({"batch_size": 16})
    assert change.server.done == []
    assert change({"batch_size": 16}, force=True).model["batchSize"] == 16


def test_a_server_of_others_is_told_what_it_needs():
    with pytest.raises(UsageError, match="PUT /models/m/VERSION/set-default"):
        reconfigure(None, None, "m", {"batch_size": 2})


@pytest.mark.parametrize(
    "version, taken, wanted",
    [("1.0", set(), "1.0-r1"), ("1.0-r1", set(), "1.0-r2"), ("1.0", {"1.0-r1"}, "1.0-r2"), ("7-rc", set(), "7-rc-r1")],
)
def test_the_next_version(version, taken, wanted):
    assert next_version(version, taken) == wanted


def test_where_no_links_can_be_made_files_are_copied(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "link", lambda *names: (_ for _ in ()).throw(OSError("no links")))
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "w").write_bytes(b"1")
    link_files(tmp_path / "a", tmp_path / "b", exclude=set())
    assert (tmp_path / "b" / "w").read_bytes() == b"1"


def test_the_command_wants_something_to_change(capsys):
    assert main(["reconfigure", "m"]) == 2
    assert "--batch-size, --max-batch-delay" in capsys.readouterr().err


@pytest.fixture
def command(monkeypatch):
    """The command with a change that needs no server."""
    from tsbatch.cli import server_commands

    settings = {"batchSize": 8, "maxBatchDelay": 10, "responseTimeout": 120, "startupTimeout": 120}
    before = {**settings, "modelName": "m", "modelVersion": "1.0", "minWorkers": 1, "workers": [{"status": "READY"}]}
    requested = []

    def change(management, instance, name, changes, *, force, tell):
        requested.append((management, instance, name, dict(changes), force))
        tell("draining m 1.0")
        after = {**before, "modelVersion": "1.0-r1", "batchSize": changes["batch_size"]}
        return module.Reconfigured(after, before, ["requests for version 1.0 get 404 from now on"])

    monkeypatch.setattr(server_commands, "reconfigure", change)
    monkeypatch.setattr(server_commands, "connect", lambda name, server: nullcontext(("api", f"{name} {server}")))
    return requested


def test_the_command_tells_what_changed(command, capsys):
    assert main(["reconfigure", "m", "--batch-size", "16", "--name", "mine", "--force"]) == 0
    out, err = capsys.readouterr()
    assert command == [("api", "mine None", "m", {"batch_size": 16}, True)]
    assert "batchSize: 8 -> 16" in out
    assert "1.0-r1" in out
    assert "note: requests for version 1.0 get 404" in err


def test_the_command_in_json(command, capsys):
    assert main(["reconfigure", "m", "--batch-size", "16", "--response-timeout", "9", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["schema"], report["version"], report["old_version"]) == (1, "1.0-r1", "1.0")
    assert report["changed"] == {"batchSize": {"before": 8, "now": 16}}
    assert command[0][3] == {"batch_size": 16, "response_timeout": 9}
