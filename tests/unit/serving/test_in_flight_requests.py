"""What TorchServe's logs say of a version's work; the lines are a real server's."""

from __future__ import annotations

import itertools

import pytest

from tsbatch.errors import ServerError
from tsbatch.serving import in_flight_requests
from tsbatch.serving.in_flight_requests import InFlight, drain, pinned
from tsbatch.serving.management_client import ModelVersion

OLD = ModelVersion("m", "1.0")
LINE = "2026-11-29T21:38:35,687 [{level}] {worker} org.pytorch.serve.wlm.WorkerThread - {text}\n"
SENT = "Flushing req.cmd PREDICT repeats 1 to backend at: 1795988315687"
BACK = "Backend response time: 3009"


def line(text, worker="W-9000-m_1.0", level="INFO "):
    return 2 * LINE.format(level=level, worker=worker, text=text)  # TorchServe writes each line twice


def write(folder, *lines):
    with (folder / "ts_log.log").open("a") as log:
        log.write("".join(lines))


def test_a_batch_is_computing_from_its_sending_to_its_answer(tmp_path):
    flight = InFlight(tmp_path, OLD)
    assert flight.busy() is None
    write(tmp_path, line("Flushing req.cmd LOAD repeats 1 to backend at: 1", level="DEBUG"), line(BACK))
    assert flight.busy() == 0
    write(tmp_path, line(SENT), line(SENT, "W-9001-m_1.0"))
    assert flight.busy() == 2
    write(tmp_path, line("Sending response for jobId 1"), line(BACK))
    assert flight.busy() == 1
    write(tmp_path, line(BACK, "W-9001-m_1.0"))
    assert flight.busy() == 0


def test_other_versions_and_models_do_not_count(tmp_path):
    write(tmp_path, line(BACK), *(line(SENT, worker) for worker in ("W-9001-m_1.0-r1", "W-9002-mm_1.0", "W-9003-m_1")))
    assert InFlight(tmp_path, OLD).busy() == 0


class Server:
    """A management API whose queue and log change from look to look."""

    def __init__(self, folder, steps):
        self.folder, self.steps, self.looks = folder, iter(steps), 0

    def describe(self, name, version):
        self.looks += 1
        waiting, *lines = next(self.steps)
        write(self.folder, *lines)
        return {
            "jobQueueStatus": {"pendingRequests": waiting},
            "workers": [{"id": "9000"}, {"id": "9001"}],
            "responseTimeout": 120,
            "maxBatchDelay": 500,
        }


@pytest.fixture
def clock(monkeypatch):
    """A second passes with every look."""
    now = itertools.count()
    monkeypatch.setattr(in_flight_requests.time, "monotonic", lambda: next(now) / 3)
    monkeypatch.setattr(in_flight_requests.time, "sleep", lambda seconds: None)


def drained(folder, steps, told=None):
    server = Server(folder, steps)
    drain(server, OLD, folder, (told if told is not None else []).append)
    return server.looks


@pytest.mark.usefixtures("clock")
def test_drained_is_when_nothing_waits_or_computes_for_a_while(tmp_path):
    told = []
    steps = [(3, line(SENT)), (1,), (0,), (0, line(BACK)), *([(0,)] * 50)]
    looks = drained(tmp_path, steps, told)
    assert told == [
        "draining m 1.0: 3 requests waiting, 1 batches computing",
        "draining m 1.0: 1 requests waiting, 1 batches computing",
        "draining m 1.0: 0 requests waiting, 1 batches computing",
        "draining m 1.0: 0 requests waiting, 0 batches computing",
    ]
    assert looks > 4 + 3, "longer than the second and a half that a request may be nowhere to be seen"


@pytest.mark.usefixtures("clock")
def test_a_late_request_starts_the_wait_again(tmp_path):
    steps = [(0, line(BACK)), (0,), (0,), (1,), (0, line(SENT)), (0, line(BACK)), *([(0,)] * 50)]
    assert drained(tmp_path, steps) > 6 + 3


@pytest.mark.usefixtures("clock")
def test_a_log_that_does_not_say_is_waited_out(tmp_path):
    assert drained(tmp_path, [(0,)] * 2000) > 120


@pytest.mark.usefixtures("clock")
def test_a_version_that_does_not_get_done_is_an_error(tmp_path):
    says = r"m 1\.0 does not finish its requests: 2 requests waiting, 1 batches computing, no progress for 150 s"
    with pytest.raises(ServerError, match=says):
        drained(tmp_path, [(2, line(SENT)), *([(2,)] * 2000)])


def test_a_worker_that_was_killed_and_is_gone_is_not_waited_for(tmp_path):
    flight = InFlight(tmp_path, OLD)
    write(tmp_path, line("Flushing req.cmd PREDICT"), line("Flushing req.cmd PREDICT", "W-9001-m_1.0"))
    assert flight.busy(["9000", "9001"]) == 2
    assert flight.busy(["9001"]) == 1
    assert flight.busy([]) == 0


@pytest.mark.usefixtures("clock")
def test_a_version_without_workers_is_drained(tmp_path):
    class Idle(Server):
        def describe(self, name, version):
            return {**super().describe(name, version), "workers": []}

    drain(Idle(tmp_path, [(5,)]), OLD, tmp_path, lambda text: None)


def test_clients_that_pin_a_version_are_counted(tmp_path):
    paths = ["/predictions/m/1.0", "/predictions/m/1.0/more", "/v2/models/m/1.0/infer", "/explanations/m/1.0?x=1"]
    others = ["/predictions/m", "/predictions/m/1.0-r1", "/predictions/mm/1.0", "/models/m/1.0"]
    (tmp_path / "access_log.log").write_text(
        "".join(
            f'2026-11-29T21:38:38,698 - /127.0.0.1:57052 "POST {path} HTTP/1.1" 200 11\n' for path in paths + others
        )
    )
    assert pinned(tmp_path, OLD) == len(paths)
    assert pinned(tmp_path / "nowhere", OLD) == 0
