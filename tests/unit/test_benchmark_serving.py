"""What serving.py makes of its figures, and in which order it measures."""

from __future__ import annotations

import json
from statistics import median

import _ratios
import _serving_report
import pytest
import serving
import worker_profile
from _bench import Case, Run, request_for
from _systems import ALONE, EAGER, EXPERT, KINDS, NOTHING_SET, RECOMMENDED, System, sweep
from load import Load, split_requests


def test_a_ratio_is_made_within_its_turn():
    # The machine got twice as fast on the way.
    spread = _ratios.ratios([100, 200, 180], [50, 100, 120])
    assert (spread.median, spread.least, spread.most) == (2.0, 1.5, 2.0)
    assert spread.text() == "2.00 (1.50 to 2.00)"
    with pytest.raises(ValueError, match="zip"):
        _ratios.ratios([1, 2], [1])


def test_turns_go_there_and_back():
    assert [_ratios.turn("abc", number) for number in range(3)] == [
        ["a", "b", "c"],
        ["c", "b", "a"],
        ["a", "b", "c"],
    ]


def test_blocks_are_dealt_out_like_cards():
    assert _ratios.in_blocks([1, 2, 3, 4, 5, 6], 3) == [[1, 3, 5], [2, 4, 6]]
    with pytest.raises(ValueError, match="7 cannot be cut into blocks of 3"):
        _ratios.in_blocks([1] * 7, 3)


def test_requests_survive_the_pipe():
    fields = {"Host": "here", "Authorization": "Bearer x"}
    whole = [
        request_for("/predictions/m", fields, {"inputs": text})
        for text in ("short", "zwölf\r\n\r\nContent-Length: 3\r\n\r\n", "")
    ]
    assert list(split_requests(b"".join(whole))) == whole
    head, _, body = whole[0].partition(b"\r\n\r\n")
    assert head.splitlines()[0] == b"POST /predictions/m HTTP/1.1"
    assert json.loads(body) == {"inputs": "short"}


@pytest.fixture
def clock(monkeypatch):
    """A clock that a test moves."""

    class Clock:
        now = 0.0

    monkeypatch.setattr("load.time.perf_counter", lambda: Clock.now)
    return Clock


def test_a_load_measures_whole_rounds_after_its_warm_up(clock):
    import asyncio

    async def answers():
        load = Load([b"a", b"b"], round_size=4, warm_up=3, seconds=9.5)
        sent = [load.next_request() for _ in range(2)]
        while not load.over:
            clock.now += 1.0
            load.answered(clock.now)
            sent.append(load.next_request())
        assert sent.pop() is None
        assert not load.done.done(), "one is still on its way"
        load.answered(99.0)
        await load.done
        return load.figures(), sent

    figures, sent = asyncio.run(answers())
    assert sent[:4] == [b"a", b"b", b"a", b"b"]
    assert (figures.requests, figures.seconds, figures.rate) == (12, 12.0, 1.0), "three rounds, since two end too early"
    assert figures.answers == 3 + 12 + 1 == len(sent)
    assert figures.p50 == median(range(4, 16))
    assert figures.p99 == pytest.approx(14.9, abs=0.05)


@pytest.mark.parametrize("kind", KINDS)
def test_a_sweep_has_other_settings_every_time(kind):
    for size in ("small", "large"):
        systems = sweep(kind, 2, size)
        assert len({system.name for system in systems}) == len(systems) > 3
        assert {(system.workers, system.threads) for system in systems} == {(1, 2), (2, 1)}
    assert {(system.workers, system.threads) for system in sweep(kind, 1, "small")} == {(1, 1)}


def test_a_system_says_what_it_is():
    assert str(EXPERT) == "one by one: 2 workers × 1 thread, batch 1"
    assert RECOMMENDED.settings == "2 workers × default threads, batch 16, delay 5 ms, openvino"
    assert EAGER.settings == "2 workers × default threads, batch 16, delay 5 ms, eager"
    assert EXPERT.name == "one_by_one-w2-t1-b1-d5"
    assert RECOMMENDED.name == "tsbatch-w2-tx-b16-d5-openvino"


