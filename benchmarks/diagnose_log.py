"""Measure the speed and the memory use of ``tsbatch diagnose`` on a huge ts_log.log.

    python benchmarks/diagnose_log.py [--gigabytes 2] [--json]

Writes a log in the format of TorchServe 0.12.0 (4 workers, batches of 1 to 8, every line of org.pytorch.serve twice,
metric lines in between) with known latencies, drawn at random here, and runs the command on it in a separate process
with its progress bar. The command also runs on a tenth of the log, because memory must not grow with the log. The exit
code is 1 if the rate is below the goal, the memory grows, or the figures differ from the drawn ones.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, Final

import numpy as np
from _tables import finish

GOAL: Final = 50.0
"""Megabytes per second."""

MAX_GROWTH: Final = 1.15
"""Maximum ratio of the peak memory on the whole log to that on a tenth of it."""

GIGABYTE: Final = 10**9
WORKERS: Final = 4
LARGEST: Final = 8
BEGIN: Final = datetime(2026, 1, 1, tzinfo=timezone.utc)

HEAD: Final = (
    "{t} [DEBUG] {w} org.pytorch.serve.wlm.WorkerThread - Flushing req.cmd PREDICT repeats 1 to backend at: {f}\n" * 2
    + "{t} [INFO ] {w} org.pytorch.serve.wlm.WorkerThread - Looping backend response at: {f}\n" * 2
    + "{t} [INFO ] {w}-stdout MODEL_LOG - Backend received inference at: 1795987216\n"
    + "{t} [INFO ] {w}-stdout org.pytorch.serve.wlm.WorkerLifeCycle - result=[METRICS]PredictionTime.Milliseconds:{h}"
    "|#ModelName:m,Level:Model|#type:GAUGE|#hostname:vm,1795987216,{ids}, pattern=[METRICS]\n"
    * 2
    + "{t} [INFO ] {w}-stdout MODEL_METRICS - PredictionTime.ms:{h}|#ModelName:m,Level:Model|#hostname:vm,"
    "requestID:{ids},timestamp:1795987216\n"
)
DIMENSIONS: Final = "#model_name:m,model_version:default|#hostname:vm,timestamp:1795987216"
REQUEST: Final = (
    "{t} [INFO ] {w} org.pytorch.serve.wlm.BatchAggregator - Sending response for jobId {id}\n" * 2
    + '{t} [INFO ] {w} ACCESS_LOG - /127.0.0.1:52182 "POST /predictions/m HTTP/1.1" 200 17\n'
    + "{t} [INFO ] {w} TS_METRICS - Requests2XX.Count:1.0|#Level:Host|#hostname:vm,timestamp:1795987216\n"
    + "{t} [INFO ] {w} TS_METRICS - ts_inference_latency_microseconds.Microseconds:17119.396|"
    + DIMENSIONS
    + "\n"
    + "{t} [INFO ] {w} TS_METRICS - ts_queue_latency_microseconds.Microseconds:5144.027|"
    + DIMENSIONS
    + "\n"
    + "{t} [DEBUG] {w} org.pytorch.serve.job.RestJob - Waiting time ns: {wait}, Backend time ns: {took}\n" * 2
    + "{t} [INFO ] {w} TS_METRICS - QueueTime.Milliseconds:5.0|#Level:Host|#hostname:vm,timestamp:1795987216\n"
)
TAIL: Final = (
    "{t} [INFO ] {w} org.pytorch.serve.wlm.WorkerThread - Backend response time: 11\n" * 2
    + "{t} [INFO ] {w} TS_METRICS - WorkerThreadTime.Milliseconds:1.0|#Level:Host|#hostname:vm,timestamp:1795987216\n"
    + "{t} [INFO ] epollEventLoopGroup-3-1 TS_METRICS - ts_inference_requests_total.Count:1.0|"
    + DIMENSIONS
    + "\n"
)


def write_log(path: Path, size: int) -> array[float]:
    """Write a log of at least ``size`` bytes; return the latency of each request, in ms."""
    chance = random.Random(0)
    latencies = array("d")
    moment = 0
    with path.open("w", encoding="utf-8") as log:
        while log.tell() < size:
            log.writelines(_batch(chance, moment + step * 7, step % WORKERS, latencies) for step in range(200))
            moment += 200 * 7
    return latencies


def _batch(chance: random.Random, at: int, worker: int, latencies: array[float]) -> str:
    moment = BEGIN + timedelta(milliseconds=at)
    begin = {
        "t": f"{moment:%Y-%m-%dT%H:%M:%S},{at % 1000:03}",
        "w": f"W-{9000 + worker}-m_1.0",
        "f": int(BEGIN.timestamp() * 1000) + at,
    }
    ids = [f"{chance.getrandbits(128):032x}" for _ in range(chance.randint(1, LARGEST))]
    took = chance.uniform(5, 25)
    lines = [HEAD.format(h=round(took - 1, 2), ids=",".join(ids), **begin)]
    for one in ids:
        wait = chance.expovariate(1 / 80)
        latencies.append(wait + took)
        lines.append(REQUEST.format(id=one, wait=int(wait * 1e6), took=int(took * 1e6), **begin))
    lines.append(TAIL.format(**begin))
    return "".join(lines)


def diagnose(folder: Path) -> dict[str, Any]:
    """Run the command on a log folder; return its findings, its duration in seconds and its peak memory in bytes."""
    command = [sys.executable, "-m", "tsbatch", "diagnose", str(folder), "--json"]
    started = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        found = json.loads(process.stdout.read())
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    seconds = time.perf_counter() - started
    return {"found": found, "seconds": seconds, "memory": usage.ru_maxrss * 1024}


def measure(gigabytes: float) -> dict[str, Any]:
    """Measure both logs, one after the other."""
    with tempfile.TemporaryDirectory(prefix="tsbatch-log-") as folder:
        path = Path(folder) / "ts_log.log"
        write_log(path, int(gigabytes * GIGABYTE / 10))
        tenth = diagnose(Path(folder))
        print(f"writing {gigabytes:g} GB ...", file=sys.stderr)
        latencies = write_log(path, int(gigabytes * GIGABYTE))
        size = path.stat().st_size
        whole = diagnose(Path(folder))
    drawn = np.frombuffer(latencies)
    latency = next(part for part in whole["found"]["split"]["parts"] if part["name"] == "latency")
    return {
        "megabytes": round(size / 10**6),
        "requests": len(latencies),
        "requests_found": whole["found"]["evidence"]["requests"],
        "seconds": round(whole["seconds"], 1),
        "megabytes_per_second": round(size / 10**6 / whole["seconds"], 1),
        "memory_megabytes": round(whole["memory"] / 10**6),
        "memory_megabytes_of_a_tenth": round(tenth["memory"] / 10**6),
        "p50_found_over_drawn": round(latency["p50"] / float(np.quantile(drawn, 0.5)), 4),
        "p99_found_over_drawn": round(latency["p99"] / float(np.quantile(drawn, 0.99)), 4),
    }


def missed_targets(figures: dict[str, Any]) -> list[str]:
    """List the missed targets."""
    wrong = []
    if figures["megabytes_per_second"] < GOAL:
        wrong.append(f"{figures['megabytes_per_second']} MB/s is below the goal of {GOAL:g} MB/s")
    if figures["memory_megabytes"] > MAX_GROWTH * figures["memory_megabytes_of_a_tenth"]:
        wrong.append("memory grows with the log")
    if figures["requests_found"] != figures["requests"]:
        wrong.append(f"found {figures['requests_found']} of {figures['requests']} requests")
    off = [name for name in ("p50", "p99") if abs(figures[f"{name}_found_over_drawn"] - 1) > 0.02]
    return wrong + [f"{name} differs from the drawn value" for name in off]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=2.0)
    parser.add_argument("--json", action="store_true", help="print one JSON object on the last line")
    chosen = parser.parse_args(arguments)
    figures = measure(chosen.gigabytes)
    wrong = missed_targets(figures)
    text = "\n".join(f"{name.replace('_', ' '):<30} {value}" for name, value in figures.items())
    return finish(chosen, {**figures, "missed": wrong}, text, wrong)


if __name__ == "__main__":
    sys.exit(main())
