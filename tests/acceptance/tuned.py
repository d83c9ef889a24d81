"""What the acceptance tests of ``tsbatch tune`` share."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from tests.acceptance.regimes import OURS
from tests.e2e.support import make_archive
from tsbatch.bench.request_bodies import JSON, Body
from tsbatch.cli.program import main
from tsbatch.tuning import private_server
from tsbatch.tuning.measurement import Bench, Workload
from tsbatch.tuning.ranking import Traffic
from tsbatch.tuning.search_space import ModelSettings

SENTENCES = Path(__file__).resolve().parents[2] / "scripts" / "quickstart_sentences.txt"
"""196 of them, for the embedding model."""


def sleeper(folder: Path, start: ModelSettings, *, fixed: float, each: float) -> Path:
    """An archive of a model that sleeps ``fixed + each * n`` ms, with these settings."""
    config = (
        f"minWorkers: {start.workers}\nmaxWorkers: {start.workers}\nbatchSize: {start.batch_size}\n"
        f"maxBatchDelay: {start.delay}\nresponseTimeout: 60\nstartupTimeout: 120\n"
        f"handler:\n  fixed: {fixed}\n  each: {each}\n"
    )
    return make_archive(folder, "sleeper", OURS, config=config)


def numbers(folder: Path) -> Path:
    """A file of requests for it."""
    path = folder / "numbers.jsonl"
    path.write_text("1\n2\n3\n")
    return path


def tune(capsys: Any, *words: object, code: int = 0) -> dict[str, Any]:
    """What ``tsbatch tune --json`` says."""
    capsys.readouterr()
    ended = main(["tune", *map(str, words), "--json"])
    captured = capsys.readouterr()
    assert ended == code, captured.err
    told: dict[str, Any] = json.loads(captured.out)
    return told


def private_copy(
    archive: Path, *, clients: int, seconds: float, warm_up: float, bodies: Sequence[Body] = (Body(b"1", JSON),)
) -> AbstractContextManager[private_server.PrivateCopy]:
    """A private copy to measure settings on, one after the other."""
    workload = Workload(traffic=Traffic(clients=clients), bodies=bodies, seconds=seconds, warm_up=warm_up)
    return private_server.private_copy(private_server.of_archive(archive), Bench(workload))


def steps_text(told: dict[str, Any]) -> list[str]:
    """The steps as they would be shown to a colleague."""
    start = told["seen"][0]["figures"]
    lines = [f"start: {start['throughput']:.1f} requests/s, P50 {start['p50']:.0f} ms, P99 {start['p99']:.0f} ms"]
    for step in told["steps"]:
        after = step["after"]
        figures = (
            f"{after['throughput']:.1f} requests/s, P50 {after['p50']:.0f} ms, P99 {after['p99']:.0f} ms"
            if after
            else ""
        )
        lines.append(f"{step['change']}: {figures} ({step['verdict']})")
    return lines
