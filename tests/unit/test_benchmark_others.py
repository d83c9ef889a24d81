"""What peers.py and load_time.py make of their figures, and how a peer comes and goes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import _peers
import load_time
import peers
import psutil
import pytest
from _bench import Case
from _peers import PEERS, PeerError, PeerSystem
from load import is_whole

CASE = Case("mixed", 64, 256, 5.0)
VECTOR = [0.6, 0.8]
SERVER = """
import http.server, json, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
open("child", "w").write(str(child.pid))
class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.dumps({"data": [{"embedding": ANSWER}]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


@pytest.fixture
def peer_that(monkeypatch, tmp_path):
    """Make LitServe a program of the test's."""
    monkeypatch.setattr(_peers, "model_dir", lambda: tmp_path)

    def make(source):
        file = tmp_path / "server.py"
        file.write_text(source)
        command = f"{sys.executable} {file} {{port}}"
        monkeypatch.setitem(PEERS, "litserve", _peers.Peer("LitServe", [], command, "/predict", lambda text: text))
        return _peers.serving(PeerSystem("litserve", 1, 2, 32), tmp_path, VECTOR)

    return make


def test_a_peer_ends_with_everything_that_it_started(peer_that):
    with peer_that(SERVER.replace("ANSWER", str(VECTOR))) as server:
        port = int(server.address.rpartition(":")[2])
        alive = [one for one in psutil.Process().children() if one.status() != psutil.STATUS_ZOMBIE]
        process = next(process for process in alive if str(port) in process.cmdline() and process.cwd())
        folder = Path(process.cwd())
        child = psutil.Process(int((folder / "child").read_text()))
    assert not process.is_running()
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE
    assert not folder.exists()


@pytest.mark.parametrize(
    "source, message",
    [
        ("raise SystemExit('no such model')", "its server exited: no such model"),
        (SERVER.replace("ANSWER", "[0.8, -0.6]"), "its answer differs from the expected vector: cosine 0.0000"),
        (SERVER.replace("ANSWER", "None"), "its answer contains no vector"),
    ],
)
def test_a_peer_that_is_not_right_says_why(peer_that, source, message):
    with pytest.raises(PeerError, match=message), peer_that(source):
        pass


def test_a_peer_that_cannot_be_installed_says_why(monkeypatch, tmp_path):
    monkeypatch.setattr(_peers, "ENVIRONMENTS", tmp_path)
    missing = _peers.Peer("LitServe", [f"litserve @ file://{tmp_path}/none.whl"], "", "", str)
    monkeypatch.setitem(PEERS, "litserve", missing)
    monkeypatch.setattr(_peers, "TORCH", "torch")
    with pytest.raises(PeerError, match=r"ERROR: .*none\.whl"):
        _peers.install("litserve")
    assert not (tmp_path / "litserve" / "stamp").exists()


def test_a_sweep_has_batches_of_32_and_none():
    assert [system.batch for system in _peers.sweep("ray", 2, quick=False)] == [1, 8, 32, 1, 8, 32]
    assert {(system.workers, system.threads) for system in _peers.sweep("ray", 2, quick=False)} == {(1, 2), (2, 1)}
    assert {system.workers for system in _peers.sweep("infinity", 2, quick=False)} == {1}


@pytest.fixture
def compared():
    """Two turns; the peer's best is without batching, and tsbatch is twice and five times as fast."""
    results = peers.Results(missing={"infinity": "cannot be installed: no such package"})
    alone, batched = PeerSystem("litserve", 2, 1, 1), PeerSystem("litserve", 2, 1, 32)
    slow = PeerSystem("litserve", 1, 2, 32)
    for system, rate in ((slow, 10.0), (batched, 20.0), (alone, 50.0)):
        results.swept.append(peers.PeerRun(system, CASE, 0, rate, 1.0, 2.0))
    for turn in range(2):
        for system, rate in ((None, 100.0), (alone, 50.0), (batched, 20.0)):
            results.runs.append(peers.PeerRun(system, CASE, turn, rate + turn, 1.0, 2.0))
    return results


def test_a_peer_takes_part_with_its_best_and_its_best_dynamic_setting(compared):
    assert [(system.workers, system.batch) for system in compared.chosen("litserve")] == [(2, 32), (2, 1)]
    assert compared.chosen("ray") == []


def test_the_tables_name_who_is_missing(compared):
    report = peers.report(compared.figures())
    assert "infinity-emb was not measured: it cannot be installed: no such package." in report
    assert "| LitServe | 2 workers × 1 thread, batch 32 | 20.5 (20.0 to 21.0) | 1 / 2 | 4.90 (4.81 to 5.00) |" in report
    assert "| tsbatch on TorchServe | 2 workers × default threads, batch 16, delay 5 ms, openvino | 100.5" in report


def test_a_peer_has_two_targets(compared):
    batched, best = peers.wanted_of(compared.figures())
    assert (batched.what, round(batched.measured.median, 2)) == ("× LitServe with dynamic batching", 4.9)
    assert (best.what, best.measured.median, best.met) == (
        "× LitServe at its best",
        pytest.approx(1.99, abs=0.01),
        True,
    )


def test_a_peer_that_fails_twice_is_missing(monkeypatch, compared):
    def serving(system, programs, expected):
        raise PeerError("no answer")

    comparison = object.__new__(peers.Comparison)
    comparison.results, comparison.programs, comparison.expected = compared, {"litserve": Path()}, []
    comparison.say = lambda message: None
    monkeypatch.setattr(peers, "serving", serving)
    comparison.take_turn(PeerSystem("litserve", 2, 1, 32), CASE, 2)
    assert "LitServe was not measured: it failed twice with 2 workers × 1 thread, batch 32: no answer." in (
        peers.report(compared.figures())
    )
    assert {run.system for run in compared.runs} == {None}


def test_an_earlier_sweep_is_read_again(tmp_path, compared):
    file = tmp_path / "peers.json"
    file.write_text(json.dumps(compared.figures()))
    assert peers.sweep_in(file) == compared.swept


def test_a_chunked_answer_is_whole_with_its_last_chunk():
    head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n"
    assert not is_whole(head, b"5\r\nhello\r\n")
    assert is_whole(head, b"5\r\nhello\r\n0\r\n\r\n")
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n"
    assert (is_whole(head, b"hell"), is_whole(head, b"hello")) == (False, True)


def test_load_time_reports_the_speedup_and_the_memory():
    results = load_time.Results(weights=1_000_000_000)
    for cold in (False, True):
        for way, seconds in (("archive", 5.0), ("folder", 4.0), ("stock", 20.0)):
            results.starts.append(load_time.Start(way, cold, 0, seconds - 1, seconds + cold))
    for way, private in (("archive", 320_000_000), ("folder", 320_000_000), ("stock", 1_300_000_000)):
        results.memory.append(load_time.Memory(way, private, 300_000_000))
    report = load_time.report(results.figures())
    assert "| tsbatch, archive | in the page cache | 5.0 (5.0 to 5.0) | 4.00 (4.00 to 4.00) |" in report
    assert "| tsbatch, archive | dropped | 6.0 (6.0 to 6.0) | 3.50 (3.50 to 3.50) |" in report
    assert "| tsbatch, archive | 320 | 300 | 20 | 2.0% |" in report
    assert all(target.met for target in load_time.wanted_of(results.figures()))
    results.starts = [start for start in results.starts if start.way != "folder"]
    results.starts.append(load_time.Start("folder", False, 0, 5.0, 5.1))
    missed = [target.what for target in load_time.wanted_of(results.figures()) if not target.met]
    assert missed == ["× faster: tsbatch, --format folder"]


@pytest.mark.skipif(not hasattr(load_time.os, "posix_fadvise"), reason="Linux alone has it")
def test_files_are_found_read_and_dropped(tmp_path):
    inside = tmp_path / "folder" / "inside"
    inside.mkdir(parents=True)
    (inside / "weights").write_bytes(b"x" * 100_000)
    assert load_time.files_of(tmp_path) == [inside / "weights"]
    assert load_time.files_of(inside / "weights") == [inside / "weights"]
    load_time.drop(inside / "weights")
    load_time.read(inside / "weights")


def test_a_peer_that_fails_once_is_tried_again(monkeypatch, compared):
    outcomes = iter([PeerError("connection closed"), None])

    def failed_once(system, case, number):
        error = next(outcomes)
        return str(error) if error else None

    comparison = object.__new__(peers.Comparison)
    comparison.results = compared
    monkeypatch.setattr(comparison, "_failed", failed_once, raising=False)
    before = list(compared.runs)
    comparison.take_turn(PeerSystem("litserve", 2, 1, 32), CASE, 2)
    assert next(outcomes, "both used") == "both used"
    assert compared.runs == before
    assert "litserve" not in compared.missing
