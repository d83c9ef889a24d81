"""What is watched beside a load, and how the load itself is shown."""

from __future__ import annotations

import http.server
import json
import os
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, replace
from types import SimpleNamespace

import pytest

from tests.unit.system.fake_gpus import stand_in
from tsbatch.bench import generator_process, target
from tsbatch.bench.http_client import Address
from tsbatch.bench.load_generator import Load
from tsbatch.bench.padding_waste import WasteLog
from tsbatch.bench.progress_view import describe, progress_view
from tsbatch.bench.request_bodies import Body
from tsbatch.bench.request_log import Progress
from tsbatch.bench.resource_monitor import ResourceMonitor
from tsbatch.bench.send_times import Arrivals
from tsbatch.errors import ServerError, UsageError
from tsbatch.serving.management_client import Management
from tsbatch.serving.tokens import FixedToken

BUSY = "block = bytearray(40_000_000); print('up', flush=True)\nwhile True: block[0] = 1"


@pytest.fixture
def busy():
    """A process that uses a core and 40 MB."""
    child = subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE)
    child.stdout.readline()
    yield child
    child.kill()
    child.wait()
    child.stdout.close()


def test_a_busy_process_is_seen(busy):
    monitor = ResourceMonitor({"worker": busy.pid, "gone": 2**22 + 1})
    assert monitor.end() == [], "it has not begun"
    monitor.begin()
    before = time.process_time()
    time.sleep(0.5)
    monitor.sample()
    (used,) = monitor.end()
    assert (used["name"], used["pid"], used["gone"]) == ("worker", busy.pid, False)
    assert 0.2 < used["cpu"] <= 1.1
    assert used["memory_rss"] > 40_000_000
    assert 40_000_000 < used["memory_private"] <= used["memory_rss"]
    assert time.process_time() - before < 0.4, "watching is cheap"


@pytest.mark.skipif(os.name == "nt", reason="the stand-in for nvidia-smi is a shell script")
def test_what_a_process_holds_of_gpus_is_seen(busy, tmp_path, monkeypatch):
    monitor = ResourceMonitor({"worker": busy.pid})
    monitor.begin()
    assert monitor.end()[0]["memory_gpus"] == {}
    stand_in(tmp_path, monkeypatch, apps=[("GPU-a", busy.pid, 3000), ("GPU-a", busy.pid + 1, 1)])
    assert monitor.end()[0]["memory_gpus"] == {"GPU-a": 3000 << 20}


def test_a_process_that_ends_is_reported(busy):
    monitor = ResourceMonitor({"worker": busy.pid})
    monitor.begin()
    busy.kill()
    busy.wait()
    assert monitor.end()[0]["gone"]


LINE = (
    "2026-01-02T03:04:05,678 - PaddingWaste.percent:{waste}|#ModelName:{model},Level:Model|#type:GAUGE|#hostname:h,"
    "1700000000,0b7ec4a2-6a0b-4e26-9c5e-000000000001\n"
)


def test_padding_waste_of_this_run_and_model_alone(tmp_path):
    log = tmp_path / "model_metrics.log"
    log.write_text(LINE.format(waste=90.0, model="m"))
    waste = WasteLog(tmp_path, "m")
    waste.begin()
    assert waste.end() is None
    with log.open("a") as file:
        file.write(LINE.format(waste=20.0, model="m") + LINE.format(waste=99.0, model="other"))
        file.write("HandlerTime.ms:3|...\n" + LINE.format(waste=30.5, model="m"))
    assert waste.end() == 0.2525
    log.write_text(LINE.format(waste=40.0, model="m"))
    waste._tail.offset = 10_000
    assert waste.end() == 0.4, "the log was rotated"


def test_without_a_log_nothing_is_known(tmp_path):
    for folder in (None, tmp_path):
        waste = WasteLog(folder, "m")
        waste.begin()
        assert waste.end() is None


def progress(**changes):
    known = Progress(seconds=1, warm=True, done=10, failed=0, rate=10, p50=1, p99=2, batch=3, capacity=8)
    return replace(known, **changes)


def test_progress_in_words():
    assert describe(progress()) == "10 requests/s, P50 1.0 ms, P99 2.0 ms, batch 3.0/8"
    assert describe(progress(warm=False, p50=None, batch=None, failed=2)) == "warming up, 10 requests/s, 2 failed"


def test_outside_a_terminal_progress_is_a_line_now_and_then(capsys):
    with progress_view(10.0) as show:
        for title in ("one", "two"):
            for seconds in range(5):
                show(title, progress(seconds=seconds))
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["one ...", "one", "one", "two ...", "two", "two"]
    assert "10 requests/s" in lines[1]
    assert lines[2].startswith("one: done in")


