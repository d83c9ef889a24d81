"""The load generator against wrk on the same servers, and against a server that stalls on purpose.

Its own cost is measured by ``benchmarks/load_generator.py``. wrk is Debian's; it is installed where that is possible,
and otherwise the comparison is reported as not run.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import statistics
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import pytest

from benchmarks.load_generator import null_server
from tests.e2e import timing
from tsbatch.bench.generator_process import generate
from tsbatch.bench.http_client import Address
from tsbatch.bench.load_generator import Load
from tsbatch.bench.request_bodies import JSON, Body
from tsbatch.bench.result_file import Run
from tsbatch.bench.send_times import Arrivals
from tsbatch.serving.server import Server

TURNS: Final = 5
SECONDS: Final = 6
STALL, EVERY, STALLS, DELAY_MS = 1.0, 10.0, 4, 2
RATE: Final = 400.0
CLIENTS: Final = 4


@pytest.fixture(scope="module")
def wrk() -> str:
    """The program, installed if need be."""
    if not shutil.which("wrk") and shutil.which("apt-get") and os.geteuid() == 0:
        subprocess.run(["apt-get", "install", "-y", "-qq", "wrk"], check=False, capture_output=True, timeout=300)
    program = shutil.which("wrk")
    if program is None:
        pytest.skip("wrk is not there and cannot be installed")
    return program


@dataclass(frozen=True)
class Figures:
    """What a load generator reports: requests a second, and ms."""

    rate: float
    p50: float
    p99: float

    @classmethod
    def median(cls, turns: list[Figures]) -> Figures:
        """Figure by figure."""
        return cls(*(statistics.median(getattr(turn, name) for turn in turns) for name in ("rate", "p50", "p99")))


def milliseconds(text: str) -> float:
    """A time as wrk writes it."""
    number, unit = re.fullmatch(r"([\d.]+)(us|ms|s|m)", text).groups()
    return float(number) * {"us": 0.001, "ms": 1, "s": 1000, "m": 60_000}[unit]


def wrk_script(folder: Path, headers: dict[str, str], body: str) -> Path:
    """Tells wrk what to send."""
    lines = [f"wrk.headers[{json.dumps(name)}] = {json.dumps(value)}" for name, value in headers.items()]
    path = folder / "post.lua"
    path.write_text("\n".join(['wrk.method = "POST"', f"wrk.body = {json.dumps(body)}", *lines, ""]))
    return path


def by_wrk(program: str, url: str, script: Path, clients: int) -> Figures:
    """One run of wrk."""
    command = [program, "-t1", f"-c{clients}", f"-d{SECONDS}s", "--latency", "-s", str(script), url]
    told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert "Non-2xx" not in told, told
    found = {share: milliseconds(re.search(rf"^ +{share}% +(\S+)$", told, re.MULTILINE)[1]) for share in (50, 99)}
    return Figures(float(re.search(r"Requests/sec: +([\d.]+)", told)[1]), found[50], found[99])


def by_ours(url: str, headers: dict[str, str], body: str, clients: int) -> Figures:
    """One run of ours."""
    load = Load(
        address=Address.parse(url),
        bodies=[Body(body.encode(), JSON)],
        headers=headers,
        clients=clients,
        seconds=SECONDS,
    )
    outcome = generate(load)
    assert outcome.errors == []
    p50, p99 = np.percentile(outcome.samples.latency, [50, 99])
    return Figures(outcome.answered / outcome.seconds, float(p50), float(p99))


def both(program: str, url: str, folder: Path, clients: int, headers: dict[str, str]) -> tuple[Figures, Figures]:
    """Medians of wrk's runs and of ours, which took turns."""
    body = json.dumps({"inputs": 1})
    script = wrk_script(folder, {"Content-Type": "application/json", **headers}, body)
    theirs, ours = [], []
    for _ in range(TURNS):
        theirs.append(by_wrk(program, url, script, clients))
        ours.append(by_ours(url, headers, body, clients))
    return Figures.median(theirs), Figures.median(ours)


