#!/usr/bin/env python3
"""Compare all engines and dtypes with all-MiniLM-L6-v2: texts per second, and the agreement of the answers.

    python benchmarks/engines.py            print a table
    python benchmarks/engines.py --json     print one JSON object instead
    python benchmarks/engines.py --write    also write the table into docs/engines.md

It measures what `tsbatch package --engine auto` measures, with the benchmarks' texts of mixed lengths in batches of 32:
the whole handler in one process, from the request to the JSON answer.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from _corpus import BLOCK, corpora, minilm_tokens
from _systems import model_dir
from _tables import deliver, figures_of, machine, options, table

from tsbatch.archive.model_config import ModelConfig
from tsbatch.packaging.builder import plan
from tsbatch.packaging.engine_selection import Bench
from tsbatch.packaging.engine_trials import BOUND, COLUMNS, Trial, fastest

BATCH: Final = 32
PAGE: Final = Path(__file__).resolve().parents[1] / "docs" / "engines.md"
BEGIN: Final = "<!-- measured by benchmarks/engines.py -->"


def measure(count: int) -> list[Trial]:
    """Measure every engine with every dtype on ``count`` texts, a multiple of BLOCK."""
    archive = plan(name="engines", model=model_dir(), task="text-embedding", config=ModelConfig(batch_size=BATCH))
    texts = corpora(count, minilm_tokens(model_dir()))["mixed"]
    with tempfile.TemporaryDirectory() as folder:
        return Bench(archive, Path(folder), BOUND, texts).try_all(None, lambda what: print(what, file=sys.stderr))


def table_of(trials: Sequence[Trial]) -> str:
    """Render the trials in Markdown, and the one that `--engine auto` would select."""
    rows = [[*(cell or "-" for cell in trial.cells()[:-1]), trial.cells()[-1] or ""] for trial in trials]
    best = fastest(trials)
    return f"{table(COLUMNS, rows)}\n\n`--engine auto` selects {best.engine}, {best.dtype}."


def machine_line(about: Mapping[str, Any]) -> str:
    """Describe the machine in one line."""
    return f"{about['cores']} cores ({about['cpu']}), torch {about['torch']}, transformers {about['transformers']}."


def main(words: list[str]) -> int:
    """Measure and print."""
    parser = options("Compare all engines and dtypes.")
    parser.add_argument("--blocks", type=int, default=1, help=f"number of blocks of {BLOCK} texts (default 1)")
    chosen = parser.parse_args(words)
    figures = figures_of(chosen, lambda: measured(chosen.blocks * BLOCK))
    trials = [Trial(**row) for row in figures["trials"]]
    return deliver(chosen, figures, f"{machine_line(figures['machine'])}\n\n{table_of(trials)}", PAGE, BEGIN, [])


def measured(count: int) -> dict[str, Any]:
    """Measure and return the figures as one JSON object."""
    rows = [asdict(trial) for trial in measure(count)]
    return {"schema": 1, "machine": machine(), "batch": BATCH, "bound": BOUND, "trials": rows}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
