"""A whole tuning of a simulated server: what is written down, ranked and shown."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from _simulated_server import CURVES, SimulatedServer

from tests.unit.tuning.made_up import START, MadeUp
from tsbatch.bench.request_bodies import JSON, Body
from tsbatch.bench.request_log import Progress
from tsbatch.errors import UsageError
from tsbatch.system import console
from tsbatch.tuning.history import History
from tsbatch.tuning.measurement import Bench, Workload
from tsbatch.tuning.objective import Goal
from tsbatch.tuning.page import Screen, render, render_ranking
from tsbatch.tuning.ranking import Traffic
from tsbatch.tuning.search_space import ModelSettings
from tsbatch.tuning.session import (
    SpaceFromHistory,
    TuneConfig,
    TuningTarget,
    open_journal,
    open_target,
    rank,
    tune,
    write_config,
)

CONFIG = {"batchSize": 8, "responseTimeout": 60, "tsbatch": {"schema": 1, "threads": "auto"}}


def config(folder, **values):
    workload = Workload(traffic=Traffic(clients=8), bodies=[Body(b"1", JSON)])
    given = {
        "model": "embed",
        "data": Path("d.jsonl"),
        "goal": Goal(),
        "workload": workload,
        "budget": 36,
        "folder": folder,
    }
    return TuneConfig(**{**given, **values})


def screen(goal=None):
    said = []
    return Screen(console.Step(lambda _, text: said.append(text), "tuning"), goal or Goal(), 36, 10.0), said


def simulated(**values):
    server = SimulatedServer(CURVES["mostly fixed, 40 + 1·n"], Traffic(clients=8), noise=0.01, requests=1500)
    return TuningTarget(server, ModelSettings(1, 8, 100), **values)


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tuned")
    target = simulated(config=dict(CONFIG))
    watched, said = screen()
    return config(folder), target, tune(config(folder), target, watched), said


def test_journal_log_and_report_are_written(done):
    asked, _, outcome, _ = done
    names = {path.name for path in asked.folder.iterdir()}
    assert names == {"journal.jsonl", "log.txt", "report.html"}
    lines = (asked.folder / "journal.jsonl").read_text().splitlines()
    assert json.loads(lines[0])["load"] == "8 clients"
    assert len(lines) == 1 + len(outcome.history.runs)
    assert "Result: " in (asked.folder / "log.txt").read_text(encoding="utf-8")
    assert "Requests/s and P99 of each setting" in (asked.folder / "report.html").read_text(encoding="utf-8")


def test_the_screen_says_how_long_it_may_take_and_the_best_so_far(done):
    said = done[3]
    assert "at most 6 min left" in said[0]
    assert any("best so far requests/s" in text for text in said)
    assert any(text.startswith("candidate (") for text in said)


def test_the_result_is_shown(done, capsys):
    outcome = done[2]
    render(outcome, Goal(), 10)
    out = capsys.readouterr().out
    assert "baseline" in out
    assert "# model-config.yaml" in out
    assert f"batchSize: {outcome.recommended.batch_size}" in out


def test_it_is_not_measured_again(done):
    asked, _, outcome, _ = done
    again = simulated(config=dict(CONFIG))
    assert tune(asked, again, screen()[0]).recommended == outcome.recommended
    assert again.system.runs == 0


def test_other_data_or_another_archive_is_another_tuning(tmp_path):
    archive = tmp_path / "m.mar"
    archive.write_bytes(b"first")
    asked = config(tmp_path / "out", model=str(archive))
    tune(asked, TuningTarget(MadeUp(noise=0.01), START), screen()[0])
    other = Workload(traffic=Traffic(clients=8), bodies=[Body(b"2", JSON)])
    with pytest.raises(UsageError, match=r"another tuning \(different: bodies\)"):
        tune(replace(asked, workload=other), TuningTarget(MadeUp(), START), screen()[0])
    archive.write_bytes(b"second")
    with pytest.raises(UsageError, match=r"another tuning \(different: files\)"):
        tune(asked, TuningTarget(MadeUp(), START), screen()[0])


def test_another_version_of_a_model_is_another_tuning(tmp_path):
    tune(config(tmp_path), TuningTarget(MadeUp(noise=0.01), START, version="1.0"), screen()[0])
    with pytest.raises(UsageError, match=r"another tuning \(different: version\)"):
        tune(config(tmp_path), TuningTarget(MadeUp(), START, version="2.0"), screen()[0])


def test_a_tuning_goes_on_with_more_runs(tmp_path):
    asked, system = config(tmp_path, budget=8), MadeUp(rate=lambda settings: 100.0 * settings.workers, noise=0.01)
    assert tune(asked, TuningTarget(system, START), screen()[0]).ended == "no runs left"
    more = MadeUp(rate=lambda settings: 100.0 * settings.workers, noise=0.01)
    outcome = tune(replace(asked, budget=20), TuningTarget(more, START), screen()[0])
    assert len(more.log) < len(outcome.history.runs) <= 20
    assert len(outcome.history.steps) > 1


def test_random_arrivals_go_on_after_those_that_are_in_the_journal(tmp_path):
    asked = config(tmp_path)
    runs = len(tune(asked, TuningTarget(MadeUp(noise=0.01), START), screen()[0]).history.runs)
    bench = Bench(asked.workload)
    with contextlib.closing(open_journal(asked, TuningTarget(MadeUp(), START, bench=bench))):
        assert bench.runs == runs


def test_a_folder_that_is_only_called_like_the_model_is_none(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("embed").mkdir()
    assert config(tmp_path, model="embed").archive is None
    Path("embed", "MAR-INF").mkdir()
    Path("embed", "MAR-INF", "MANIFEST.json").write_text("{}")
    assert config(tmp_path, model="embed").archive == Path("embed")
    assert config(tmp_path, model="embed", live=True).archive is None


def test_the_recommended_config_is_the_archives_own_with_what_changed(done, tmp_path):
    _, target, outcome, _ = done
    path = write_config(target, outcome, tmp_path)
    config = yaml.safe_load(path.read_text())
    found = outcome.recommended
    assert outcome.changed
    assert (config["minWorkers"], config["batchSize"], config["maxBatchDelay"]) == (
        found.workers,
        found.batch_size,
        found.delay,
    )
    assert (config["responseTimeout"], config["tsbatch"]) == (60, {"schema": 1, "threads": "auto"})
    assert config["startupTimeout"] == 120, "TorchServe's, whatever a server says for files without it"


def test_nothing_is_written_when_nothing_changes(tmp_path, capsys):
    target = TuningTarget(MadeUp(noise=0.01), START)
    outcome = tune(config(tmp_path), target, screen()[0])
    assert not outcome.changed
    capsys.readouterr()
    assert write_config(target, outcome, tmp_path) is None
    assert capsys.readouterr().err == ""
    (tmp_path / "model-config.yaml").write_text("batchSize: 3\n")
    assert write_config(target, outcome, tmp_path) is None
    assert "model-config.yaml is not from this tuning" in capsys.readouterr().err
    assert (tmp_path / "model-config.yaml").read_text() == "batchSize: 3\n"


def test_threads_are_written_where_they_were_tuned(tmp_path):
    target = TuningTarget(MadeUp(rate=lambda settings: 300.0 if settings.threads == 1 else 100.0), START, dict(CONFIG))
    assert target.threads
    outcome = tune(config(tmp_path), target, screen()[0])
    # Nothing is known of the cores that a worker keeps busy, so threads are left alone.
    assert outcome.recommended.threads is None
    changed = outcome.history.start[0].settings.with_value("threads", 1)
    outcome = type(outcome)(outcome.history, changed)
    assert yaml.safe_load(write_config(target, outcome, tmp_path).read_text())["tsbatch"] == {"schema": 1, "threads": 1}


def test_offline_ranks_every_setting_and_measures_none_but_what_is_there(tmp_path, capsys):
    target = simulated()
    ranked = rank(config(tmp_path, goal=Goal(p99=200)), target)
    assert target.system.runs == 4
    assert ranked[0].keeps
    assert ranked[0].figures.throughput > 1.5 * ranked[-1].figures.throughput
    kept = [one.keeps for one in ranked]
    assert kept == sorted(kept, reverse=True)
    render_ranking(ranked[:3])
    assert "requests/s" in capsys.readouterr().out


def test_offline_needs_answers_that_tell_handler_times(tmp_path):
    with pytest.raises(UsageError, match="have no handler times"):
        rank(config(tmp_path), TuningTarget(MadeUp(), START))


def test_the_space_has_no_more_workers_than_the_allowed_memory(tmp_path):
    target = simulated()
    runs = [target.system.measure(target.start)]
    search = SpaceFromHistory(config(tmp_path, goal=Goal(memory=4.5e8)), target)
    assert search.space(History(start=runs, runs=runs)).workers == [1, 2]


def test_the_sampler_is_taken_when_asked_for(tmp_path):
    target = simulated()
    runs = [target.system.measure(target.start)]
    proposed = SpaceFromHistory(config(tmp_path, search="tpe"), target).propose(History(start=runs, runs=runs))
    assert "Optuna" in proposed.why


@pytest.mark.parametrize("live", [True, False])
def test_an_archive_must_be_there_and_is_never_live(live, tmp_path):
    says = "--live needs a model on a running server" if live else "no such archive"
    with pytest.raises(UsageError, match=says), open_target(config(tmp_path, model="m.mar", live=live), screen()[0]):
        pass


def test_how_a_run_goes_is_shown_on_terminals_only(monkeypatch):
    watched, said = screen()
    watched.run(Progress(1.0, True, 10, 0, 10.0, 5.0, 9.0, None, None))
    watched.message("loading")
    assert said == []
    monkeypatch.setattr(console, "console", type("Terminal", (), {"is_terminal": True})())
    watched.run(Progress(1.0, True, 10, 0, 10.0, 5.0, 9.0, None, None))
    watched.message("loading")
    assert said[0].endswith("10 requests/s, P50 5.0 ms, P99 9.0 ms")
    assert said[1] == "loading"
