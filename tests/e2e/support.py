"""What tests do with a running server. Independent of tsbatch's own clients where it can be."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil

from tsbatch.serving.server import Server


@dataclass(frozen=True)
class Answer:
    """One HTTP answer; header names are lower case."""

    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)
    reason: str = ""

    def json(self) -> Any:
        return json.loads(self.body)


def request(
    address: str,
    method: str,
    path: str,
    body: bytes | str | None = None,
    headers: Mapping[str, str] | None = None,
    timeout: float = 60,
) -> Answer:
    """One call on a connection of its own, with exactly these headers."""
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=timeout)
    try:
        connection.request(method, path, body.encode() if isinstance(body, str) else body, dict(headers or {}))
        answer = connection.getresponse()
        names = {name.lower(): value for name, value in answer.getheaders()}
        return Answer(answer.status, answer.read(), names, answer.reason)
    finally:
        connection.close()


def post(
    server: Server,
    model: str,
    body: Any,
    headers: Mapping[str, str] | None = None,
    *,
    path: str | None = None,
    timeout: float = 60,
) -> Answer:
    """POST to a model's /predictions address, or to ``path``, with the token.

    Bytes and str are sent as they are, without a content type unless ``headers`` has one; anything else as JSON.
    """
    given = {**server.headers("inference"), **(headers or {})}
    if not isinstance(body, (bytes, bytearray, str)):
        body = json.dumps(body)
        given.setdefault("Content-Type", "application/json")
    return request(server.inference_address, "POST", path or f"/predictions/{model}", body, given, timeout)


def get(server: Server, path: str, *, management: bool = False) -> Answer:
    """GET from the inference or the management address, with the token."""
    kind, address = ("management", server.management_address) if management else ("inference", server.inference_address)
    return request(address, "GET", path, headers=server.headers(kind))


def at_once(calls: Sequence[Callable[[], Any]]) -> list[Any]:
    """Make these calls at the same time, each in its thread; their results in order."""
    barrier = threading.Barrier(len(calls))

    def run(call: Callable[[], Any]) -> Any:
        barrier.wait()
        return call()

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(run, calls))


def post_at_once(
    server: Server, model: str, bodies: Sequence[Any], headers: Mapping[str, str] | None = None
) -> list[Answer]:
    """POST these bodies at the same time."""
    return at_once([lambda body=body: post(server, model, body, headers) for body in bodies])


def worker_pids(server: Server, model: str, version: str | None = None) -> list[int]:
    """The process ids of a model's workers that are READY, in the order of their ports."""
    described = get(server, f"/models/{model}" + (f"/{version}" if version else ""), management=True).json()[0]
    return [worker["pid"] for worker in described["workers"] if worker["status"] == "READY"]


def processes(server: Server) -> list[psutil.Process]:
    """Java and everything it started."""
    java = psutil.Process(server.pid)
    return [java, *java.children(recursive=True)]


def log_text(server: Server, name: str) -> str:
    """A log file of the server, as far as it is written."""
    path = server.log_dir / name
    return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""


def make_archive(
    folder: Path,
    name: str,
    handler: str,
    *,
    version: str = "1.0",
    config: str | None = None,
    extra: Sequence[Path] = (),
) -> Path:
    """A small archive made by torch-model-archiver: a handler's source and a model-config.yaml."""
    folder.mkdir(parents=True, exist_ok=True)
    source = folder / f"{name}_handler.py"
    source.write_text(handler, encoding="utf-8")
    arguments = ["--model-name", name, "--version", version, "--handler", str(source), "--export-path", str(folder)]
    if config is not None:
        path = folder / f"{name}-config.yaml"
        path.write_text(config, encoding="utf-8")
        arguments += ["--config-file", str(path)]
    if extra:
        arguments += ["--extra-files", ",".join(map(str, extra))]
    # The archiver works in <temp>/<model name> and clears it first.
    scratch = folder / "scratch"
    scratch.mkdir(exist_ok=True)
    subprocess.run(
        [sys.executable, "-m", "model_archiver.model_packaging", *arguments, "--force"],
        check=True,
        capture_output=True,
        env={"TMPDIR": str(scratch), "PATH": ""},
    )
    return folder / f"{name}.mar"
