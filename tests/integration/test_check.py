"""tsbatch check: handlers asked in this process, and archives loaded in fresh ones."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import sys
from importlib.metadata import version
from pathlib import Path

import psutil
import pytest

from tsbatch.check import child_process, probes
from tsbatch.check import run as checking
from tsbatch.check.findings import Report
from tsbatch.check.phases import PhaseClock
from tsbatch.check.run import check
from tsbatch.check.samples import JSON, sample
from tsbatch.cli.program import main
from tsbatch.emulation.runner import Call, HandlerRunner
from tsbatch.handler import BatchHandler
from tsbatch.packaging.bundle import own_files
from tsbatch.system.process_memory import Memory
from tsbatch.worker.adapter import BaseHandler

SETTINGS = "minWorkers: 1\nmaxWorkers: 1\nbatchSize: 4\nmaxBatchDelay: 20\nresponseTimeout: 60\nstartupTimeout: 60\n"


class Doubles(BatchHandler):
    def load_model(self):
        return None

    def examples(self):
        return [1, 2.5]

    def inference(self, tensors):
        return 2 * tensors


class AllOrNothing(BaseHandler):
    """As most handlers for one request are: what breaks one breaks all, and the first decides."""

    def initialize(self, context):
        self.initialized = True

    def handle(self, data, context):
        numbers = [row.get("body")["n"] for row in data]
        return [number + numbers[0] for number in numbers]


class Dies(AllOrNothing):
    def handle(self, data, context):
        return ["\ud800" if len(data) > 1 else 1 for _ in data]


def asked(tmp_path, handler, samples=None, batch_size=4):
    told = []
    with HandlerRunner.from_class(handler, tmp_path, batch_size=batch_size) as runner:
        probes.run(runner, {"samples": samples}, lambda event, **values: told.append((event, values)))
    return told


def of(told, event):
    return [values for name, values in told if name == event]


def number(value):
    return sample(f"line {value}", json.dumps({"n": value}).encode(), JSON)


class TestProbes:
    @pytest.fixture(autouse=True)
    def short(self, monkeypatch):
        monkeypatch.setattr(probes, "SECONDS_PER_SIZE", 0.01)

    def test_a_batch_handler_gets_its_own_examples(self, tmp_path):
        told = asked(tmp_path, Doubles)
        assert [(one["name"], one["status"]) for one in of(told, "sample")] == [("example 1", 200), ("example 2", 200)]
        assert [one["batch"] for one in of(told, "service")] == [1, 2, 4]
        assert of(told, "invariance") == [{"holds": True, "compared": 2, "why": None}]
        broken = of(told, "isolation")
        assert len(broken) == len(probes.BROKEN)
        assert all(one["holds"] and one["status"] >= 400 for one in broken)

    def test_items_are_counted_where_the_handler_counts_them(self, tmp_path):
        ten = sample("ten", json.dumps({"inputs": list(range(10))}).encode(), JSON)
        (row, *_) = of(asked(tmp_path, Doubles, [ten]), "service")
        assert row["per_item"] == pytest.approx(row["seconds"] / 10)

    def test_a_handler_for_one_request_is_found_out(self, tmp_path):
        told = asked(tmp_path, AllOrNothing, [number(1), number(2)])
        assert [one["status"] for one in of(told, "sample")] == [200, 200]
        (invariance,) = of(told, "invariance")
        assert invariance["holds"] is False
        assert "answered differently in the batch" in invariance["why"]
        assert [one["holds"] for one in of(told, "isolation")] == [False] * len(probes.BROKEN)
        assert "3 of 3 valid requests failed too" in of(told, "isolation")[0]["why"]

    def test_a_worker_that_would_die(self, tmp_path):
        told = asked(tmp_path, Dies, [number(1), number(2)], batch_size=2)
        assert "the worker would die" in of(told, "invariance")[0]["why"]
        assert "the worker would die" in of(told, "isolation")[0]["why"]

    def test_a_sample_that_ends_the_worker(self, tmp_path):
        with HandlerRunner.from_class(Doubles, tmp_path) as runner:
            runner._service.predict = lambda batch: sys.exit(3)
            outcome, _ = probes.ask(runner, "a", Call(1))
        assert outcome["status"] == 500
        assert "the worker would die" in outcome["reason"]

    def test_what_could_not_be_tested_is_reported(self, tmp_path):
        assert of(asked(tmp_path, AllOrNothing), "unable")[0]["why"] == "there are no samples"
        told = asked(tmp_path, AllOrNothing, [sample("bad", b"1", JSON)])
        assert of(told, "sample")[0]["reason"] == "Prediction failed"
        assert of(told, "unable")[0]["why"] == "no sample got a successful answer"
        alone = asked(tmp_path, AllOrNothing, [number(1)], batch_size=1)
        assert of(alone, "invariance")[0]["holds"] is None
        assert of(alone, "isolation")[0]["holds"] is None

    def test_a_handler_that_takes_anything_shows_no_isolation(self, tmp_path):
        class Anything(AllOrNothing):
            def handle(self, data, context):
                return ["fine"] * len(data)

        told = asked(tmp_path, Anything, [number(1)])
        assert {one["why"] for one in of(told, "isolation")} == {"the handler accepts it"}

    @pytest.mark.parametrize("most, sizes", [(1, [1]), (2, [1, 2]), (6, [1, 2, 4, 6]), (8, [1, 2, 4, 8])])
    def test_sizes(self, most, sizes):
        assert probes.sizes_up_to(most) == sizes

    def test_bytes_are_a_body_of_their_own(self, tmp_path):
        class Bytes(Doubles):
            def examples(self):
                return [b"\x00"]

        ((_, call),) = probes.example_samples(Bytes())
        assert call.body == b"\x00"


OURS = """
from tsbatch import BatchHandler

