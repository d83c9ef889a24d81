"""Choose an archive's engine by trying the candidates on this machine, through the real handler loop.

Each candidate is laid out like the unpacked archive, loaded as TorchServe's worker loads it, and answers a small corpus
of mixed lengths: one by one for comparison, and in batches of the archive's ``batchSize`` for the choice. Its answers
are compared with those of eager float32, one text at a time without packing; a candidate that deviates by more than the
bound is rejected, however fast it is. The results go into the archive as ``engines.json``.
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
"""Texts in the corpus."""
ROUNDS: Final = 3
HOPELESS: Final = 0.5
"""Share of the best rate so far. A slower candidate gets one round only; a dtype that is slow in eager is not tried
with other engines."""
WORDS: Final = "the of and to in is that it was for on are as with they be"

_PLAIN: Final = {"engine": "eager", "dtype": "float32", "batching": {"mode": "bucketed", "proof": "skip"}}
"""Settings of the reference and of the model to export: no packing."""

_CPU: Final = torch.device("cpu")

OnProgress = Callable[[str], None]


@contextmanager
def with_engine(
    archive: Archive, engine: str, *, dtype: Dtype | None = None, bound: float = BOUND, on_progress: OnProgress
) -> Iterator[tuple[Archive, list[Trial]]]:
    """Yield the archive with the engine in it, and the trials. Its files exist until the block ends.

    Args:
        archive: a planned archive without an engine.
        engine: a name, or ``auto`` for the fastest engine whose answers agree.
        dtype: None for the dtype the model was saved in; with ``auto`` for all dtypes.
        bound: minimum agreement of every answer.
        on_progress: called with each candidate before it is tried.

    Raises:
        UsageError: there is no such engine, it cannot run here, or its answers deviate by more than the bound.
    """
    with tempfile.TemporaryDirectory(prefix="tsbatch-engines-") as folder:
        try:
            if engine != "auto":
                check_engine(find_engine(engine), dtype or "auto", _CPU, to_export=True)
            on_progress("eager float32 one by one, as the reference")
            bench = Bench(archive, Path(folder), bound)
            if engine == "auto":
                trials = bench.try_all(dtype, on_progress)
            else:
                on_progress(f"{engine} {dtype or 'auto'}")
                trials = [bench.try_one(engine, dtype or "auto")]
        except LoadError as error:
            raise UsageError(str(error)) from None
        yield bench.finished(fastest(trials), trials), trials


class Bench:
    """Tries candidates for one archive.

    Args:
        archive: a planned archive without an engine.
        folder: an empty folder to lay out the candidates in.
        bound: minimum agreement of every answer.
        values: the corpus, one value per item; None for a small built-in corpus.

    Raises:
        LoadError: the handler supports no engines, or does not load.
    """

    def __init__(self, archive: Archive, folder: Path, bound: float, values: Sequence[Any] | None = None) -> None:
        self.archive, self.folder, self.bound = archive, folder, bound
        self.batch_size: int = archive.config["batchSize"]
        with self._loaded("reference", _PLAIN) as handler:
            self.values = _values(handler) if values is None else values
            self.expected = [_answers(handler, [value])[0] for value in self.values]

    def try_all(self, dtype: Dtype | None, on_progress: OnProgress) -> list[Trial]:
        """Try every known engine with every dtype it supports, or only with ``dtype``."""
        trials: list[Trial] = []
        for name in engine_names():
            for own in find_engine(name).dtypes:
                if dtype in (None, "auto", own):
                    on_progress(f"{name} {own}")
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
        """Export, load and measure one candidate.

        Raises:
            LoadError: it cannot run here or does not load.
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
            problem = f"its answers deviate: agreement {agreement:.6f} is below {self.bound}"
        return Trial(name, dtype, mode, alone, batched, agreement, load_seconds, problem)

    def finished(self, trial: Trial, trials: Sequence[Trial]) -> Archive:
        """Return the archive with the chosen engine's settings and files, and with the results."""
        results = {"schema": SCHEMA, "bound": self.bound, "batch_size": self.batch_size, "torch": torch.__version__}
        results |= {"threads": torch.get_num_threads(), "chosen": {"engine": trial.engine, "dtype": trial.dtype}}
        results |= {"trials": [asdict(each) for each in trials]}
        config = self._config({"engine": trial.engine, "dtype": trial.dtype})
        notes, seconds = list(self.archive.notes), find_engine(trial.engine).start_seconds
        if config["startupTimeout"] < seconds:
            config["startupTimeout"] = seconds
            notes.append(f"startupTimeout is {seconds} s: {trial.engine} may need that long if nothing is cached")
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
        gc.collect()  # the next candidate should not be measured in a process short of memory

    def _round(self, handler: Any, size: int) -> tuple[list[Any], float]:
        """Return all answers in batches of ``size``, and the answers per second."""
        started, answers = time.perf_counter(), []
        for start in range(0, len(self.values), size):
            answers += _answers(handler, self.values[start : start + size])
        return answers, len(answers) / (time.perf_counter() - started)


def lay_out(files: Mapping[str, Path | bytes], folder: Path) -> None:
    """Lay out the archive as it will be unpacked, with links if the system allows them; replace existing files."""
    for name, file in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        if isinstance(file, bytes):
            path.write_bytes(file)
            continue
        try:
            path.symlink_to(file.resolve())
        except OSError:  # Windows lets only some users create links
            path.write_bytes(file.read_bytes())


def mixed_texts(count: int) -> list[str]:
    """Return texts of realistic, log-normal lengths: median 18 words, 95th percentile 120, at most 190."""
    numbers, words = random.Random(count), WORDS.split()
    lengths = [min(190, max(2, round(numbers.lognormvariate(math.log(18), 1.15)))) for _ in range(count)]
    return [" ".join([f"number {index}", *numbers.choices(words, k=length)]) for index, length in enumerate(lengths)]


def agree(one: Any, other: Any) -> float:
    """Return how well two answers agree: 1 if equal; for vectors of one length the cosine, and less if lengths differ.

    Floats may differ. Everything else (labels, integers and the shape) must be equal; otherwise the result is -1.
    """
    same, numbers = _parts(one)
    other_same, other_numbers = _parts(other)
    if same != other_same:
        return -1.0
    reference, moved = np.asarray(numbers), np.asarray(other_numbers)
    scale = float(reference @ reference)
    return 1.0 - float(((reference - moved) ** 2).sum()) / (2 * scale) if scale else float((moved == 0).all())


def _parts(value: Any) -> tuple[Any, list[float]]:
    """Split a value into the part that must be equal, and its floats."""
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
        raise LoadError(f"{type(handler).__name__} supports no engines; package it without --engine and --dtype")
    if handler.wants == "text":
        return mixed_texts(COUNT)
    examples = list(handler.examples())
    if not examples:
        raise LoadError(f"{type(handler).__name__} has no examples(); trying engines needs some")
    return [examples[index % len(examples)] for index in range(COUNT)]


def _answers(handler: Any, values: Sequence[Any]) -> list[Any]:
    replies = handler.answer([Request.of({"inputs": value}) for value in values])
    if bad := next((reply for reply in replies if reply.status != 200), None):
        raise LoadError(f"a trial was answered with {bad.status}: {bad.body.decode(errors='replace')[:300]}")
    return [json.loads(reply.body) for reply in replies]
