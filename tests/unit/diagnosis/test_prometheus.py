from __future__ import annotations

import http.server
import threading

import pytest

from tsbatch.diagnosis.model_facts import Known
from tsbatch.diagnosis.prometheus import MEANS_ONLY, NOT_SEPARATE, Scrape, between, from_prometheus, parse
from tsbatch.diagnosis.regimes import Regime
from tsbatch.errors import ServerError, UsageError

# Of a real TorchServe 0.12.0, cut.
REAL = """\
# HELP TimedRequests Torchserve prometheus counter metric with unit: count
# TYPE TimedRequests counter
TimedRequests{ModelName="eight",Level="Model",Hostname="vm",} 40.0
TimedRequests{ModelName="one",Level="Model",Hostname="vm",} 20.0
HandlerTime{ModelName="eight",Level="Model",Hostname="vm",} 40.619
AssemblyWaitTime{ModelName="eight",Level="Model",Hostname="vm",} 257.3
InferenceTime{ModelName="eight",Level="Model",Hostname="vm",} 201.822
ts_queue_latency_microseconds{model_name="eight",model_version="default",hostname="vm",} 79542.57199999999
ts_inference_latency_microseconds{model_name="eight",model_version="default",hostname="vm",} 2044253.8779999998
ts_inference_requests_total{model_name="eight",model_version="default",hostname="vm",} 40.0
ts_inference_requests_total{model_name="eight",model_version="2.0",hostname="vm",} 2.0
CPUUtilization{Level="Host",Hostname="vm",} 100.0
"""


def grown(**values):
    before = Scrape(0.0, {"m": dict.fromkeys(values, 100.0)})
    after = Scrape(10.0, {"m": {name: 100.0 + value for name, value in values.items()}})
    return before, after


def test_lines_of_a_real_server():
    models = parse(REAL)
    assert sorted(models) == ["eight", "one"]
    assert models["eight"]["ts_inference_latency_microseconds"] == 2044253.8779999998
    assert models["eight"]["ts_inference_requests_total"] == 42
    assert models["one"] == {"TimedRequests": 20}


def test_means_over_the_interval():
    # 200 requests: 100 ms each, of which 70 waiting; 40 of those assembling. 25 batches of 8, 30 ms each.
    before, after = grown(
        ts_inference_requests_total=200, ts_inference_latency_microseconds=200 * 100_000,
        ts_queue_latency_microseconds=200 * 70_000, TimedRequests=50, QueueWaitTime=50 * 30, AssemblyWaitTime=50 * 40,
        InferenceTime=25 * 24, EncodeTime=25 * 6,
    )  # fmt: skip
    found = between(before, after, model=None, known=Known(batch_size=16, max_batch_delay=50))
    assert [round(found.split.part(name).mean, 3) for name in ("queue", "assembly", "handler", "latency")] == [
        30,
        40,
        30,
        100,
    ]
    assert [round(found.split.part(name).mean, 3) for name in ("inference", "encode")] == [24, 6]
    assert found.split.part("queue").p99 is None
    assert found.evidence.rate == 20
    assert found.evidence.busy == pytest.approx(25 * 30 / 10_000)
    assert found.evidence.batch == pytest.approx(8)
    assert found.evidence.full == 0.5
    assert found.finding.regime is Regime.ASSEMBLY
    assert found.remarks == [MEANS_ONLY]
    assert found.known.model == "m"


def test_queue_and_assembly_of_other_handlers_are_one_figure():
    before, after = grown(
        ts_inference_requests_total=100, ts_inference_latency_microseconds=100 * 90_000,
        ts_queue_latency_microseconds=100 * 70_000,
    )  # fmt: skip
    found = between(before, after, model="m", known=Known())
    assert (found.evidence.queue, found.evidence.assembly, found.evidence.handler) == (70, 0, 20)
    assert found.evidence.batch is None
    assert found.remarks == [MEANS_ONLY, NOT_SEPARATE]


def test_waits_by_the_clients_clock_are_no_longer_than_the_servers():
    before, after = grown(
        ts_inference_requests_total=10, ts_inference_latency_microseconds=10 * 50_000,
        ts_queue_latency_microseconds=10 * 20_000, TimedRequests=10, AssemblyWaitTime=10 * 23,
    )  # fmt: skip
    found = between(before, after, model="m", known=Known())
    assert (found.evidence.queue, found.evidence.assembly) == (0, 20)


def test_nothing_there_and_nothing_asked():
    with pytest.raises(UsageError, match="metrics_mode=prometheus"):
        between(Scrape(0, {}), Scrape(1, {}), model=None, known=Known(), source="http://h:8082")
    before, after = grown(ts_inference_requests_total=0)
    with pytest.raises(UsageError, match="m answered no request while it was watched; models there: m"):
        between(before, after, model=None, known=Known())


@pytest.fixture
def address():
    pages = iter([REAL, REAL.replace("2044253.8779999998", "2944253.8779999998").replace("} 40.0\nts_", "} 50.0\nts_")])

    class Pages(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200 if self.path == "/metrics" else 404)
            self.end_headers()
            self.wfile.write(next(pages).encode())

        def log_message(self, *arguments):
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Pages) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_two_scrapes_of_an_address(address):
    waited = []
    found = from_prometheus(address, seconds=3, wait=waited.append)
    assert waited == [3]
    assert (found.known.model, found.evidence.requests, round(found.evidence.latency, 6)) == ("eight", 10, 90)


def test_an_address_that_is_none(address):
    with pytest.raises(UsageError, match=r"answered 404; expected TorchServe's metrics address \(port 8082\)"):
        from_prometheus(f"{address}/other/metrics", seconds=1)
    with pytest.raises(ServerError, match="cannot reach"):
        from_prometheus("http://127.0.0.1:9", seconds=1)
