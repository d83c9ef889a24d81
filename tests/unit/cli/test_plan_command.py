"""The verb plan, as a person calls it."""

from __future__ import annotations

import json

import pytest

from tests.unit.simulation.results import batches, result_of
from tsbatch.cli.program import main

QUICK = ["--requests", "2000", "--max-workers", "2", "--max-batch-size", "4"]


def test_a_page_for_people(capsys, tmp_path):
    page = tmp_path / "plan.html"
    words = ["--service", "10+2*n", "--rate", "800", "--p99", "0.1s", "--price", "3", "--html", str(page)]
    assert main(["plan", *QUICK, *words]) == 0
    out = capsys.readouterr().out
    assert out.startswith("800 requests/s within 100 ms at P99: ")
    for heading in ("cost", "margin %", "P99 with one down", "machines needed", "extrapolated: "):
        assert heading in out
    assert "Cost over the rate" in page.read_text()


def test_an_answer_in_replicas(capsys):
    words = ["--service", "10+2*n", "--rate", "800", "--p99", "100", "--requests", "2000", "--max-batch-size", "4"]
    assert main(["plan", *words, "--replicas", "--json"]) == 0
    (plan,) = json.loads(capsys.readouterr().out)["plans"]
    assert (plan["unit"], plan["settings"]["workers"]) == ("replica", 1)
    assert plan["machines"] >= 800 / (1000 * 4 / 18), "batches of four take 18 ms"
    assert any("several replicas" in sentence for sentence in plan["extrapolated"])
    assert main(["plan", *words, "--replicas"]) == 0
    out = capsys.readouterr().out
    assert f"{plan['machines']} replicas, batchSize 4" in out
    assert "machine" not in out


def test_several_times_a_recorded_load(capsys, tmp_path):
    rows = batches([(second / 50, [1], [5], 20.0, 3.0, 0.0) for second in range(400)])
    path = tmp_path / "bench.json"
    result_of(rows, batch_size=1).save(path)
    words = ["--service", str(path), "--trace", str(path), "--p99", "100", "--scale", "1000,10,100", "--json"]
    assert main(["plan", *QUICK, *words]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["schema"] == 1
    rates = [plan["rate"] for plan in told["plans"]]
    assert rates == pytest.approx([500, 5000, 50000], rel=0.01)
    machines = [plan["machines"] for plan in told["plans"]]
    assert machines[2] == pytest.approx(10 * machines[1], rel=0.02)
    assert machines[0] < machines[1] <= 10 * machines[0]
    assert told["plans"][0]["measured"]


def test_whose_arrivals_a_plan_is_for(capsys, tmp_path):
    rows = batches([(second / 50, [1], [5], 20.0, 3.0, 0.0) for second in range(400)])
    path, page = tmp_path / "bench.json", tmp_path / "plan.html"
    result_of(rows, batch_size=1).save(path)
    words = ["--service", "20ms", "--trace", str(path), "--p99", "100", "--html", str(page)]
    assert main(["plan", *QUICK, *words]) == 0
    said = "arrivals: the run of"
    out = capsys.readouterr().out
    assert f"measured: {said} {path}, open loop: 400 requests in 7.98 s" in out
    assert said in page.read_text()
    assert main(["plan", *QUICK, *words, "--json"]) == 0
    (plan,) = json.loads(capsys.readouterr().out)["plans"]
    assert plan["measured"][0].startswith(said)


def test_a_recording_that_is_too_short_for_what_a_machine_gets(capsys, tmp_path):
    (tmp_path / "times.txt").write_text("".join(f"{time / 50}\n" for time in range(500)))
    words = ["--service", "500ms", "--variation", "0.1", "--trace", str(tmp_path / "times.txt"), "--requests", "5000"]
    words += ["--max-workers", "1", "--max-batch-size", "1"]
    assert main(["plan", *words, "--p99", "600ms"]) == 2
    assert "no settings keep P99 within 600 ms" in capsys.readouterr().err
    assert main(["plan", *words, "--p99", "660ms", "--json"]) == 0
    (plan,) = json.loads(capsys.readouterr().out)["plans"]
    assert plan["at_rate"]["p99"] <= 660


def test_each_rate_is_planned_for_by_itself(capsys):
    words = [
        "--service",
        "10ms",
        "--max-workers",
        "4",
        "--max-batch-size",
        "1",
        "--p99",
        "100",
        "--rate",
        "20",
        "--json",
    ]

    def plans(scale):
        assert main(["plan", *words, "--requests", "2000", "--scale", scale]) == 0
        return json.loads(capsys.readouterr().out)["plans"]

    together = plans("1,2,100")
    assert [plan["settings"]["workers"] for plan in together] == [1, 1, 4]
    assert together[1] == plans("2")[0]


@pytest.mark.parametrize(
    "words,said",
    [
        (["--p99", "100"], "give either --rate or --trace"),
        (["--p99", "100", "--rate", "5", "--trace", "x"], "give either --rate or --trace"),
        (["--p99", "0", "--rate", "5"], "--p99 is 0"),
        (["--p99", "soon", "--rate", "5"], "--p99 is soon; expected a time like 100ms"),
        (["--p99", "100", "--rate", "0"], "--rate is 0"),
        (["--p99", "100", "--rate", "nan"], "--rate is nan"),
        (["--p99", "100", "--rate", "5", "--headroom", "nan"], "--headroom"),
        (["--p99", "100", "--rate", "5", "--headroom", "inf"], "--headroom is inf"),
        (["--p99", "100", "--rate", "5", "--price", "nan"], "--price"),
        (["--p99", "100", "--rate", "5", "--variation", "inf"], "--variation is inf"),
        (["--p99", "100", "--rate", "5", "--overhead", "nan,1,1"], "--overhead is 'nan,1,1'"),
        (["--p99", "100", "--trace", "x", "--arrivals", "uniform"], "--arrivals would be ignored"),
        (["--p99", "100", "--rate", "1e300", "--scale", "1e300"], "the largest --scale of the rate is inf; expected"),
        (["--p99", "100", "--rate", "5", "--scale", "10,x"], "--scale is '10,x'"),
        (["--p99", "3", "--rate", "5"], "no settings keep P99 within 3 ms"),
        (["--rate", "5"], "--p99"),
        (["--p99", "100", "--rate", "5", "--replicas"], "--replicas have one worker each"),
    ],
)
def test_wrong_usage_is_one_line_and_2(words, said, capsys):
    assert main(["plan", "--service", "10ms", *QUICK, *words]) == 2
    error = capsys.readouterr().err
    assert said in error.splitlines()[-1]


def test_a_recording_of_one_moment(tmp_path, capsys):
    (tmp_path / "times.txt").write_text("1\n1\n")
    assert main(["plan", "--service", "10ms", "--p99", "50", "--trace", str(tmp_path / "times.txt")]) == 2
    assert "at one moment" in capsys.readouterr().err