def test_the_best_of_the_others_takes_part_once():
    best = {"tsbatch": System("tsbatch", 1, 2, 32), "one_by_one": EXPERT, "padded": System("padded", batch=8)}
    everybody = serving.systems(best)
    assert len(everybody) == len(set(everybody))
    assert System("padded", batch=8) in everybody
    assert System("tsbatch", 1, 2, 32) not in everybody, "ours is measured as the docs recommend it"


@pytest.fixture
def figures():
    """Three turns of every system under one load; tsbatch is four times as fast as all others."""
    case = Case("mixed", 64, 256, 5.0)
    example = System("example_style", batch=8)
    best = {"example_style": example, "one_by_one": EXPERT}
    results = serving.Results(best=best)
    for turn, speed in enumerate([1.0, 2.0, 1.5]):
        for system in serving.systems(best):
            rate = speed * (80.0 if system == RECOMMENDED else 10.0 if system == NOTHING_SET else 20.0)
            results.runs.append(Run(system, case, turn, rate, 100.0, 900.0, 0.012, 13.0, 0.8))
    results.swept = [run for run in results.runs if run.turn == 0 and run.system in (example, EXPERT)]
    results.limits = {serving.packed_ways(2)[0]: [100.0, 160.0, 150.0]}
    return json.loads(json.dumps(results.figures()))


def test_the_tables_say_what_the_issue_asks_for(figures):
    report = _serving_report.report(figures)
    for line in (
        "| × one by one, 2 workers × 1 thread | ≥ 1.40 | 4.00 (4.00 to 4.00) |",
        "| × the example's style, at its best | ≥ 3.00 | 4.00 (4.00 to 4.00) |",
        "| × the best packed way in process | ≥ 0.85 | 0.80 (0.80 to 1.00) |",
        "| 1 worker × default threads, batch 1 | 30.0 (20.0 to 40.0) | 100 / 900 | 13.0 + 0.8 | 4.00 (4.00 to 4.00) |",
        "One by one, two workers with default threads reached 0.50 (0.50 to 0.50) of one worker.",
        "The load generator used at most 1.2% of a core.",
    ):
        assert line in report
    assert _serving_report.rates_of(figures["runs"], ALONE) == [20.0, 40.0, 30.0]


def test_every_load_has_its_targets(figures):
    one, short = Case("mixed", 1, 64, 3.0), Case("short", 32, 256, 3.0)
    results = serving.Results()
    for turn in range(3):
        for system, rate, p50 in ((RECOMMENDED, 19.0, 46.0), (EXPERT, 20.0, 40.0)):
            for case in (one, short):
                results.runs.append(Run(system, case, turn, rate, p50, 900.0, 0.012, 13.0, 0.8))
    figures["runs"] += results.figures()["runs"]
    wanted = _serving_report.wanted_of(figures)
    missed = {case: [target.what for target in targets if not target.met] for case, targets in wanted.items()}
    assert missed == {
        ("mixed", 64): ["× the best packed way in process"],
        ("mixed", 1): ["added P50 latency over one by one, ms"],
        ("short", 32): [],
    }


def test_the_chart_shows_every_system(figures, tmp_path):
    file = tmp_path / "chart.svg"
    _serving_report.draw(figures, file)
    drawn = file.read_text()
    assert drawn.count("<!-- padded to the longest") == 1
    assert "<!-- tsbatch" in drawn


def test_a_look_counts_for_the_outermost_part_it_is_in():
    loop = (
        "thread (1): MainThread;run (ts/worker.py:1);serve_batch (tsbatch/torchserve.py:1);process (tsbatch/loop.py:1)"
    )
    recorded = "\n".join(
        [
            f"{loop};inference (tsbatch/tasks/text_embedding.py:1);forward (bert.py:1) 850",
            f"{loop};preprocess (tsbatch/tasks/text_embedding.py:1);encode (x.py:1) 20",
            f"{loop} 30",
            "thread (1): MainThread;run (ts/worker.py:1);retrieve_msg (ts/protocol/otf_message_handler.py:1) 60",
            "thread (1): MainThread;run (ts/worker.py:1) 40",
            "thread (2): Thread-1;wait (threading.py:1) 1000",
        ]
    )
    assert worker_profile.shares(recorded) == {
        worker_profile.FORWARD: 0.85,
        "waiting for the next batch and reading it": 0.06,
        worker_profile.OTHER: 0.04,
        "the loop itself": 0.03,
        "tokenising": 0.02,
    }
