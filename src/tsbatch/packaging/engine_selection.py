"""Which engine an archive gets: the candidates are tried on this machine, through the real handler loop.

Each candidate is laid out as the archive would be unpacked, loaded as TorchServe's worker loads it, and answers a small
corpus of mixed lengths: alone for comparison, and in batches of the archive's ``batchSize`` for the choice. Its answers
are held against eager float32, one text at a time without packing; whoever strays further than the bound is out,
however fast. What was measured goes into the archive as ``engines.json``.
"""

from __future__ import annotations

import gc
import json
import math
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np
import torch

from tsbatch.archive.model_config import CONFIG_NAME, dump
from tsbatch.archive.planned_archive import Archive
from tsbatch.emulation.runner import HandlerRunner
from tsbatch.errors import LoadError, UsageError
from tsbatch.models.engines import check_engine, engine_names, find_engine
from tsbatch.packaging.engine_trials import BOUND, Trial, fastest
from tsbatch.protocol.request import Request
from tsbatch.settings import Dtype

SCHEMA: Final = 1
RESULTS_NAME: Final = "engines.json"
COUNT: Final = 64
"""Texts of the corpus."""
ROUNDS: Final = 3
HOPELESS: Final = 0.5
"""Of the best rate so far: what is slower gets one round only, and eager's slow dtypes are not tried with others."""
WORDS: Final = (
    "the",
    "of",
    "and",
    "to",
    "in",
    "is",
    "that",
    "it",
    "was",
    "for",
    "on",
    "are",
    "as",
    "with",
    "they",
    "be",
)

_PLAIN: Final = {"engine": "eager", "dtype": "float32", "batching": {"mode": "bucketed"}}
"""The settings of the reference, and of the model that is exported: not packed."""

_CPU: Final = torch.device("cpu")

Say = Callable[[str], None]


@contextmanager
def with_engine(
    archive: Archive, engine: str, *, dtype: Dtype | None = None, bound: float = BOUND, say: Say
) -> Iterator[tuple[Archive, list[Trial]]]:
    """The archive with the engine in it, and what was measured. Its files are there as long as the block runs.

    Args:
        archive: a planned one, without an engine.
        engine: a name, or ``auto`` for the fastest of all whose answers agree.
        dtype: None for what the model was saved in; with ``auto`` for all.
        bound: least agreement of every answer.
        say: told what is being tried.

    Raises:
        UsageError: no such engine, it cannot work here, or its answers stray further than the bound.
    """
    with tempfile.TemporaryDirectory(prefix="tsbatch-engines-") as folder:
        try:
            if engine != "auto":
                check_engine(find_engine(engine), dtype or "auto", _CPU, to_export=True)
            say("eager float32 one by one, as the reference")
            bench = Bench(archive, Path(folder), bound)
            if engine == "auto":
                trials = bench.try_all(dtype, say)
            else:
                say(f"{engine} {dtype or 'auto'}")
                trials = [bench.try_one(engine, dtype or "auto")]
        except LoadError as error:
            raise UsageError(str(error)) from None
        yield bench.finished(fastest(trials), trials), trials


