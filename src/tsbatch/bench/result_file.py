"""The file of a load test: what was loaded, how, on what machine, every request, and the figures made of them.

::

    {"schema": 1, "kind": "bench",
     "target": {"address", "model", "version", "settings": {"batchSize", "maxBatchDelay", "workers", …},
                "origins": {"batchSize": who set it, …}},
     "load": {"loop": "closed" | "open", "steps": […], "repeat", "warm_up", "timeout", …},
     "environment": {"cpu", "cores", "python", …},
     "runs": [{"started", "step", "seconds", "answered", "samples", "errors", "summary", "workers", "generator", …}],
     "summary": [{"step", …}]}

A run is one step of the load, once. ``step`` is its number of clients (closed loop) or its requests a second (open
loop, None for a trace). Times are milliseconds but for ``seconds`` and ``started``, memory is bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final

import orjson

from tsbatch.bench.request_table import Samples
from tsbatch.errors import UsageError
from tsbatch.system.atomic_write import atomic_file

SCHEMA: Final = 1
KIND: Final = "bench"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One step of the load, once.

    Attributes:
        started: when the warm-up was over, ISO 8601.
        step: clients of a closed loop, or requests a second of an open one; None for a trace.
        seconds: how long it was measured.
        answered: good answers (2xx) that came in that time.
        answered_items: items in them.
        samples: the requests that were sent, or meant to be sent, in that time.
        errors: ``{"status", "reason", "count"}`` for each kind of failure; status 0 for no answer.
        summary: figures of this run, see :func:`tsbatch.bench.summary.summarize`.
        workers: ``{"name", "pid", "cpu", "memory_rss", "memory_private", "memory_gpus", "gone"}`` for each process that
            was watched; cpu in cores, memory in bytes, that of GPUs by their UUIDs at the end.
        generator: what the load generator did and cost: ``cpu`` in cores, ``lateness`` in ms, connections opened.
        warm_up: ``{"seconds", "requests", "failed"}`` of what came before.
        padding_waste: mean share of computed lengths that was padding, 0 to 1; None when nobody told.
    """

    started: str
    step: float | None
    seconds: float
    answered: int
    answered_items: float
    samples: Samples
    errors: Sequence[Mapping[str, Any]] = ()
    summary: Mapping[str, Any] = field(default_factory=dict)
    workers: Sequence[Mapping[str, Any]] = ()
    generator: Mapping[str, Any] = field(default_factory=dict)
    warm_up: Mapping[str, Any] = field(default_factory=dict)
    padding_waste: float | None = None

    def to_json(self) -> dict[str, Any]:
        """As one JSON object, raw samples included."""
        return {name: getattr(self, name) for name in RUN_FIELDS} | {"samples": self.samples.to_json()}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Run:
        """The opposite of :meth:`to_json`; what a later version added is left out.

        Raises:
            KeyError, TypeError, ValueError: it is no run.
        """
        known = {name: value[name] for name in RUN_FIELDS if name in value}
        return cls(**known | {"samples": Samples.from_json(value["samples"])})


RUN_FIELDS: Final = tuple(one.name for one in fields(Run))


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchResult:
    """What ``tsbatch bench`` found.

    Attributes:
        target: address, model, version, and its settings as the server told them.
        plan: how it was loaded (``load`` in the file).
        environment: the machine and versions.
        runs: every step as often as it was repeated, in the order they ran.
        summary: one object for each step, over its repeats.
    """

    target: Mapping[str, Any]
    plan: Mapping[str, Any]
    environment: Mapping[str, Any]
    runs: Sequence[Run]
    summary: Sequence[Mapping[str, Any]] = ()

    @property
    def samples(self) -> Samples:
        """The requests of all runs."""
        return Samples.join([run.samples for run in self.runs])

    def steps(self) -> dict[float | None, list[Run]]:
        """The runs of each step, in the order they ran."""
        found: dict[float | None, list[Run]] = {}
        for run in self.runs:
            found.setdefault(run.step, []).append(run)
        return found

    def to_json(self) -> dict[str, Any]:
        """As one JSON object, raw samples included."""
        return {
            "schema": SCHEMA,
            "kind": KIND,
            "target": self.target,
            "load": self.plan,
            "environment": self.environment,
            "runs": [run.to_json() for run in self.runs],
            "summary": self.summary,
        }

    def save(self, path: Path) -> None:
        """Write it, all or nothing.

        Raises:
            OSError: it cannot be written there.
        """
        with atomic_file(path) as stream:
            stream.write(orjson.dumps(self.to_json(), option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE))

    @classmethod
    def load(cls, path: Path) -> BenchResult:
        """Read it.

        Raises:
            UsageError: it is no such file, or a later version's.
            OSError: it cannot be read.
        """
        try:
            value = orjson.loads(path.read_bytes())
        except orjson.JSONDecodeError as error:
            raise UsageError(f"{path} is no JSON: {error}") from None
        if not isinstance(value, dict) or value.get("kind") != KIND:
            raise UsageError(f"{path} is no result of a load test; expected a file of: tsbatch bench --output FILE")
        if value.get("schema") != SCHEMA:
            raise UsageError(f"{path} has schema {value.get('schema')!r}; this tsbatch reads schema {SCHEMA}")
        try:
            return cls(
                target=value["target"],
                plan=value["load"],
                environment=value["environment"],
                runs=[Run.from_json(run) for run in value["runs"]],
                summary=value["summary"],
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UsageError(f"{path} is damaged: {type(error).__name__}: {error}") from None
