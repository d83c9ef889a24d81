#!/usr/bin/env python3
"""Compare a batch of 32 with 32 single requests and with TorchServe's own handler, for every ready-made task.

    python benchmarks/tasks.py                      print a table
    python benchmarks/tasks.py --task tensor        measure only this task; may be repeated
    python benchmarks/tasks.py --json               print one JSON object instead
    python benchmarks/tasks.py --write              also write the table into docs/tasks/README.md

All run in this process through TorchServe's Python code (``HandlerRunner``): from what the frontend sends to the bytes
that it receives. The ways are measured in turn; ratios are computed turn by turn.
"""

from __future__ import annotations

import importlib
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from _ratios import Spread, ratios, turn
from _systems import HANDLERS
from _tables import Say, Target, deliver, figures_of, machine, options, progress, table
from _task_models import BUILDS
from _task_requests import BATCH, requests

from tsbatch.archive.model_config import ModelConfig
from tsbatch.emulation.runner import Call, HandlerRunner
from tsbatch.packaging.builder import package

PAGE: Final = Path(__file__).resolve().parents[1] / "docs" / "tasks" / "README.md"
BEGIN: Final = "<!-- measured by benchmarks/tasks.py -->"
STOCK: Final[Mapping[str, tuple[str, str]]] = {
    "text-classification": ("TextClassification", "the Hugging Face example"),
    "token-classification": ("TokenClassification", "the Hugging Face example"),
    "question-answering": ("QuestionAnswering", "the Hugging Face example"),
    "text-generation": ("TextGeneration", "the Hugging Face example"),
    "image-classification": ("ImageClassification", "image_classifier"),
    "image-segmentation": ("ImageSegmentation", "image_segmenter"),
    "tensor": ("Tensor", "base_handler"),
}
"""By task: the class in handlers/stock_style.py, and the TorchServe handler that it follows."""
TURNS: Final = 5
WAYS: Final = ("batch", "single", "stock")
Rates = dict[str, list[float]]


class Ways:
    """The loaded handlers of one task.

    Args:
        task: a key of BUILDS.
        folder: for its model.
        stack: closes them.
    """

    def __init__(self, task: str, folder: Path, stack: ExitStack) -> None:
        BUILDS[task][1](folder / "model")
        self.calls = [Call.of(body) for body in requests(task)]
        archive = package(
            name="tsbatch",
            task=task,
            model_dir=folder / "model",
            output_dir=folder,
            config=ModelConfig(batch_size=BATCH),
        )
        self._tsbatch = stack.enter_context(HandlerRunner.from_mar(archive))
        self._stock = None
        if task in STOCK:
            handler = getattr(importlib.import_module("stock_style"), STOCK[task][0])
            self._stock = stack.enter_context(HandlerRunner.from_class(handler, folder / "model", batch_size=BATCH))

    @property
    def names(self) -> list[str]:
        """The WAYS that exist for this task."""
        return [way for way in WAYS if way != "stock" or self._stock]

    def rate(self, way: str) -> float:
        """Measure items per second over all requests, once.

        Raises:
            SystemExit: a request failed.
        """
        runner = self._stock if way == "stock" else self._tsbatch
        assert runner is not None
        groups = [[call] for call in self.calls] if way == "single" else [self.calls]
        started = time.perf_counter()
        answers = [answer for group in groups for answer in runner.predict(group)]
        seconds = time.perf_counter() - started
        bad = [answer for answer in answers if answer.status != 200]
        if bad:
            raise SystemExit(f"tasks: {way}: {bad[0].status} {bad[0].body[:300]!r}")
        return len(self.calls) / seconds


def measure(tasks: Sequence[str], say: Say) -> dict[str, Any]:
    """Measure the rates of every way, turn by turn."""
    figures: dict[str, Rates] = {}
    for task in tasks:
        say(task)
        with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
            ways = Ways(task, Path(folder), stack)
            for way in ways.names:
                ways.rate(way)  # warm-up
            figures[task] = {way: [] for way in ways.names}
            for number in range(TURNS):
                for way in turn(ways.names, number):
                    figures[task][way].append(ways.rate(way))
    return {"schema": 1, "machine": machine(), "batch": BATCH, "turns": TURNS, "rates": figures}


def table_of(figures: Mapping[str, Rates]) -> str:
    """Render one row per task, in Markdown."""
    rows = [_row(task, rates) for task, rates in figures.items()]
    return table(["task", "model", "items/s", "× single requests", "× TorchServe's way", "which is"], rows)


def _row(task: str, rates: Rates) -> list[str]:
    stock = ratios(rates["batch"], rates["stock"]).text() if "stock" in rates else "-"
    return [
        task,
        BUILDS[task][0],
        f"{Spread.of(rates['batch']).median:.3g}",
        ratios(rates["batch"], rates["single"]).text(),
        stock,
        STOCK[task][1] if task in STOCK else "-",
    ]


def machine_line(about: Mapping[str, Any]) -> str:
    """Describe the machine in one line."""
    return (
        f"Median (minimum to maximum) of {TURNS} turns; {about['cores']} cores ({about['cpu']}), "
        f"torch {about['torch']}, transformers {about['transformers']}."
    )


def targets(figures: Mapping[str, Rates]) -> list[Target]:
    """List the targets: a batch must not be slower than single requests or TorchServe's way."""
    return [
        Target(f"{task}, {other}", 0.95, ratios(rates["batch"], rates[other]))
        for task, rates in figures.items()
        for other in ("single", "stock")
        if other in rates
    ]


def main(words: list[str]) -> int:
    """Measure and print; return exit code 1 if a target is missed."""
    parser = options("Compare batches, single requests and TorchServe's own handlers for every ready-made task.")
    parser.add_argument(
        "--task", action="append", choices=sorted(BUILDS), help="measure only this task; may be repeated"
    )
    chosen = parser.parse_args(words)
    sys.path.insert(0, str(HANDLERS))
    figures = figures_of(chosen, lambda: measure(chosen.task or list(BUILDS), progress()))
    text = f"{machine_line(figures['machine'])}\n\n{table_of(figures['rates'])}"
    return deliver(chosen, figures, text, PAGE, BEGIN, targets(figures["rates"]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
