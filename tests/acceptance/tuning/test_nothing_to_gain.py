"""Nothing to gain is said and changes nothing, on a real server; the simulated part is a unit test."""

from __future__ import annotations

from dataclasses import asdict

from tests.acceptance.tuned import numbers, sleeper, steps_text, tune
from tests.e2e.support import make_archive
from tsbatch.tuning.search_space import ModelSettings

BEST = ModelSettings(workers=4, batch_size=1, delay=1)
"""For four clients there is nothing better: each has a worker of its own, which waits for nobody. With larger batches
it would wait for the delay, and 1 of 50 ms is a gain that runs of a calm machine show."""


def test_a_server_with_nothing_to_gain_is_left_as_it_is(tmp_path, capsys, server_factory, record_property):
    archive = sleeper(tmp_path, BEST, fixed=50, each=0)
    server = server_factory(models=[archive])
    words = ("--data", numbers(tmp_path), "--concurrency", 4, "--duration", 4, "--warm-up", 1)
    told = tune(
        capsys, "sleeper", "--live", "--name", server.instance.name, *words, "--output", tmp_path / "out", "--write"
    )
    record_property("steps", steps_text(told))
    assert told["recommended"] == asdict(BEST)
    assert not told["changed"]
    assert any(note.startswith("nothing to gain") for note in told["notes"])
    assert not (tmp_path / "out" / "model-config.yaml").exists()
    with server.management() as management:
        described = management.describe("sleeper")
    assert (described["minWorkers"], described["batchSize"], described["maxBatchDelay"]) == (4, 1, 1)
    server.stop()


def test_a_machine_made_noisy_asks_for_longer_runs(tmp_path, capsys, record_property):
    """The model's own time differs from second to second by a factor, so that runs of one second say little."""
    archive = sleeper(tmp_path, ModelSettings(1, 4, 1), fixed=0, each=0)  # the best for two clients: both in one batch
    noisy = (
        (tmp_path / "sleeper_handler.py")
        .read_text()
        .replace(
            'self.options["fixed"] + self.options["each"] * len(tensors)',
            "20 * (1 + 4 * (hash(int(time.time() / 1.7)) % 7 / 7))",
        )
    )
    archive = make_archive(tmp_path / "noisy", "sleeper", noisy, config=(tmp_path / "sleeper-config.yaml").read_text())
    words = (
        "--data",
        numbers(tmp_path),
        "--concurrency",
        2,
        "--duration",
        1,
        "--warm-up",
        0.5,
        "--output",
        tmp_path / "out",
    )
    told = tune(capsys, archive, *words)
    record_property("noisy_steps", steps_text(told))
    record_property("noisy_notes", told["notes"])
    assert any("--duration" in note for note in told["notes"])
    assert not told["changed"], "no winner was invented"