class Handler(BatchHandler):
    def load_model(self):
        import wave  # what is imported late is importing all the same
        return lambda tensors: tensors
    def examples(self):
        return [1, 2]
"""
# Without BaseHandler, whose module imports all that TorchServe can make use of and takes seconds.
STOCK = """
class Handler:
    def initialize(self, context):
        {initialize}
    def handle(self, data, context):
        return [row.get("body")["n"] for row in data]
"""


@pytest.fixture
def state(tmp_path, monkeypatch):
    monkeypatch.setenv("TSBATCH_STATE_DIR", str(tmp_path / "state"))
    return tmp_path / "state"


class TestFreshProcess:
    def test_a_good_archive_is_one_page(self, make_mar, state, capfd):
        made = make_mar(OURS, config=SETTINGS)
        assert main(["check", str(made)]) == 0
        out, err = capfd.readouterr()
        assert out.startswith("m 1.0 loads in ")
        assert "no findings (Handler, batches of up to 4)" in out.splitlines()[0]
        for phase in ("unpack", "python", "import", "weights", "warm-up"):
            assert any(line.startswith(f"{phase} ") for line in out.splitlines())
        assert "second worker: " in out
        assert "samples: 2 of 2 answered" in out
        assert err == ""
        assert "in-process" not in out
        assert str(made) in (state / "load-times").read_text()

    def test_findings_of_a_handler_that_is_not_ours(self, make_mar, tmp_path, state, capfd):
        made = make_mar(STOCK.format(initialize="pass"), config=SETTINGS)
        (tmp_path / "s.jsonl").write_text('{"n": 1}\n{"n": 2}\n{"m": 3}\n')
        words = ["check", str(made), "--data", str(tmp_path / "s.jsonl"), "--one-worker", "--max-batch", "2", "--json"]
        assert main(words) == 1
        told = json.loads(capfd.readouterr().out)
        assert [one["status"] for one in told["samples"]] == [200, 200, 503]
        assert [row["batch"] for row in told["service"]] == [1, 2]
        assert told["invariance"]["holds"] is True
        assert "no isolation" in told["findings"][-1]
        assert [phase["name"] for phase in told["phases"]] == ["unpack", "python", "import", "initialize"]
        assert len(told["memory"]) == 1

    def test_the_real_exception_is_the_first_line(self, make_mar, state, capfd):
        made = make_mar("import no_such_module\nclass Handler: pass\n")
        assert main(["check", str(made)]) == 3
        out, err = capfd.readouterr()
        first, second, *_ = out.splitlines()
        assert first == "ModuleNotFoundError: No module named 'no_such_module' (handler.py:1)"
        assert second.startswith("remedy: ")
        assert "failed in the phase import" in out
        assert "ts.torch_handler" not in out
        assert err == ""
        assert not state.exists()

    def test_a_killed_process_is_reported_by_its_exit_code(self, make_mar, state):
        made = make_mar(STOCK.format(initialize="import os; os.kill(os.getpid(), 9)"))
        failure = check(made).failure
        assert failure.cause == "the process ended while loading (exit code 137, phase: initialize)"
        assert "does not have enough memory" in failure.remedy

    def test_killed_for_memory(self, make_mar, state, monkeypatch):
        counts = iter([3, 4])
        monkeypatch.setattr("tsbatch.check.supervisor.kills", lambda: next(counts))
        made = make_mar(STOCK.format(initialize="import os; os.kill(os.getpid(), 9)"))
        assert "killed for memory" in check(made).failure.cause

    def test_a_hanging_load_ends_with_its_children(self, make_mar, state, tmp_path, capfd):
        child = tmp_path / "child"
        hang = (
            "import subprocess, sys, time; sleep = 'import time; time.sleep(99)'; "
            "child = subprocess.Popen([sys.executable, '-c', sleep], start_new_session=True); "
            f"open({str(child)!r}, 'w').write(str(child.pid)); time.sleep(99)"
        )
        made = make_mar(STOCK.format(initialize=hang))
        assert main(["check", str(made), "--limit", "6"]) == 3
        assert "still not done after 6 s (phase: initialize)" in capfd.readouterr().err.splitlines()[-1]
        pid = int(child.read_text())
        assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE

    def test_what_is_no_archive(self, tmp_path, capfd):
        (tmp_path / "m.mar").write_bytes(b"no zip")
        for words in (["none.mar"], [tmp_path / "m.mar"], [tmp_path / "m.mar", "--data", "none"]):
            assert main(["check", *map(str, words)]) == 2
            out, err = capfd.readouterr()
            assert (out, err.count("\n")) == ("", 1)


class TestHere:
    """The fresh process's own code, in this one."""

    @pytest.fixture
    def run(self, tmp_path, monkeypatch):
        def run(folder, **job):
            events = tmp_path / "events"
            task = tmp_path / "job.json"
            package = str(Path(checking.__file__).parents[1])
            whole = {"where": "m.mar", "samples": None, "max_batch": None, "probe": True, "started": 0, **job}
            whole |= {"folder": str(folder), "events": str(events), "package": package}
            task.write_text(json.dumps(whole))
            monkeypatch.setattr(sys, "stdin", io.StringIO())
            monkeypatch.chdir(folder)
            code = child_process.main(str(task))
            return code, [json.loads(line) for line in events.read_text().splitlines()]

        return run

    @pytest.fixture
    def folder(self, tmp_path):
        def make(handler):
            folder = tmp_path / "model"
            (folder / "MAR-INF").mkdir(parents=True)
            manifest = {"runtime": "python", "model": {"modelName": "m", "handler": "handler.py"}}
            (folder / "MAR-INF" / "MANIFEST.json").write_text(json.dumps(manifest))
            (folder / "handler.py").write_text(handler)
            return folder

        return make

    def test_the_whole_job(self, run, folder):
        before = os.environ.copy()
        code, events = run(folder(OURS), max_batch=2)
        assert code == 0
        names = [event["event"] for event in events]
        assert names[-1] == "done"
        assert names.index("loaded") < names.index("sample") < names.index("service") < names.index("isolation")
        (loaded,) = [event for event in events if event["event"] == "loaded"]
        assert loaded["is_ours"]
        assert loaded["batch_size"] == 2
        assert set(loaded["phases"]) >= {"python", "import", "initialize", "weights", "warm-up"}
        assert os.environ == before
        assert BatchHandler._step.__qualname__ == "BatchHandler._step"

    def test_loading_alone(self, run, folder):
        code, events = run(folder(STOCK.format(initialize="pass")), probe=False)
        assert code == 0
        assert not [event for event in events if event["event"] == "sample"]

    def test_a_load_that_fails(self, run, folder, capfd):
        code, events = run(folder(STOCK.format(initialize="raise ValueError('no weights')")))
        assert code == 1
        assert (events[-1]["event"], events[-1]["phase"]) == ("failed", "initialize")
        assert "ValueError: no weights" in capfd.readouterr().err


