#!/usr/bin/env python3
"""Where the wall time of a worker goes under load: py-spy looks at its main thread 100 times a second.

    python benchmarks/worker_profile.py            a table
    python benchmarks/worker_profile.py --write    the table into docs/speed.md

tsbatch serves the mixed corpus to 64 clients with the settings of docs/speed.md. Each look counts for the outermost
function of the table that the thread is in.
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
from _tables import Target, deliver, figures_of, machine, options, table

PAGE: Final = Path(__file__).resolve().parents[1] / "docs" / "speed.md"
BEGIN: Final = "<!-- measured by benchmarks/worker_profile.py -->"
HEADS: Final = ("the worker's main thread", "share of wall time")
CLIENTS: Final = 64
FORWARD: Final = "forward pass, with packing and pooling"
LEAST: Final = 0.85
"""The share of the forward pass that issue 3 asks for."""

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
    return {part: round(count / looks.total(), 4) for part, count in looks.most_common()}


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
        bench.run(RECOMMENDED, Case("mixed", CLIENTS, 256, 2.0), 0)
        children = psutil.Process(bench.server.pid).children()
        workers = [child.pid for child in children if "model_service_worker" in " ".join(child.cmdline())]
        with bench.loaded(RECOMMENDED, Case("mixed", CLIENTS, 256, seconds + 5.0)):
            recorded = record(workers, seconds, Path(name))
    return shares(recorded)


def report(figures: Mapping[str, Any]) -> str:
    """The table."""
    about = figures["machine"]
    rows = [[part, f"{share:.1%}"] for part, share in figures["shares"].items()]
    where = f"{about['cores']} cores ({about['cpu']}), {RECOMMENDED.settings}, {CLIENTS} clients, the mixed corpus."
    return f"{where}\n\n{table(HEADS, rows)}"


def main(words: list[str]) -> int:
    """Measure and print; exit code 1 when the forward pass has less than issue 3 asks for."""
    parser = options("Where a worker's wall time goes.")
    parser.add_argument("--seconds", type=int, default=20, help="how long to look (default 20)")
    chosen = parser.parse_args(words)
    os.environ["HF_HUB_OFFLINE"] = "1"
    figures = figures_of(chosen, lambda: {"schema": 1, "machine": machine(), "shares": measure(chosen.seconds)})
    share = Spread.of([figures["shares"].get(FORWARD, 0.0)])
    return deliver(chosen, figures, report(figures), PAGE, BEGIN, [Target(FORWARD, LEAST, share)])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
