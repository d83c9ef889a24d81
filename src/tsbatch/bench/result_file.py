"""The result file of a load test: target, load, machine, every request, and the figures derived from them.

::

    {"schema": 1, "kind": "bench",
     "target": {"address", "model", "version", "settings": {"batchSize", "maxBatchDelay", "workers", …},
                "origins": {"batchSize": where it is set, …}},
     "load": {"loop": "closed" | "open", "steps": […], "repeat", "warm_up", "timeout", …},
     "environment": {"cpu", "cores", "python", …},
     "runs": [{"started", "step", "seconds", "answered", "samples", "errors", "summary", "workers", "generator", …}],
     "summary": [{"step", …}]}

A run is one step of the load, run once. ``step`` is its number of clients (closed loop) or its requests/s (open loop;
None for a trace). Times are in milliseconds except ``seconds`` and ``started``, memory is in bytes.
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
    """One step of the load, run once.

    Attributes:
        started: end of the warm-up, ISO 8601.
        step: clients of a closed loop, or requests/s of an open one; None for a trace.
        seconds: measured duration.
        answered: good answers (2xx) received in that time.
        answered_items: items in them.
        samples: the requests sent or due in that time.
        errors: ``{"status", "reason", "count"}`` for each kind of failure; status 0 for no answer.
        summary: figures of this run, see :func:`tsbatch.bench.summary.summarize`.
        workers: ``{"name", "pid", "cpu", "memory_rss", "memory_private", "memory_gpus", "gone"}`` for each watched
            process; cpu in cores, memory in bytes, GPU memory by UUID at the end of the run.
        generator: activity and cost of the load generator: ``cpu`` in cores, ``lateness`` in ms, connections opened.
        warm_up: ``{"seconds", "requests", "failed"}`` of the warm-up.
        padding_waste: mean share of computed lengths that was padding, 0 to 1; None if it was not reported.
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
        """Return one JSON object, raw samples included."""
        return {name: getattr(self, name) for name in RUN_FIELDS} | {"samples": self.samples.to_json()}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Run:
        """Read the output of :meth:`to_json`; fields of later versions are ignored.

        Raises:
            KeyError, TypeError, ValueError: the value is not a run.
        """
        known = {name: value[name] for name in RUN_FIELDS if name in value}
        return cls(**known | {"samples": Samples.from_json(value["samples"])})


RUN_FIELDS: Final = tuple(one.name for one in fields(Run))


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchResult:
    """The result of ``tsbatch bench``.

    Attributes:
        target: address, model, version, and the settings reported by the server.
        plan: the load (``load`` in the file).
        environment: machine and versions.
        runs: all steps and repeats, in the order they ran.
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
        """Return the runs of each step, in the order they ran."""
        found: dict[float | None, list[Run]] = {}
        for run in self.runs:
            found.setdefault(run.step, []).append(run)
        return found

    def to_json(self) -> dict[str, Any]:
        """Return one JSON object, raw samples included."""
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
        """Write the file atomically.

        Raises:
            OSError: the file cannot be written.
        """
        with atomic_file(path) as stream:
            stream.write(orjson.dumps(self.to_json(), option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE))

    @classmethod
    def load(cls, path: Path) -> BenchResult:
        """Read a result file.

        Raises:
            UsageError: it is not a result file, or has another schema.
            OSError: it cannot be read.
        """
        try:
            value = orjson.loads(path.read_bytes())
        except orjson.JSONDecodeError as error:
            raise UsageError(f"{path} is not JSON: {error}") from None
        if not isinstance(value, dict) or value.get("kind") != KIND:
            raise UsageError(
                f"{path} is not a load test result; expected a file written by: tsbatch bench --output FILE"
            )
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