class TestGpu:
    """Without a GPU here: what is asked of torch, and what follows from its answers."""

    @pytest.fixture
    def cuda(self, monkeypatch):
        import torch

        free = iter([8_000, 6_000])
        made = []
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (next(free), 10_000))
        monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 500)
        monkeypatch.setattr(torch, "zeros", lambda *_, device: made.append(device))
        return made

    def test_the_context_is_a_phase_of_its_own(self, cuda):
        clock = PhaseClock(lambda *_: None)
        assert child_process._start_gpu(clock) == 0
        assert list(clock.seconds) == ["CUDA context"]
        assert cuda == ["cuda:0"]

    def test_what_a_second_worker_takes_limits_their_number(self, cuda):
        report = Report(archive=Path("m.mar"), name="m", version=None, memory=[Memory(1, 1, 1), Memory(1, 1, 1)])
        report.gpu = [child_process.gpu_memory(), child_process.gpu_memory()]
        assert report.gpu[0] == {"free": 8_000, "total": 10_000, "reserved": 500}
        # each takes 2,000 of 10,000: two are there, three more fit
        assert "5 by GPU memory" in checking._workers_advice(report).reason


def test_a_handler_that_torchserve_finds_among_its_own(make_mar, state):
    made = make_mar("", names="base_handler", entry="other.py")
    failure = check(made).failure
    assert failure.phase == "initialize"
    assert "ts.torch_handler" not in failure.cause


