#!/usr/bin/env python3
"""Where the wall time of a worker goes under load: py-spy looks at its main thread 100 times a second.

    python benchmarks/worker_profile.py            a table
    python benchmarks/worker_profile.py --json     one JSON object on the last line

tsbatch serves the mixed corpus to 64 clients with the settings of docs/speed.md. Each look counts for the outermost
function of the table that the thread is in.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import psutil
from _bench import Bench, Case
from _corpus import corpora, minilm_tokens
from _systems import RECOMMENDED, model_dir

PARTS: Final = {
    "inference (tsbatch/": "forward pass",
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
"""The first of these that occurs in a stack names the part of the time."""
OTHER: Final = "the rest of TorchServe's loop"


def part_of(stack: str) -> str:
    """The part that a stack of py-spy's raw format belongs to, as ``outer (file:1);inner (file:2)``."""
    return next((part for sign, part in PARTS.items() if sign in stack), OTHER)


def shares(recorded: str) -> dict[str, float]:
    """The share of each part in all looks at main threads, largest first."""
    looks: Counter[str] = Counter()
    for line in recorded.splitlines():
        stack, _, count = line.rpartition(" ")
        if "MainThread" in stack.partition(";")[0]:
            looks[part_of(stack)] += int(count)
    return {part: count / looks.total() for part, count in looks.most_common()}


def record(pids: Sequence[int], seconds: int, folder: Path) -> str:
    """What py-spy saw of these processes, in its raw format.

    Raises:
        SystemExit: there is no py-spy, or it may not look.
    """
    program = shutil.which("py-spy", path=str(Path(sys.executable).parent)) or shutil.which("py-spy")
    if program is None:
        raise SystemExit('worker_profile: needs py-spy: pip install "tsbatch[dev]"')
    files = [folder / f"{pid}.raw" for pid in pids]
    options = ["--idle", "--threads", "--format", "raw", "--rate", "100"]
    options += ["--duration", str(seconds)]
    running = [
        subprocess.Popen([program, "record", *options, "--pid", str(pid), "--output", str(file)], stdout=sys.stderr)
        for pid, file in zip(pids, files, strict=True)
    ]
    codes = [process.wait() for process in running]
    if any(codes):
        raise SystemExit("worker_profile: py-spy failed; its own message is above (it may need root)")
    return "\n".join(file.read_text(encoding="utf-8") for file in files)


def measure(seconds: int) -> dict[str, float]:
    """The shares of a run."""
    texts = corpora(512, minilm_tokens(model_dir()))

    def say(message: str) -> None:
        print(message, file=sys.stderr, flush=True)

    with tempfile.TemporaryDirectory(prefix="tsbatch-profile-") as name, Bench(Path(name), texts, say) as bench:
        bench.start(RECOMMENDED)
        bench.run(RECOMMENDED, Case("mixed", 64, 256, 2.0), 0)
        children = psutil.Process(bench.server.pid).children()
        workers = [child.pid for child in children if "model_service_worker" in " ".join(child.cmdline())]
        with bench.loaded(RECOMMENDED, Case("mixed", 64, 256, seconds + 5.0)):
            recorded = record(workers, seconds, Path(name))
    return shares(recorded)


def main(words: list[str]) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Where a worker's wall time goes.")
    parser.add_argument("--seconds", type=int, default=20, help="how long to look (default 20)")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output, nothing else")
    chosen = parser.parse_args(words)
    os.environ["HF_HUB_OFFLINE"] = "1"
    found = measure(chosen.seconds)
    if chosen.json:
        print(json.dumps({"schema": 1, "shares": {part: round(share, 4) for part, share in found.items()}}))
    else:
        print("| the worker's main thread | share of wall time |\n| --- | --- |")
        print("\n".join(f"| {part} | {share:.1%} |" for part, share in found.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
