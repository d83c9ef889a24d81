"""What a check found, as one page for people and as one object for machines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tsbatch.check.advice import Advice, response_timeout, startup_timeout
from tsbatch.system.process_memory import Memory

SCHEMA = 1
BEFORE_LOADING = ("unpack", "python", "CUDA context")
"""Phases that TorchServe's startupTimeout does not count."""


@dataclass(frozen=True, slots=True)
class Phase:
    """One phase of the load.

    Attributes:
        name: unpack, python, import, weights ...
        seconds: how long it took, phases inside it and imports not counted.
        resident: bytes in memory at its end.
        peak: the most bytes until then.
    """

    name: str
    seconds: float
    resident: int | None = None
    peak: int | None = None


@dataclass(frozen=True, slots=True)
class Failure:
    """Why the archive does not load.

    Attributes:
        cause: the exception with its file and line, in one line.
        remedy: what to do; None when the cause is not a known one.
        phase: the phase in which it happened.
        traceback: the end of what the process printed.
    """

    cause: str
    remedy: str | None
    phase: str
    traceback: Sequence[str] = ()


@dataclass(slots=True, kw_only=True)
class Report:
    """What a check found; filled in as it goes.

    Attributes:
        archive, name, version: what was checked.
        about: what the loaded handler says of itself.
        sha256: of the archive; None of a folder, and of a file that was changed meanwhile.
        bytes: bytes of the unpacked files.
        phases: the load, phase by phase.
        memory: of the first worker and, when it was loaded, the second; bytes.
        gpu: free, total and reserved bytes of the GPU after each of the two.
        imports: installed package: version, of what the handler imported until it had answered the samples.
        samples: each sample's name, status, reason and seconds.
        service: a row for each batch size; seconds.
        invariance, isolation: what was found out of them.
        startup_timeout, response_timeout, workers: what is recommended, and why.
        notes: what could be of use.
        unable: what could not be done, and why.
        findings: what is not as it should be.
        failure: why it does not load.
    """

    archive: Path
    name: str
    version: str | None
    about: dict[str, Any] = field(default_factory=dict)
    sha256: str | None = None
    bytes: int = 0
    phases: list[Phase] = field(default_factory=list)
    memory: list[Memory] = field(default_factory=list)
    gpu: list[dict[str, int]] = field(default_factory=list)
    imports: Mapping[str, str] = field(default_factory=dict)
    samples: Sequence[Mapping[str, Any]] = ()
    service: Sequence[Mapping[str, Any]] = ()
    invariance: Mapping[str, Any] | None = None
    isolation: Sequence[Mapping[str, Any]] = ()
    startup_timeout: Advice | None = None
    response_timeout: Advice | None = None
    workers: Advice | None = None
    notes: list[str] = field(default_factory=list)
    unable: list[str] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)
    failure: Failure | None = None

    @property
    def load_seconds(self) -> float:
        """Seconds of the load as TorchServe's startupTimeout counts them."""
        return sum(phase.seconds for phase in self.phases if phase.name not in BEFORE_LOADING)

    @property
    def peak(self) -> int:
        """The most bytes that the process held while it loaded."""
        return max((phase.peak or 0 for phase in self.phases), default=0)

    def conclude(self, *, cores: int) -> None:
        """Recommend time-outs and list what is not as it should be.

        Args:
            cores: usable cores.
        """
        workers = self.about.get("workers") or 1
        self.startup_timeout = startup_timeout(self.load_seconds, size=self.bytes, workers=workers, cores=cores)
        if self.service:
            last = self.service[-1]
            self.response_timeout = response_timeout(last["slowest"], last["batch"])
        self.findings += list(_findings(self))

    def as_json(self) -> dict[str, Any]:
        """Everything, as ``--json`` prints it; seconds and bytes."""
        return {
            "schema": SCHEMA,
            "archive": str(self.archive),
            "name": self.name,
            "version": self.version,
            "sha256": self.sha256,
            "loads": self.failure is None,
            "failure": None if self.failure is None else asdict(self.failure),
            "about": self.about,
            "bytes": self.bytes,
            "load_seconds": self.load_seconds,
            "peak_bytes": self.peak,
            "phases": [asdict(phase) for phase in self.phases],
            "memory": [one.as_json() for one in self.memory],
            "gpu": self.gpu,
            "imports": self.imports,
            "startup_timeout": _plain(self.startup_timeout),
            "response_timeout": _plain(self.response_timeout),
            "workers": _plain(self.workers),
            "service": self.service,
            "invariance": self.invariance,
            "isolation": self.isolation,
            "samples": self.samples,
            "unable": self.unable,
            "notes": self.notes,
            "findings": self.findings,
        }


def _plain(advice: Advice | None) -> dict[str, Any] | None:
    return None if advice is None else asdict(advice)


def _findings(report: Report) -> list[str]:
    found = [
        f"the sample {sample['name']} was answered with {sample['status']}: {sample['reason']}"
        for sample in report.samples
        if sample["reason"] is not None
    ]
    if report.invariance and report.invariance["holds"] is False:
        found.append(f"not batch invariant: {report.invariance['why']}")
    found += [
        f"no isolation: among good requests, {one['broken']}: {one['why']}"
        for one in report.isolation
        if one["holds"] is False
    ]
    found += _too_short(report)
    return found


def _too_short(report: Report) -> list[str]:
    wanted: Mapping[str, Advice | None] = {
        "startup_timeout": report.startup_timeout,
        "response_timeout": report.response_timeout,
    }
    measured = {"startup_timeout": report.load_seconds, "response_timeout": max(_slowest(report), default=0.0)}
    found = []
    for key, advice in wanted.items():
        own = report.about.get(key)
        if advice is not None and isinstance(own, int) and measured[key] > own:
            found.append(
                f"{_key(key)} is {own} and it took {measured[key]:.1f} s here: set it to at least {advice.value}"
            )
    return found


def _slowest(report: Report) -> list[float]:
    return [row["slowest"] for row in report.service]


def _key(name: str) -> str:
    first, _, second = name.partition("_")
    return first + second.capitalize()