def assert_alike(theirs: Figures, ours: Figures, record_property, name: str) -> None:
    record_property(f"{name}_wrk", json.dumps([round(value, 2) for value in (theirs.rate, theirs.p50, theirs.p99)]))
    record_property(f"{name}_ours", json.dumps([round(value, 2) for value in (ours.rate, ours.p50, ours.p99)]))
    assert ours.rate == pytest.approx(theirs.rate, rel=0.05)
    for figure in ("p50", "p99"):
        one, other = getattr(ours, figure), getattr(theirs, figure)
        assert abs(one - other) <= max(1.0, 0.05 * other), figure


def test_as_wrk_on_a_server_of_a_few_milliseconds(wrk, tmp_path, record_property):
    with null_server("--delay", "4") as url:
        theirs, ours = both(wrk, url, tmp_path, 8, {})
    assert_alike(theirs, ours, record_property, "null_server")


def test_as_wrk_on_a_torchserve(wrk, tmp_path, record_property):
    with Server.start(models=timing.archives(tmp_path), name="acceptance-load") as server:
        timing.warm_up(server, 10_000)
        url = f"{server.inference_address}/predictions/eight"
        theirs, ours = both(wrk, url, tmp_path, 16, server.headers("inference"))
    assert_alike(theirs, ours, record_property, "torchserve")


@pytest.fixture(scope="module")
def stalling():
    """A server that answers in 2 ms, and stalls for the last second of every ten."""
    with null_server("--delay", str(DELAY_MS), "--stall", str(STALL), "--every", str(EVERY)) as url:
        yield url


def stalled_load(url: str, **loop) -> Run:
    load = Load(address=Address.parse(url), bodies=[Body(b"1", JSON)], seconds=STALLS * EVERY, **loop)
    outcome = generate(load)
    assert outcome.errors == []
    return outcome


def test_an_open_loop_reports_the_stalls(stalling, record_property):
    outcome = stalled_load(stalling, arrivals=Arrivals("poisson", RATE, seed=3))
    latency = outcome.samples.latency
    # Whatever arrives in a stall waits for its end, so a share of (stall - x) / every waits longer than x.
    for share in (0.92, 0.95, 0.99):
        expected = (STALL - (1 - share) * EVERY) * 1000
        found = float(np.quantile(latency, share))
        record_property(f"open_p{share * 100:g}_ms", round(found))
        record_property(f"open_p{share * 100:g}_expected_ms", round(expected))
        assert found == pytest.approx(expected, abs=100)
    median = float(np.quantile(latency, 0.5))
    record_property("open_p50_ms", round(median, 1))
    assert median < 10
    slow = float((latency > 100).mean())
    record_property("open_share_over_100_ms", round(slow, 4))
    assert slow == pytest.approx((STALL - 0.1) / EVERY, abs=0.01)


def test_a_closed_loop_hides_them(stalling, record_property):
    outcome = stalled_load(stalling, clients=CLIENTS)
    latency = outcome.samples.latency
    p99 = float(np.quantile(latency, 0.99))
    record_property("closed_p99_ms", round(p99, 2))
    record_property("closed_p50_ms", round(float(np.median(latency)), 1))
    record_property("closed_max_ms", round(float(latency.max())))
    # Each client has one request on its way when a stall begins; that is all they see of it.
    expected = CLIENTS * STALLS
    slow = int((latency > 100).sum())
    record_property("closed_over_100_ms", f"{slow} of {len(latency)}, expected {expected}")
    assert p99 < 10 * DELAY_MS
    assert abs(slow - expected) <= CLIENTS
    assert latency.max() == pytest.approx(STALL * 1000, abs=80)


def test_so_does_wrk(wrk, stalling, tmp_path, record_property):
    theirs = by_wrk(wrk, stalling, wrk_script(tmp_path, {}, "1"), CLIENTS)
    record_property("wrk_p99_ms", theirs.p99)
    assert theirs.p99 < 10 * DELAY_MS