def test_an_archive_that_brings_its_own_tsbatch(make_mar, state):
    own = {name: file.read_text() for name, file in own_files() if file.suffix in (".py", ".yaml")}
    assert "tsbatch/handler.py" in own
    assert not any(name.startswith(("tsbatch/check/", "tsbatch/emulation/")) for name in own)
    handler = f"{OURS}\nimport os, tsbatch\nassert os.getcwd() in tsbatch.__file__, tsbatch.__file__\n"
    report = check(make_mar(handler, config=SETTINGS, files=own), second_worker=False)
    assert report.failure is None
    assert report.about["is_ours"]
    assert [one["status"] for one in report.samples] == [200, 200]
    assert report.findings == []


def test_an_archive_that_is_packed_anew_during_its_check_has_no_hash(make_mar, state):
    mar = make_mar(OURS, config=SETTINGS)
    report = check(mar, second_worker=False, on_progress=lambda _: os.utime(mar))
    assert report.failure is None
    assert report.as_json()["sha256"] is None


def test_what_was_imported_and_from_where(make_mar, state):
    # captum is installed as well, but comes out of the archive; javaproperties is imported by a request.
    handler = OURS.replace("return lambda", "import captum\n        return lambda")
    handler += (
        "\n    def postprocess(self, outputs, items):\n        import javaproperties\n        return outputs.tolist()\n"
    )
    report = check(make_mar(handler, config=SETTINGS, files={"captum.py": ""}), second_worker=False)
    assert report.findings == []
    assert report.as_json()["sha256"] == hashlib.sha256(report.archive.read_bytes()).hexdigest()
    assert report.imports.items() >= {name: version(name) for name in ("torch", "orjson", "javaproperties")}.items()
    assert report.imports.keys().isdisjoint({"tsbatch", "captum", "matplotlib", "pytest"})


def test_notes(make_mar, state):
    report = Report(archive=make_mar(OURS), name="m", version=None, about={"own_batch_size": None})
    (note,) = checking._notes(report)
    assert "the archive sets no batchSize" in note


def test_requirements_are_not_installed(make_mar, state, monkeypatch):
    monkeypatch.setattr(checking.ModelSource, "requirements", "requirements.txt")
    report = Report(archive=make_mar(OURS), name="m", version=None, about={"own_batch_size": 4})
    (note,) = checking._notes(report)
    assert "install_py_dep_per_model=true" in note


def test_an_archive_in_another_form(tmp_path, make_mar, state):
    import tarfile
    import zipfile

    made = make_mar(OURS, config=SETTINGS)
    folder = tmp_path / "folder" / "m"
    with zipfile.ZipFile(made) as archive:
        archive.extractall(folder)
    packed = tmp_path / "m.tar.gz"
    with tarfile.open(packed, "w:gz") as archive:
        archive.add(folder, "m")
    for path in (folder, packed):
        with checking.unpacked(path) as (work, where):
            assert (where / "handler.py").read_text() == OURS
            assert work.exists()
        assert not work.exists()
    assert (folder / "handler.py").exists()


def test_a_request_that_ends_the_process_is_a_finding(make_mar, state):
    handler = STOCK.format(initialize="pass").replace("return [", "import os; os._exit(7)\n        return [")
    one = {"name": "a", "body": base64.b64encode(b'{"n": 1}').decode(), "content_type": JSON}
    report = check(make_mar(handler), samples=[one], second_worker=False)
    assert report.failure is None
    assert "a request ended the process" in report.findings[0]
    assert "exit code 7" in report.findings[0]
