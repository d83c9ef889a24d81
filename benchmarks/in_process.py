#!/usr/bin/env python3
"""Measure the model's throughput without a server, by how texts share a forward pass.

    python benchmarks/in_process.py            print a table
    python benchmarks/in_process.py --json     print one JSON object on the last line

The ways are measured in turn. Token ids are computed beforehand; collating and the forward pass with pooling are timed,
as in the text-embedding handler. serving.py uses the packed ways as the upper limit for a server.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal

from _corpus import corpora, minilm_tokens
from _ratios import Spread, turn
from _systems import model_dir
from _tables import finish, table

if TYPE_CHECKING:
    from typing_extensions import Self

Mode = Literal["packed", "bucketed", "padded"]
COUNT: Final = 512


@dataclass(frozen=True, slots=True)
class Way:
    """A way for texts to share a forward pass.

    Attributes:
        mode: ``packed``, ``bucketed`` (sorted and split by the cost model) or ``padded``.
        batch: texts in a batch.
        processes: processes that run at the same time, each on all texts.
        threads: torch threads per process.
    """

    mode: Mode
    batch: int
    processes: int
    threads: int

    def __str__(self) -> str:
        mode = "one by one" if self.batch == 1 else f"{self.mode}, batch {self.batch}"
        return f"{mode}, {self.processes} × {self.threads} threads"


def packed_ways(cores: int) -> list[Way]:
    """List the ways whose best is the upper limit for a server."""
    shares = {(1, cores), (cores, 1)}
    return [Way("packed", batch, *share) for share in sorted(shares) for batch in (16, 32)]


def all_ways(cores: int) -> list[Way]:
    """List the packed ways and the others to compare with them."""
    others = [Way("padded", 1, 1, cores), Way("padded", 32, 1, cores), Way("bucketed", 32, 1, cores)]
    return [*others, Way("padded", 1, cores, 1), *packed_ways(cores)]


class Workers:
    """Processes that have loaded the model and wait for measuring commands.

    Args:
        ways: the ways that will be measured.
        corpus: the texts to use.
    """

    def __init__(self, ways: Sequence[Way], corpus: str = "mixed") -> None:
        self.ways = list(ways)
        count = max(way.processes for way in ways)
        command = [sys.executable, str(Path(__file__).resolve()), "--worker", corpus]
        environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
        self._processes = [
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
            for _ in range(count)
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._processes:
            process.kill()
            process.communicate()

    def rate(self, way: Way, seconds: float) -> float:
        """Measure texts per second of all processes together."""
        working = self._processes[: way.processes]
        for step in ("ready", "go"):
            for process in working:
                assert process.stdin
                process.stdin.write(json.dumps({"step": step, **asdict(way), "seconds": seconds}) + "\n")
                process.stdin.flush()
            answers = [process.stdout.readline() for process in working if process.stdout]
            if not all(answers):
                raise SystemExit("in_process: a worker exited; see its message above")
        return sum(float(answer) for answer in answers)


class Worker:
    """A measuring process.

    Args:
        corpus: a key of :data:`_corpus.LENGTHS`.
    """

    def __init__(self, corpus: str) -> None:
        self.handlers: dict[Mode, Any] = {}
        handler = self.handler("packed")
        texts = corpora(COUNT, minilm_tokens(model_dir()))[corpus]
        self.features = handler.fit(texts, max_length=handler.max_length)[0]

    def handler(self, mode: Mode) -> Any:
        """Load the text-embedding handler in this mode, once."""
        from tsbatch.tasks.text_embedding import TextEmbeddingHandler
        from tsbatch.worker.context import ModelContext

        if mode not in self.handlers:
            config = {"tsbatch": {"threads": 1, "warmup": False, "batching": {"mode": mode}}}
            handler = self.handlers[mode] = TextEmbeddingHandler()
            handler.load(ModelContext(model_dir=model_dir(), model_name=mode, config=config))
        return self.handlers[mode]

    def measure(self, way: Way, seconds: float) -> float:
        """Measure texts per second in whole rounds over all texts, for at least ``seconds``."""
        import torch

        torch.set_num_threads(way.threads)
        handler, done, started = self.handler(way.mode), 0, time.perf_counter()
        with torch.inference_mode():
            while not done or time.perf_counter() - started < seconds:
                for start in range(0, len(self.features), way.batch):
                    run_batch(handler, self.features[start : start + way.batch])
                done += len(self.features)
        return done / (time.perf_counter() - started)

    def warm(self, way: Way) -> str:
        """Load what the way needs, and run two batches."""
        handler = self.handler(way.mode)
        for start in range(0, 2 * way.batch, way.batch):
            run_batch(handler, self.features[start : start + way.batch])
        return "ready"

    def serve(self) -> None:
        """Run the command in each line of standard input, and answer with one line."""
        for line in sys.stdin:
            command = json.loads(line)
            step, seconds = command.pop("step"), command.pop("seconds")
            way = Way(**command)
            print(self.measure(way, seconds) if step == "go" else self.warm(way), flush=True)


def run_batch(handler: Any, features: Sequence[Any]) -> None:
    """Run one batch through the model in the passes that the handler's planner chooses."""
    from tsbatch.batching.planning import Bounds, plan

    groups = [list(range(len(features)))]
    if handler.buckets:
        lengths = handler.lengths(features)
        groups = plan(lengths, len(features), bounds=Bounds(256), bucketed=True, cost=handler.pass_cost)
    for group in groups:
        started = time.perf_counter()
        tensors = handler.collate([features[index] for index in group])
        handler.inference(tensors)
        handler.pass_cost.observe(tensors["input_ids"].numel(), time.perf_counter() - started)


def main(words: list[str]) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Measure texts per second in process.")
    parser.add_argument("--turns", type=int, default=3, help="turns of all ways (default 3)")
    parser.add_argument(
        "--seconds", type=float, default=4.0, help="minimum duration of each run in seconds (default 4)"
    )
    parser.add_argument("--corpus", default="mixed", help="mixed, short or long (default mixed)")
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else to standard output")
    parser.add_argument("--worker", metavar="CORPUS", help=argparse.SUPPRESS)
    chosen = parser.parse_args(words)
    if chosen.worker:
        Worker(chosen.worker).serve()
        return 0
    from tsbatch.worker.resources import usable_cores

    ways = all_ways(usable_cores())
    rates: dict[Way, list[float]] = {way: [] for way in ways}
    with Workers(ways, chosen.corpus) as workers:
        for number in range(chosen.turns):
            for way in turn(ways, number):
                rates[way].append(workers.rate(way, chosen.seconds))
                print(f"turn {number + 1} of {chosen.turns}: {way}: {rates[way][-1]:.1f} texts/s", file=sys.stderr)
    rows = [{**asdict(way), "rates": [round(rate, 2) for rate in rates[way]]} for way in ways]
    text = table(["in process", "texts/s"], [[str(way), Spread.of(rates[way]).text(0)] for way in ways])
    return finish(chosen, {"schema": 1, "corpus": chosen.corpus, "rows": rows}, text)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
