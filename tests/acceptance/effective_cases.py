"""Combinations of the layers that decide a model's settings, for TorchServe and ``tsbatch effective`` alike."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.e2e.raw_server import RawServer, archive
from tsbatch.configuration.effective_settings import Deployment, effective
from tsbatch.worker.cpu_cores import usable_cores

PROPERTIES = {
    "default_response_timeout": "77",
    "default_startup_timeout": "88",
    "job_queue_size": "37",
}
YAMLS: dict[str, str | None] = {
    "none": None,
    "full": "batchSize: 3\nmaxBatchDelay: 30\nresponseTimeout: 31\nstartupTimeout: 32\njobQueueSize: 33\n",
    "batch": "batchSize: 4\n",
    "zero": "batchSize: 0\nmaxBatchDelay: 0\nresponseTimeout: 0\nstartupTimeout: -5\n",
    "texts": "batchSize: '8'\nmaxBatchDelay: 8.0\nresponseTimeout: '60'\njobQueueSize: '9'\nuseJobTicket: 'true'\n",
    "negative": "batchSize: -3\nmaxBatchDelay: -7\njobQueueSize: -1\nclientTimeoutInMills: -1\n",
    "others": "maxRetryTimeoutInSec: 7\nclientTimeoutInMills: 900\nuseJobTicket: true\nminWorkers: 2\n",
    "misspelt": "batch_size: 8\nmax_batch_delay: 5\n",
    "own": "handler: {batchSize: 9}\nmaxWorkers: 3\n",
    "huge": "batchSize: 3000000000\nstartupTimeout: 99\n",
}
MODELS: dict[str, dict[str, Any] | None] = {
    "none": None,
    "full": {"batchSize": 5, "maxBatchDelay": 50, "responseTimeout": 51, "startupTimeout": 52},
    "zeros": {"batchSize": 0, "maxBatchDelay": -1, "responseTimeout": 0, "startupTimeout": 0},
    "texts": {"batchSize": "6", "maxBatchDelay": 60.7, "responseTimeout": "61"},
    "workers": {"minWorkers": 1, "maxWorkers": 2, "batch_size": 9},
}
API: dict[str, dict[str, str]] = {
    "none": {},
    "full": {"batch_size": "7", "max_batch_delay": "70", "response_timeout": "71", "startup_timeout": "72"},
    "zero": {"batch_size": "0", "max_batch_delay": "0", "response_timeout": "0"},
    "bad": {"batch_size": "many", "max_batch_delay": "1.5", "response_timeout": "60s", "initial_workers": "no"},
    "unset": {"batch_size": "-1", "max_batch_delay": "-100", "response_timeout": "-1"},
    "delay": {"max_batch_delay": "9"},
}
SURPRISING = [
    ("full", "full", "full"),
    ("batch", "full", "full"),
    ("none", "full", "full"),
    ("zero", "none", "none"),
    ("zero", "full", "zero"),
    ("texts", "texts", "none"),
    ("none", "texts", "bad"),
    ("none", "none", "full"),
    ("none", "none", "none"),
    ("others", "workers", "none"),
]


@dataclass(frozen=True)
class Combination:
    """One model; the names are keys of the tables above."""

    yaml: str
    models: str
    api: str

    @property
    def name(self) -> str:
        return f"m_{self.yaml}_{self.models}_{self.api}"


def combinations(count: int, seed: int = 4) -> list[Combination]:
    """The surprising ones first, then as many others, drawn at random."""
    others = [each for each in itertools.product(YAMLS, MODELS, API) if each not in SURPRISING]
    chosen = [*SURPRISING, *random.Random(seed).sample(others, max(0, count - len(SURPRISING)))]
    return [Combination(*each) for each in chosen[:count]]


def config_text(chosen: list[Combination]) -> str:
    """The server's config.properties for these."""
    models = {each.name: {"1.0": entry} for each in chosen if (entry := MODELS[each.models]) is not None}
    lines = [f"{key}={value}" for key, value in PROPERTIES.items()]
    return "\n".join([*lines, f"models={json.dumps(models)}", ""])


def make_archives(store: Path, chosen: list[Combination]) -> None:
    """Their archives."""
    for each in chosen:
        archive(store, each.name, config=YAMLS[each.yaml])


def expected(
    each: Combination, properties: Mapping[str, str], config: dict[str, Any] | None, api: Mapping[str, str] | None
) -> dict[str, Any]:
    """What ``tsbatch effective`` says."""
    model = Deployment(
        name=each.name, version="1.0", config=config, properties=properties, api=api, cores=usable_cores()
    )
    return {setting.name: setting.value for setting in effective(model)}


def described(server: RawServer, name: str) -> dict[str, Any]:
    """What TorchServe says, under the same names."""
    found = server.describe(name)
    queue = found.pop("jobQueueStatus")
    return {**found, "jobQueueSize": queue["remainingCapacity"] + queue["pendingRequests"]}


def differences(told: Mapping[str, Any], real: Mapping[str, Any]) -> Iterator[str]:
    """Where the two disagree."""
    for name, value in told.items():
        if real.get(name) != value:
            yield f"{name}: tsbatch says {value!r}, TorchServe {real.get(name)!r}"
