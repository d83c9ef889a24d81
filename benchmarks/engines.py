#!/usr/bin/env python3
"""all-MiniLM-L6-v2 through every engine with every dtype: texts a second, and how far the answers stray.

    python benchmarks/engines.py            a table
    python benchmarks/engines.py --json     one JSON object instead
    python benchmarks/engines.py --write    the table also into docs/engines.md

What is measured is what `tsbatch package --engine auto` measures, over the benchmarks' own texts of mixed lengths and
in batches of 32: the whole handler in one process, from the request to its JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

from _corpus import BLOCK, corpora, minilm_tokens
from _systems import model_dir
from _tables import machine

from tsbatch.ops.archive import plan
from tsbatch.ops.engine_choice import Bench
from tsbatch.ops.engine_trial import BOUND, HEADS, Trial, fastest
from tsbatch.ops.model_config import ModelConfig

BATCH: Final = 32
PAGE: Final = Path(__file__).resolve().parents[1] / "docs" / "engines.md"
BEGIN: Final = "<!-- measured by benchmarks/engines.py -->"
END: Final = "<!-- end -->"


def measure(count: int) -> list[Trial]:
    """Every engine with every dtype over ``count`` texts, a multiple of BLOCK."""
    archive = plan(name="engines", model=model_dir(), task="text-embedding", config=ModelConfig(batch_size=BATCH))
    texts = corpora(count, minilm_tokens(model_dir()))["mixed"]
    with tempfile.TemporaryDirectory() as folder:
        return Bench(archive, Path(folder), BOUND, texts).try_all(None, lambda what: print(what, file=sys.stderr))


def table(trials: Sequence[Trial]) -> str:
    """The trials in Markdown, and which of them `--engine auto` would take."""
    lines = [HEADS, ("---",) * len(HEADS), *(trial.cells() for trial in trials)]
    best = fastest(trials)
    rows = "\n".join(f"| {' | '.join(cell or '-' for cell in line[:-1])} | {line[-1]} |" for line in lines)
    return f"{rows}\n\n`--engine auto` takes {best.engine}, {best.dtype}."


def where() -> str:
    """The machine, in one line."""
    about = machine()
    return f"{about['cores']} cores ({about['cpu']}), torch {about['torch']}, transformers {about['transformers']}."


def into(page: str, text: str) -> str:
    """The page with ``text`` in place of what stood between :data:`BEGIN` and :data:`END`.

    Raises:
        SystemExit: the page has no such lines.
    """
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        raise SystemExit(f"engines: the page has no lines {BEGIN} and {END}")
    return f"{before}{begin}\n{text}\n{end}{after}"


def main(words: list[str]) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Every engine with every dtype.")
    parser.add_argument("--blocks", type=int, default=1, help=f"texts, in blocks of {BLOCK} (default 1)")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output, nothing else")
    parser.add_argument("--write", action="store_true", help="put the table into docs/engines.md")
    chosen = parser.parse_args(words)
    trials = measure(chosen.blocks * BLOCK)
    text = f"{where()}\n\n{table(trials)}"
    if chosen.write:
        PAGE.write_text(into(PAGE.read_text(encoding="utf-8"), text), encoding="utf-8")
    if chosen.json:
        rows = [asdict(trial) for trial in trials]
        print(json.dumps({"schema": 1, "machine": machine(), "batch": BATCH, "bound": BOUND, "trials": rows}))
    else:
        print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
