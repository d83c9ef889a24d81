"""The report of a check: figures, recommendations and findings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tsbatch.check.advice import Advice, response_timeout, startup_timeout
from tsbatch.system.process_memory import Memory

SCHEMA = 1
BEFORE_LOADING = ("unpack", "python", "CUDA context")
"""Phases that do not count towards TorchServe's startupTimeout."""


@dataclass(frozen=True, slots=True)
class Phase:
    """One phase of the load.

    Attributes:
        name: unpack, python, import, weights ...
        seconds: how long it took, without the phases inside it and without imports.
        resident: resident bytes at its end.
        peak: maximum resident bytes until then.
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
        remedy: what to do; None if the cause is unknown.
        phase: the phase in which it happened.
        traceback: the end of the process's output.
    """

    cause: str
    remedy: str | None
    phase: str
    traceback: Sequence[str] = ()


@dataclass(slots=True, kw_only=True)
class Report:
    """Results of a check, filled in as it runs.

    Attributes:
        archive, name, version: the checked archive, its model and version.
        about: properties of the loaded handler.
        sha256: the archive's hash; None for a folder, and for a file that changed during the check.
        bytes: bytes of the unpacked files.
        phases: the phases of the load.
        memory: bytes of the first worker and, if it was loaded, of the second.
        gpu: free, total and reserved bytes of the GPU after each of the two.
        imports: versions of the installed packages that the handler imported until it had answered the samples.
        samples: each sample's name, status, reason and seconds.
        service: a row for each batch size; seconds.
        invariance, isolation: results of these tests.
        startup_timeout, response_timeout, workers: recommendations with their reasons.
        notes: remarks that may be useful.
        unable: what could not be tested, and why.
        findings: problems.
        failure: why the archive does not load.
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
        """Seconds of the load that count towards TorchServe's startupTimeout."""
        return sum(phase.seconds for phase in self.phases if phase.name not in BEFORE_LOADING)

    @property
    def peak(self) -> int:
        """Maximum resident bytes of the process while it loaded."""
        return max((phase.peak or 0 for phase in self.phases), default=0)

    def conclude(self, *, cores: int) -> None:
        """Recommend timeouts and add the findings.

        Args:
            cores: usable cores.
        """
        workers = self.about.get("workers") or 1
        self.startup_timeout = startup_timeout(self.load_seconds, size=self.bytes, workers=workers, cores=cores)
        if self.service:
            last = self.service[-1]
            self.response_timeout = response_timeout(last["slowest"], last["batch"])
        self.findings += _findings(self)

    def as_json(self) -> dict[str, Any]:
        """Return everything, as ``--json`` prints it, in seconds and bytes."""
        return {
            "schema": SCHEMA,
            **asdict(self),
            "archive": str(self.archive),
            "loads": self.failure is None,
            "load_seconds": self.load_seconds,
            "peak_bytes": self.peak,
        }


def _findings(report: Report) -> Iterator[str]:
    for sample in report.samples:
        if sample["reason"] is not None:
            yield f"the sample {sample['name']} was answered with {sample['status']}: {sample['reason']}"
    if report.invariance and report.invariance["holds"] is False:
        yield f"not batch invariant: {report.invariance['why']}"
    for result in report.isolation:
        if result["holds"] is False:
            yield f"no isolation: among valid requests, {result['broken']}: {result['why']}"
    slowest = max((row["slowest"] for row in report.service), default=0.0)
    for key, name, measured, advice in (
        ("startup_timeout", "startupTimeout", report.load_seconds, report.startup_timeout),
        ("response_timeout", "responseTimeout", slowest, report.response_timeout),
    ):
        own = report.about.get(key)
        if advice is not None and isinstance(own, int) and measured > own:
            yield f"{name} is {own}, but it took {measured:.1f} s here: set it to at least {advice.value}"
