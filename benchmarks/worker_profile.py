#!/usr/bin/env python3
"""Profile the wall time of a worker under load: py-spy samples its main thread 100 times per second.

    python benchmarks/worker_profile.py            print a table
    python benchmarks/worker_profile.py --write    write the table into docs/speed.md

tsbatch serves the mixed corpus to 64 clients with the settings of docs/speed.md. Each sample counts for the first
function of the list ``PARTS`` that is on the thread's stack.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import psutil
from _bench import Bench, Case
from _corpus import corpora, minilm_tokens
from _ratios import Spread
from _systems import RECOMMENDED, model_dir
from _tables import Target, deliver, figures_of, machine, options, progress, table

PAGE: Final = Path(__file__).resolve().parents[1] / "docs" / "speed.md"
BEGIN: Final = "<!-- measured by benchmarks/worker_profile.py -->"
HEADS: Final = ("the worker's main thread", "share of wall time")
CLIENTS: Final = 64
FORWARD: Final = "forward pass, with packing and pooling"
MIN_SHARE: Final = 0.85
"""Required share of the forward pass."""

PARTS: Final = {
    "inference (tsbatch/": FORWARD,
    "collate (tsbatch/": "collating",
    "preprocess (tsbatch/": "tokenising",
    "postprocess (tsbatch/": "normalising",
    "_reply (tsbatch/": "encoding",
    "_decode (tsbatch/": "decoding",
    "_emit (tsbatch/": "metrics",
    "process (tsbatch/": "the loop itself",
    "serve_batch (tsbatch/": "the adapter",
    "retrieve_msg (": "waiting for the next batch and reading it",
    "sendall (": "writing the answers",
    "create_predict_response (": "writing the answers",
}
"""By function: the part of the time; the first function that occurs in a stack applies."""
OTHER: Final = "the rest of TorchServe's loop"


def part_of(stack: str) -> str:
    """Find the part for a stack in py-spy's raw format, ``outer (file:1);inner (file:2)``."""
    return next((part for sign, part in PARTS.items() if sign in stack), OTHER)


def shares(recorded: str) -> dict[str, float]:
    """Compute the share of each part in all samples of main threads, largest first."""
    samples: Counter[str] = Counter()
    for line in recorded.splitlines():
        stack, _, count = line.rpartition(" ")
        if "MainThread" in stack.partition(";")[0]:
            samples[part_of(stack)] += int(count)
    return {part: round(count / samples.total(), 4) for part, count in samples.most_common()}


def record(pids: Sequence[int], seconds: int, folder: Path) -> str:
    """Sample these processes with py-spy and return its output in the raw format.

    Raises:
        SystemExit: py-spy is not installed, or lacks the permission.
    """
    program = shutil.which("py-spy", path=str(Path(sys.executable).parent)) or shutil.which("py-spy")
    if program is None:
        raise SystemExit('worker_profile: py-spy is not installed; run pip install "tsbatch[dev]"')
    files = [folder / f"{pid}.raw" for pid in pids]
    options = ["--idle", "--threads", "--format", "raw", "--rate", "100"]
    options += ["--duration", str(seconds)]
    running = [
        subprocess.Popen([program, "record", *options, "--pid", str(pid), "--output", str(file)], stdout=sys.stderr)
        for pid, file in zip(pids, files, strict=True)
    ]
    codes = [process.wait() for process in running]
    if any(codes):
        raise SystemExit("worker_profile: py-spy failed; see its message above (it may need root)")
    return "\n".join(file.read_text(encoding="utf-8") for file in files)


def measure(seconds: int) -> dict[str, float]:
    """Measure the shares in one run."""
    texts = corpora(512, minilm_tokens(model_dir()))
    with tempfile.TemporaryDirectory(prefix="tsbatch-profile-") as name, Bench(Path(name), texts, progress()) as bench:
        bench.start(RECOMMENDED)
        bench.run(RECOMMENDED, Case("mixed", CLIENTS, 256, 2.0), 0)
        children = psutil.Process(bench.server.pid).children()
        workers = [child.pid for child in children if "model_service_worker" in " ".join(child.cmdline())]
        with bench.loaded(RECOMMENDED, Case("mixed", CLIENTS, 256, seconds + 5.0)):
            recorded = record(workers, seconds, Path(name))
    return shares(recorded)


def report(figures: Mapping[str, Any]) -> str:
    """Render the table."""
    about = figures["machine"]
    rows = [[part, f"{share:.1%}"] for part, share in figures["shares"].items()]
    where = f"{about['cores']} cores ({about['cpu']}), {RECOMMENDED.settings}, {CLIENTS} clients, the mixed corpus."
    return f"{where}\n\n{table(HEADS, rows)}"


def main(words: list[str]) -> int:
    """Measure and print; return exit code 1 if the share of the forward pass is below the required one."""
    parser = options("Profile a worker's wall time.")
    parser.add_argument("--seconds", type=int, default=20, help="sampling time in seconds (default 20)")
    chosen = parser.parse_args(words)
    os.environ["HF_HUB_OFFLINE"] = "1"
    figures = figures_of(chosen, lambda: {"schema": 1, "machine": machine(), "shares": measure(chosen.seconds)})
    share = Spread.of([figures["shares"].get(FORWARD, 0.0)])
    return deliver(chosen, figures, report(figures), PAGE, BEGIN, [Target(FORWARD, MIN_SHARE, share)])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
