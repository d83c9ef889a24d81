"""Diagnose from a Prometheus address of TorchServe (``metrics_mode=prometheus``): means only.

TorchServe reports sums, so only means over an interval are known: the growth of a sum divided by the growth of a count.
There are no percentiles and no single batches. Its own latency sums contain queue wait and assembly wait together
(frontend/server/.../job/RestJob.java); tsbatch handlers count them separately if clients send X-Request-Start.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

import httpx

from tsbatch.bench.request_table import STAGES
from tsbatch.diagnosis.diagnosis import Diagnosis, conclude
from tsbatch.diagnosis.evidence import Evidence
from tsbatch.diagnosis.latency_breakdown import PARTS, Part, Split
from tsbatch.diagnosis.model_facts import Known
from tsbatch.errors import ServerError, UsageError

SAMPLE: Final = re.compile(r"(?P<name>[a-zA-Z_:][\w:]*)(?:\{(?P<labels>.*)\})? (?P<value>\S+)(?: \S+)?")
LABEL: Final = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')

TOTAL: Final = "ts_inference_requests_total"
LATENCY: Final = "ts_inference_latency_microseconds"
WAITED: Final = "ts_queue_latency_microseconds"
STAGE_SUMS: Final = tuple(f"{stage.capitalize()}Time" for stage in STAGES)
MODEL_LABELS: Final = ("model_name", "ModelName")

MEANS_ONLY: Final = (
    "Prometheus only has sums, so these are means over the interval; percentiles, batches and sequential clients are "
    "only visible in the log folder or in a load test's file"
)
NOT_SEPARATE: Final = (
    "queue wait and assembly wait are not known separately, because no tsbatch handler counted them or no client sent "
    "X-Request-Start; their sum is shown as queue"
)


@dataclass(frozen=True, slots=True)
class Scrape:
    """The answer of /metrics at one moment: the values of each model by name, summed over the other labels.

    Attributes:
        at: seconds of a monotonic clock.
        models: model to name to value.
    """

    at: float
    models: Mapping[str, Mapping[str, float]]


def parse(text: str) -> dict[str, dict[str, float]]:
    """Parse Prometheus' text format into model to name to value; samples without a model are skipped."""
    models: dict[str, dict[str, float]] = {}
    for line in text.splitlines():
        found = SAMPLE.fullmatch(line.strip())
        if found is None or found["labels"] is None:
            continue
        labels = dict(LABEL.findall(found["labels"]))
        model = next((labels[name] for name in MODEL_LABELS if name in labels), None)
        if model is not None:
            values = models.setdefault(model, {})
            values[found["name"]] = values.get(found["name"], 0.0) + float(found["value"])
    return models


def scrape(url: str) -> Scrape:
    """Read a metrics address.

    Raises:
        UsageError: the address does not answer with metrics.
        ServerError: it is unreachable.
    """
    address = url if url.rstrip("/").endswith("metrics") else f"{url.rstrip('/')}/metrics"
    try:
        answer = httpx.get(address, timeout=10, trust_env=False)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise ServerError(f"cannot reach {address}: {error}") from error
    if not answer.is_success:
        raise UsageError(f"{address} answered {answer.status_code}; expected TorchServe's metrics address (port 8082)")
    return Scrape(time.monotonic(), parse(answer.text))


def from_prometheus(
    url: str,
    *,
    seconds: float,
    model: str | None = None,
    known: Known | None = None,
    wait: Callable[[float], None] = time.sleep,
) -> Diagnosis:
    """Diagnose one model from the growth of its sums.

    Args:
        url: the metrics address.
        seconds: how long to watch.
        model: the model; by default the one with the most requests.
        known: facts in addition to the metrics.
        wait: how to wait.

    Raises:
        UsageError: there are no such metrics, or the model received no requests meanwhile.
        ServerError: the address is unreachable.
    """
    before = scrape(url)
    wait(seconds)
    after = scrape(url)
    return between(before, after, model=model, known=known or Known(), source=url)


def between(before: Scrape, after: Scrape, *, model: str | None, known: Known, source: str = "") -> Diagnosis:
    """Diagnose from two scrapes.

    Raises:
        UsageError: there are no such metrics, or the model received no requests meanwhile.
    """
    if not after.models and not model:
        raise UsageError(f"{source}: no metrics of any model; they need metrics_mode=prometheus in config.properties")
    name = model or max(after.models, key=lambda one: _grown(before, after, one).get(TOTAL, 0.0))
    grown = _grown(before, after, name)
    if grown.get(TOTAL, 0) <= 0 or grown.get(LATENCY, 0) <= 0:
        names = ", ".join(sorted(after.models)) or "none: is metrics_mode=prometheus set in config.properties?"
        raise UsageError(f"{source}: {name} answered no request while it was watched; models there: {names}")
    evidence, separate = _evidence(grown, after.at - before.at, known)
    known = replace(known, model=name)
    remarks = [MEANS_ONLY] if separate else [MEANS_ONLY, NOT_SEPARATE]
    return conclude(evidence, known, _split(evidence, grown), source=source, remarks=remarks)


def _grown(before: Scrape, after: Scrape, model: str) -> dict[str, float]:
    old = before.models.get(model, {})
    return {name: value - old.get(name, 0.0) for name, value in after.models.get(model, {}).items()}


def _evidence(grown: Mapping[str, float], seconds: float, known: Known) -> tuple[Evidence, bool]:
    # The total counts arrivals, the sums count answers: correct if as many are in flight at both ends.
    requests = grown[TOTAL]
    latency, waited = grown[LATENCY] / requests / 1000, grown.get(WAITED, 0.0) / requests / 1000
    timed = grown.get("TimedRequests", 0.0)
    separate = timed > 0
    assembly = min(waited, grown.get("AssemblyWaitTime", 0.0) / timed) if separate else 0.0
    stages = sum(grown.get(name, 0.0) for name in STAGE_SUMS)
    workers = known.workers or 1
    backend = latency - waited
    batch = requests * backend / stages if stages else None
    size = known.batch_size
    evidence = Evidence(
        requests=round(requests),
        seconds=seconds,
        rate=requests / seconds,
        failed=0.0,
        refused=0.0,
        queue=waited - assembly,
        assembly=assembly,
        handler=backend,
        outside=0.0,
        latency=latency,
        workers=workers,
        busy=min(1.0, stages / 1000 / seconds / workers),
        in_flight=latency * requests / seconds / 1000,
        batch=batch,
        largest=None,
        batch_size=size,
        delay=float(known.max_batch_delay) if known.max_batch_delay is not None else None,
        full=min(1.0, batch / size) if batch and size else None,
    )
    return evidence, separate


def _split(evidence: Evidence, grown: Mapping[str, float]) -> Split:
    parts = [Part(name, getattr(evidence, name), evidence.share(name)) for name in (*PARTS, "latency")]
    sums = {stage: grown.get(f"{stage.capitalize()}Time", 0.0) for stage in STAGES}
    whole = sum(sums.values())
    # A stage's sum is over batches; its share of the handler time is the same for requests.
    stages = [
        Part(stage, evidence.handler * value / whole, value / whole * evidence.share("handler"))
        for stage, value in sums.items()
        if whole
    ]
    return Split(parts, stages)