class Bench:
    """Tries candidates for one archive.

    Args:
        archive: a planned one, without an engine.
        folder: for what is laid out; an empty one.
        bound: least agreement of every answer.
        values: the corpus, one value an item; None for a small one of the bench's own.

    Raises:
        LoadError: the handler knows no engines, or does not load.
    """

    def __init__(self, archive: Archive, folder: Path, bound: float, values: Sequence[Any] | None = None) -> None:
        self.archive, self.folder, self.bound = archive, folder, bound
        self.batch_size: int = archive.config["batchSize"]
        with self._loaded("reference", _PLAIN) as handler:
            self.values = _values(handler) if values is None else values
            self.expected = [_answers(handler, [value])[0] for value in self.values]

    def try_all(self, dtype: Dtype | None, say: Say) -> list[Trial]:
        """Every known engine with every dtype it has, or with ``dtype`` alone."""
        trials: list[Trial] = []
        for name in engine_names():
            for own in find_engine(name).dtypes:
                if dtype in (None, "auto", own):
                    say(f"{name} {own}")
                    trials.append(self._try(name, own, trials))  # type: ignore[arg-type]
        return trials

    def _try(self, name: str, dtype: Dtype, before: Sequence[Trial]) -> Trial:
        best = max((trial.batched for trial in before if trial.batched and trial.problem is None), default=0.0)
        for trial in before:
            if (trial.engine, trial.dtype) == ("eager", dtype) and (trial.batched or best) < HOPELESS * best:
                return Trial(name, dtype, problem=f"not tried: {dtype} is slow on this machine, see eager")
        try:
            return self.try_one(name, dtype, best)
        except LoadError as error:
            return Trial(name, dtype, problem=str(error))

    def try_one(self, name: str, dtype: Dtype, best: float = 0.0) -> Trial:
        """Export, load and measure.

        Raises:
            LoadError: it cannot work here or does not load.
        """
        engine = find_engine(name)
        check_engine(engine, dtype, _CPU, to_export=True)
        files = self._export(name, dtype)
        started = time.perf_counter()
        with self._loaded(f"{name}-{dtype}", {"engine": name, "dtype": dtype}, files) as handler:
            load_seconds = time.perf_counter() - started
            answers, first = self._round(handler, self.batch_size)
            agreement = min(agree(one, other) for one, other in zip(self.expected, answers, strict=True))
            rounds = 0 if first < HOPELESS * best else ROUNDS
            batched = median([self._round(handler, self.batch_size)[1] for _ in range(rounds)] or [first])
            alone = self._round(handler, 1)[1]
            mode = handler.choice.mode
        problem = None
        if not agreement >= self.bound:
            problem = f"its answers stray: agreement {agreement:.6f} is under {self.bound}"
        return Trial(name, dtype, mode, alone, batched, agreement, load_seconds, problem)

    def finished(self, trial: Trial, trials: Sequence[Trial]) -> Archive:
        """The archive with the chosen engine's settings and files, and with what was measured."""
        results = {"schema": SCHEMA, "bound": self.bound, "batch_size": self.batch_size, "torch": torch.__version__}
        results |= {"threads": torch.get_num_threads(), "chosen": {"engine": trial.engine, "dtype": trial.dtype}}
        results |= {"trials": [asdict(each) for each in trials]}
        config = self._config({"engine": trial.engine, "dtype": trial.dtype})
        notes, seconds = list(self.archive.notes), find_engine(trial.engine).start_seconds
        if config["startupTimeout"] < seconds:
            config["startupTimeout"] = seconds
            notes.append(f"startupTimeout is {seconds} s: {trial.engine} may need that long where nothing is cached")
        files: dict[str, Path | bytes] = {**self.archive.files, **self._exported(trial.engine, trial.dtype)}
        files[CONFIG_NAME], files[RESULTS_NAME] = dump(config), json.dumps(results, indent=2).encode("ascii")
        return replace(self.archive, files=files, config=config, notes=notes)

    def _config(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        return {**self.archive.config, "tsbatch": {**self.archive.config["tsbatch"], **settings}}

    def _export(self, name: str, dtype: Dtype) -> Mapping[str, Path]:
        if not find_engine(name).exports:
            return {}
        target = self.folder / f"{name}-{dtype}-files"
        target.mkdir()
        with self._loaded("source", {**_PLAIN, "warmup": False}) as handler:
            handler.export_engine(find_engine(name), target, dtype)
        return self._exported(name, dtype)

    def _exported(self, name: str, dtype: Dtype) -> dict[str, Path]:
        return {path.name: path for path in sorted((self.folder / f"{name}-{dtype}-files").glob("*"))}

    @contextmanager
    def _loaded(self, name: str, settings: Mapping[str, Any], more: Mapping[str, Path] | None = None) -> Iterator[Any]:
        folder = self.folder / name
        lay_out({**self.archive.files, **(more or {}), CONFIG_NAME: dump(self._config(settings))}, folder)
        with HandlerRunner.from_mar(folder) as runner:
            yield runner.handler
        gc.collect()  # the next one should not be measured in a process that is full

    def _round(self, handler: Any, size: int) -> tuple[list[Any], float]:
        """All answers, in batches of ``size``, and how many there were a second."""
        started, answers = time.perf_counter(), []
        for start in range(0, len(self.values), size):
            answers += _answers(handler, self.values[start : start + size])
        return answers, len(answers) / (time.perf_counter() - started)


def lay_out(files: Mapping[str, Path | bytes], folder: Path) -> None:
    """The archive as it will be unpacked, with links where the system makes them; what is there is replaced."""
    for name, file in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        if isinstance(file, bytes):
            path.write_bytes(file)
            continue
        try:
            path.symlink_to(file.resolve())
        except OSError:  # Windows lets only some people make links
            path.write_bytes(file.read_bytes())


def mixed_texts(count: int) -> list[str]:
    """Texts of log-normal lengths, as people send them: median 18 words, 95th percentile 120, at most 190."""
    numbers = random.Random(count)
    lengths = [min(190, max(2, round(numbers.lognormvariate(math.log(18), 1.15)))) for _ in range(count)]
    return [" ".join([f"number {place}", *numbers.choices(WORDS, k=length)]) for place, length in enumerate(lengths)]


def agree(one: Any, other: Any) -> float:
    """How far two answers agree, 1 for alike: the cosine, for vectors of one length, and less when lengths differ.

    Fractions may move; everything else, labels and whole numbers and the shape, must be the same, or it is -1.
    """
    same, numbers = _parts(one)
    other_same, other_numbers = _parts(other)
    if same != other_same:
        return -1.0
    reference, moved = np.asarray(numbers), np.asarray(other_numbers)
    scale = float(reference @ reference)
    return 1.0 - float(((reference - moved) ** 2).sum()) / (2 * scale) if scale else float((moved == 0).all())


def _parts(value: Any) -> tuple[Any, list[float]]:
    """What must be the same, and the fractions."""
    if isinstance(value, float):
        return 0.5, [value]
    if isinstance(value, dict):
        parts = {key: _parts(entry) for key, entry in value.items()}
        return {key: same for key, (same, _) in parts.items()}, [one for _, many in parts.values() for one in many]
    if isinstance(value, list):
        found = [_parts(entry) for entry in value]
        return [same for same, _ in found], [one for _, many in found for one in many]
    return value, []


def _values(handler: Any) -> list[Any]:
    if not getattr(handler, "takes_engines", False):
        raise LoadError(f"{type(handler).__name__} runs its model as it is; pack it without --engine and --dtype")
    if handler.wants == "text":
        return mixed_texts(COUNT)
    examples = list(handler.examples())
    if not examples:
        raise LoadError(f"{type(handler).__name__} has no examples() to try engines with")
    return [examples[place % len(examples)] for place in range(COUNT)]


def _answers(handler: Any, values: Sequence[Any]) -> list[Any]:
    replies = handler.answer([Request.of({"inputs": value}) for value in values])
    if bad := next((reply for reply in replies if reply.status != 200), None):
        raise LoadError(f"a trial was answered with {bad.status}: {bad.body.decode(errors='replace')[:300]}")
    return [json.loads(reply.body) for reply in replies]
