"""The verb simulate, as a person calls it."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.unit.simulation.results import batches, result_of
from tsbatch.bench.result_file import BenchResult
from tsbatch.cli.program import main
from tsbatch.simulation import workload
from tsbatch.simulation.fitting import read_service
from tsbatch.simulation.overhead import TYPICAL

QUICK = ["--requests", "2000"]


@pytest.fixture
def bench_file(tmp_path):
    rows = batches([(second / 10, [1, 1], [5, 5], 20.0, 3.0, 0.0) for second in range(50)])
    result_of(rows).save(tmp_path / "bench.json")
    return tmp_path / "bench.json"


def simulated(capsys, *words):
    assert main(["simulate", *QUICK, *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_figures_as_of_a_load_test(capsys):
    words = ["--service", "5+2*n", "--workers", "2", "--batch-size", "4", "--max-batch-delay", "5", "--rate", "200"]
    assert main(["simulate", *QUICK, *words]) == 0
    out = capsys.readouterr().out
    assert "simulated: open loop, 200 requests/s (poisson); batchSize 4, maxBatchDelay in ms 5, workers 2" in out
    assert "p99 ms" in out
    assert "extrapolated: the service time" in out


def test_json_is_a_load_test_s_and_the_seed_decides(capsys, tmp_path):
    words = ["--service", "20ms", "--variation", "0.2", "--rate", "30", "--limit", "50", "--queue-size", "3"]
    first, again = simulated(capsys, *words), simulated(capsys, *words)
    assert first["runs"][0]["samples"] == again["runs"][0]["samples"]
    assert first["summary"][0]["goodput"]["limit"] == 50
    assert first["runs"][0]["errors"][0]["status"] == 503
    path = tmp_path / "x.json"
    assert main(["simulate", *QUICK, *words, "--output", str(path), "--html", str(tmp_path / "x.html")]) == 0
    assert len(BenchResult.load(path).samples) == 2000
    assert "simulated" in (tmp_path / "x.html").read_text()
    capsys.readouterr()
    assert main(["diagnose", str(path)]) == 0


def test_every_kind_of_load(capsys, bench_file):
    assert simulated(capsys, "--service", "5ms", "--concurrency", "4", "--think", "3")["load"]["loop"] == "closed"
    bursts = simulated(capsys, "--service", "5ms", "--rate", "100", "--arrivals", "bursts")
    even = simulated(capsys, "--service", "5ms", "--rate", "100", "--arrivals", "uniform")
    assert bursts["summary"][0]["latency"]["p99"]["value"] > even["summary"][0]["latency"]["p99"]["value"]
    traced = simulated(capsys, "--service", "5ms", "--trace", str(bench_file), "--scale", "3")
    assert traced["summary"][0]["requests"] == 300


def test_what_it_rests_on_is_in_every_output(capsys, bench_file, tmp_path):
    page, kept = tmp_path / "x.html", tmp_path / "x.json"
    words = ["--service", str(bench_file), "--trace", str(bench_file), "--workers", "3", "--batch-size", "9"]
    told = simulated(capsys, *words, "--html", str(page), "--output", str(kept))
    recorded = f"the run of {bench_file}, open loop: 100 requests in 4.9 s"
    assert told["load"]["recorded"] == recorded
    remarks = told["summary"][0]["remarks"]
    assert f"arrivals: {recorded}" in remarks
    guesses = [remark for remark in remarks if remark.startswith("extrapolated: ")]
    assert [guess.split(":")[1] for guess in guesses] == [" batches of more than 2 items", " 3 workers"]
    assert BenchResult.load(kept).summary[0]["remarks"] == remarks
    assert all(guess in page.read_text() for guess in guesses)
    assert main(["simulate", *QUICK, *words]) == 0
    out = capsys.readouterr().out
    assert all(f"note: {remark}" in out for remark in remarks)


def test_of_a_long_recording_only_what_is_simulated_is_scaled(capsys, tmp_path, monkeypatch):
    (tmp_path / "times.txt").write_text("".join(f"{time}\n" for time in range(3000)))
    sizes, scale = [], workload.scaled
    monkeypatch.setattr(workload, "scaled", lambda times, *rest: sizes.append(len(times)) or scale(times, *rest))
    words = ["--service", "5ms", "--trace", str(tmp_path / "times.txt")]
    for factor, needed in (("1", 2001), ("100.5", 21), ("0.5", 3000)):
        found = simulated(capsys, *words, "--scale", factor)
        assert found["summary"][0]["requests"] == pytest.approx(min(2000, 3000 * float(factor)), rel=0.05)
        assert sizes[-1] == needed
        part = f", first {needed - 1} s simulated" if needed < 3000 else ""
        assert found["load"]["recorded"].endswith(f": 3000 requests in 2999 s{part}")


def test_the_service_time_of_a_file(capsys, bench_file, tmp_path):
    kept = tmp_path / "service.json"
    told = simulated(capsys, "--service", str(bench_file), "--rate", "10", "--save-service", str(kept))
    assert np.mean(told["runs"][0]["samples"]["handler"]) == pytest.approx(20)
    assert told["environment"]["service_time"] == str(bench_file)
    assert read_service(kept).source == str(bench_file)
    assert (
        main(["simulate", *QUICK, "--service", str(kept), "--rate", "10", "--workers", "3", "--batch-size", "9"]) == 0
    )
    assert capsys.readouterr().out.count("extrapolated: ") == 2


def test_the_overhead_that_somebody_knows(capsys):
    words = ["--service", "20ms", "--rate", "0.1"]
    typical = simulated(capsys, *words)["summary"][0]["latency"]["p50"]["value"]
    assert typical == pytest.approx(20 + TYPICAL.frontend + TYPICAL.of_batch(1), abs=0.01)
    told = simulated(capsys, *words, "--overhead", "3,5,0.5")
    assert told["summary"][0]["latency"]["p50"]["value"] == pytest.approx(28.5)


@pytest.mark.parametrize(
    "words,said",
    [
        (["--service", "5ms"], "expected one of --rate, --concurrency, --trace"),
        (["--service", "5ms", "--rate", "1", "--concurrency", "2"], "--rate and --concurrency"),
        (["--service", "soon", "--rate", "1"], "expected a file of bench or check"),
        (["--service", "absent.json", "--rate", "1"], "absent.json"),
        (["--service", "5ms", "--rate", "-1"], "--rate is -1"),
        (["--service", "5ms", "--rate", "1", "--overhead", "1,2"], "--overhead is '1,2'"),
        (["--service", "5ms", "--rate", "1", "--overhead", "1,2,-3"], "--overhead is"),
        (["--service", "5ms", "--rate", "1", "--variation", "nan"], "--variation"),
        (["--service", "5ms", "--concurrency", "1", "--think", "inf"], "--think is inf"),
        (["--service", "5ms", "--trace", "absent.txt", "--scale", "nan"], "--scale is nan"),
        (["--service", "5ms", "--rate", "1", "--limit", "0"], "--limit is 0"),
        (["--service", "5ms", "--rate", "1", "--limit", "nan"], "--limit is nan"),
        (["--service", "5ms", "--concurrency", "1", "--arrivals", "uniform"], "--arrivals would be ignored"),
        (["--service", "5ms", "--rate", "1", "--think", "5"], "--think would be ignored"),
        (["--service", "5ms", "--rate", "1", "--scale", "2"], "--scale would be ignored"),
        (["--service", "5ms", "--trace", "absent.txt"], "absent.txt"),
        (["--rate", "1"], "--service"),
    ],
)
def test_wrong_usage_is_one_line_and_2(words, said, capsys):
    assert main(["simulate", *words]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_a_file_has_its_own_spread(bench_file, capsys):
    assert main(["simulate", "--service", str(bench_file), "--rate", "1", "--variation", "0.1"]) == 2
    assert "own spread" in capsys.readouterr().err
