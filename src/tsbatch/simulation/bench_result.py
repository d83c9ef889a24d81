"""Convert a simulation to the result of a load test, for everything that reads one: figures, diagnosis, report."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any, Final

from tsbatch._version import __version__
from tsbatch.bench.result_file import BenchResult, Run
from tsbatch.bench.summary import combine, summarize
from tsbatch.simulation.batching_rules import Settings
from tsbatch.simulation.simulator import REFUSED, Simulated

SIMULATED: Final = "simulated"
"""The address in the result of a simulation."""


def as_result(
    simulated: Simulated, settings: Settings, load: Mapping[str, Any], service: str, remarks: Sequence[str] = ()
) -> BenchResult:
    """Return the result of a load test with these requests.

    Args:
        simulated: the simulated requests.
        settings: of the model.
        load: ``loop``, ``arrivals``, ``steps``, ``limit`` and ``seed`` of the load.
        service: where the service time comes from.
        remarks: further caveats about the figures, in sentences.
    """
    samples = simulated.samples
    refused = int((samples.status == REFUSED).sum())
    run = Run(
        started=datetime.now(timezone.utc).isoformat(),
        step=load["steps"][0] if load["steps"] else None,
        seconds=max(simulated.seconds, 1e-9),
        answered=int(samples.ok.sum()),
        answered_items=float(samples.items[samples.ok].sum()),
        samples=samples,
        errors=[{"status": int(REFUSED), "reason": "the queue was full", "count": refused}] if refused else [],
    )
    run = replace(run, summary=summarize(run, limit=load["limit"], timeout=math.inf))
    figures = combine(run.step, [run])
    return BenchResult(
        target={
            "address": SIMULATED,
            "model": SIMULATED,
            "version": None,
            "settings": settings.to_json(),
            "origins": {},
        },
        plan={"repeat": 1, "warm_up": 0.0, "timeout": 0.0, "seconds": None, "requests": len(samples), **load},
        environment={"tsbatch": __version__, "service_time": service},
        runs=[run],
        summary=[{**figures, "remarks": [*figures["remarks"], *remarks]}],
    )