def test_the_generators_process_says_why_it_cannot():
    load = Load(address=Address("127.0.0.1", 9, False, "/"), bodies=[Body(b"", "")], arrivals=Arrivals("uniform", 1.0))
    with pytest.raises(ServerError, match="connection refused"):
        generator_process.generate(load)


@dataclass(frozen=True)
class Deadly:
    """A token that ends or fails whoever asks for it."""

    how: str

    def token(self, kind):
        if self.how == "fails":
            raise ZeroDivisionError("nobody expects this")
        os._exit(7)


def test_a_generator_that_dies_or_fails_is_an_error(capfd):
    load = Load(address=Address("127.0.0.1", 9, False, "/"), bodies=[], clients=1, tokens=Deadly("fails"))
    with pytest.raises(ZeroDivisionError, match="nobody expects this"):
        generator_process.generate(load)
    assert capfd.readouterr().err == ""
    load = replace(load, tokens=Deadly("dies"))
    with pytest.raises(ServerError, match=r"the load generator's process ended by itself \(exit code 7\)"):
        generator_process.generate(load)


def test_an_address_is_a_target_and_tells_its_model(monkeypatch):
    monkeypatch.setenv("TSBATCH_TOKEN", "secret")
    found = target.find_target("http://host:8080/predictions/a%20model/2.0")
    assert (found.model, found.settings, found.pids) == ("a model", {}, {})
    assert found.tokens.token("inference") == "secret"
    assert found.to_json()["address"] == "http://host:8080/predictions/a%20model/2.0"
    assert "secret" not in repr(found.to_json())
    assert target.find_target("http://host:8080/ping").model is None
    with pytest.raises(UsageError, match="is not an address"):
        target.find_target("ftp://host/")


DESCRIBED = [
    {
        "modelName": "m",
        "modelVersion": "2.0",
        "minWorkers": 2,
        "maxWorkers": 2,
        "batchSize": 8,
        "maxBatchDelay": 50,
        "responseTimeout": 60,
        "startupTimeout": 60,
        "workers": [{"id": "9000", "pid": 11, "status": "READY"}, {"id": "9001", "pid": 0, "status": "UNLOADING"}],
    }
]


class Manager(http.server.BaseHTTPRequestHandler):
    """Describes one model to whoever has the token."""

    def do_GET(self):
        known = {"/models/m": DESCRIBED, "/models": {"models": [{"modelName": "m", "modelUrl": "m.mar"}]}}
        answer = known.get(self.path.partition("?")[0])
        good = answer and self.headers["Authorization"] == "Bearer secret"
        self.send_response(200 if good else 404)
        self.end_headers()
        self.wfile.write(json.dumps(answer if good else {"message": "no such model"}).encode())

    def log_message(self, *words):
        """Silence."""


@pytest.fixture
def management():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Manager)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_the_server_tells_the_settings_and_workers_of_an_address(management, monkeypatch):
    monkeypatch.setenv("TSBATCH_TOKEN", "secret")
    found = target.find_target("http://host/predictions/m", management=management)
    assert (found.model, found.version) == ("m", "2.0")
    assert found.settings == {
        "batchSize": 8,
        "maxBatchDelay": 50,
        "minWorkers": 2,
        "maxWorkers": 2,
        "responseTimeout": 60,
        "startupTimeout": 60,
        "workers": 1,
    }
    assert found.pids == {"worker 9000": 11}
    assert target.find_target("http://host/other", management=management).settings == {}


def test_a_model_of_a_running_instance(management, monkeypatch, tmp_path):
    instance = SimpleNamespace(
        management=lambda: Management(management, FixedToken("secret")),
        inference_address="http://127.0.0.1:8080",
        tokens=FixedToken("other"),
        process=SimpleNamespace(pid=10),
        log_dir=tmp_path,
        model_store=tmp_path,
    )
    monkeypatch.setattr(target, "reach", {"mine": instance}.get)
    found = target.find_target("m", instance="mine")
    assert found.address == Address("127.0.0.1", 8080, False, "/predictions/m")
    assert (found.tokens.token("inference"), found.log_dir) == ("other", tmp_path)
    assert found.pids == {"worker 9000": 11, "server": 10}
    with pytest.raises(UsageError, match="no such model; the server has: m"):
        target.find_target("m", instance="mine", version="3.0")


def test_the_machine_is_described():
    machine = target.environment()
    assert machine["cores"] >= 1
    assert machine["cpu"]
    assert machine["memory"] > 2**28
