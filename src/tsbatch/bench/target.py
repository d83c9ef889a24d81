"""Load-test targets: a model on a managed server, or any URL."""

from __future__ import annotations

import contextlib
import os
import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, unquote

import psutil

from tsbatch._version import __version__
from tsbatch.bench.http_client import Address
from tsbatch.errors import UsageError
from tsbatch.operations.connection import reach
from tsbatch.operations.setting_sources import origins
from tsbatch.serving.instance import DEFAULT_NAME, Instance
from tsbatch.serving.management_client import Management, ready_workers
from tsbatch.serving.tokens import FixedToken, TokenSource
from tsbatch.worker.cpu_cores import usable_cores

SETTINGS: Final = ("batchSize", "maxBatchDelay", "minWorkers", "maxWorkers", "responseTimeout", "startupTimeout")
READY: Final = "workers that were READY"
MODEL_IN_PATH: Final = re.compile(r"/(?:predictions|v1/models|v2/models|models)/([^/:?]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The target of a load test.

    Attributes:
        address: the address that requests are sent to.
        tokens: source of the inference token.
        model, version: as reported by the server; None if it was not asked.
        settings: the model's settings as reported by ``GET /models``, and ``workers`` that are READY.
        origins: where each setting is set, if known.
        pids: name and process id of its workers and of the server, if they are on this machine.
        log_dir: the log folder of a managed server.
        engine: ``ray`` for Ray Serve, if the server was asked.
    """

    address: Address
    tokens: TokenSource
    model: str | None = None
    version: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    origins: Mapping[str, str] = field(default_factory=dict)
    pids: Mapping[str, int] = field(default_factory=dict)
    log_dir: Path | None = None
    engine: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object without the token."""
        scheme = "https" if self.address.tls else "http"
        return {
            "address": f"{scheme}://{self.address.netloc}{self.address.path}",
            "model": self.model,
            "version": self.version,
            "engine": self.engine,
            "settings": dict(self.settings),
            "origins": dict(self.origins),
        }


def find_target(
    name_or_url: str, *, instance: str = DEFAULT_NAME, version: str | None = None, management: str | None = None
) -> Target:
    """Find the target of a load test.

    Args:
        name_or_url: a model on the running instance, or a URL.
        instance: name of that instance.
        version: the model's version; the default version if omitted.
        management: for a URL: management address of its server.

    Raises:
        UsageError: there is no such instance, model or address.
        ServerError: the server is unreachable.
    """
    if "://" in name_or_url:
        return _by_url(name_or_url, management)
    if management is not None:
        raise UsageError(
            f"--server only names the management address; to load another server, give the whole URL instead of"
            f" {name_or_url}: http://HOST:8080/predictions/{name_or_url}"
        )
    running = reach(instance)
    with running.management() as api:
        described = api.describe(name_or_url, version)
    path = "/".join(quote(part, safe="") for part in (name_or_url, version) if part)
    address = Address.parse(f"{running.inference_address}/predictions/{path}")
    return _described(address, running.tokens, described, here=True, running=running)


def _by_url(url: str, management: str | None) -> Target:
    address = Address.parse(url)
    tokens = FixedToken(os.environ.get("TSBATCH_TOKEN") or None)
    model = MODEL_IN_PATH.search(address.path)
    if management is None or model is None:
        return Target(address=address, tokens=tokens, model=unquote(model[1]) if model else None)
    with Management(management, tokens) as api:
        return _described(address, tokens, api.describe(unquote(model[1])), here=api.is_local)


def _described(
    address: Address, tokens: TokenSource, described: Mapping[str, Any], *, here: bool, running: Instance | None = None
) -> Target:
    pids = {f"worker {worker['id']}": worker["pid"] for worker in described["workers"] if here and worker.get("pid")}
    if running is not None:
        pids["server"] = running.process.pid
    return Target(
        address=address,
        tokens=tokens,
        model=described["modelName"],
        version=described["modelVersion"],
        settings={**{key: described.get(key) for key in SETTINGS}, "workers": ready_workers(described)},
        origins={} if running is None else {**origins(running, described), "workers": READY},
        pids=pids,
        log_dir=running.log_dir if running else None,
        engine=described.get("engine"),
    )


def environment() -> dict[str, Any]:
    """Return the machine that generates the load, and the versions in use."""
    return {
        "tsbatch": __version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "cpu": _cpu_name(),
        "cores": usable_cores(),
        "memory": psutil.virtual_memory().total,
    }


def _cpu_name() -> str:
    with contextlib.suppress(OSError):
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.MULTILINE)
        if found:
            return found[1]
    return platform.processor() or platform.machine()
