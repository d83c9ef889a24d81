"""TorchServe with a config.properties exactly as somebody wrote it; tsbatch's own server would tidy it up first."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tempfile
import time
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from tests.e2e.support import Answer, request
from tsbatch.configuration.server_properties import ServerProperties
from tsbatch.serving import java_command
from tsbatch.serving.java_runtime import find_java
from tsbatch.system.ports import free_ports
from tsbatch.system.processes import end_marked

SECONDS = 60
STARTED = "Model server started."
"""What Java prints when all its addresses are bound."""
ECHO = """
class Echo:
    def initialize(self, context):
        pass

    def handle(self, data, context):
        return ["ok"] * len(data)
"""
"""A handler that loads at once: it imports nothing."""


def archive(
    store: Path,
    name: str,
    *,
    config: str | None = None,
    handler: str = ECHO,
    version: str = "1.0",
    manifest: Mapping[str, Any] | None = None,
    extra: Mapping[str, str] | None = None,
) -> Path:
    """A ``.mar`` in a store, written without any archiver."""
    model = {"modelName": name, "modelVersion": version, "handler": "own_handler.py", **(manifest or {})}
    files = {"own_handler.py": handler, **(extra or {})}
    if config is not None:
        model.setdefault("configFile", "model-config.yaml")
        files["model-config.yaml"] = config
    model = {key: value for key, value in model.items() if value is not None}
    files["MAR-INF/MANIFEST.json"] = json.dumps({"createdOn": "", "runtime": "python", "model": model})
    store.mkdir(parents=True, exist_ok=True)
    path = store / f"{name}.mar"
    with zipfile.ZipFile(path, "w") as packed:
        for inside, text in files.items():
            packed.writestr(inside, text)
    return path


@dataclass
class RawServer:
    """The server as its clients see it.

    Attributes:
        inference, management, metrics: its addresses.
        console: what Java printed, where it ended instead of answering; empty while it runs.
        logs: its log folder.
    """

    inference: str
    management: str
    metrics: str
    logs: Path
    console: str = ""

    def register(self, name: str, **parameters: Any) -> Answer:
        """POST /models."""
        query = urlencode({"url": f"{name}.mar", **parameters})
        return request(self.management, "POST", f"/models?{query}", timeout=SECONDS)

    def describe(self, name: str) -> dict[str, Any]:
        """GET /models/{name}."""
        answer = request(self.management, "GET", f"/models/{name}")
        assert answer.status == 200, answer.body
        return answer.json()[0]

    def models(self) -> set[str]:
        """The names of the registered models."""
        return {model["modelName"] for model in request(self.management, "GET", "/models").json()["models"]}

    def predict(self, name: str) -> Answer:
        """One prediction."""
        return request(self.inference, "POST", f"/predictions/{name}", "1", {"Content-Type": "application/json"})

    def keys(self) -> dict[str, str]:
        """The keys that it wrote down: kind: key."""
        found = json.loads((self.logs.parent / "key_file.json").read_text())
        return {kind: entry["key"] for kind, entry in found.items()}

    def log(self, name: str = "ts_log.log") -> str:
        """A log file so far."""
        path = self.logs / name
        return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""


@contextmanager
def raw_server(store: Path, text: str, *, env: Mapping[str, str] | None = None) -> Iterator[RawServer]:
    """Starts TorchServe with this config.properties and free ports, and ends it with everything it started.

    Addresses and switches that the text does not have are put in front of it, so that the text stays as it is;
    ``{inference}`` and so on in the text stand for the free ports.
    """
    work = Path(tempfile.mkdtemp(prefix="tsbatch-raw-"))
    ports = dict(zip(("inference", "management", "metrics", "grpc1", "grpc2"), map(str, free_ports(5)), strict=True))
    for name, port in ports.items():
        text = text.replace(f"{{{name}}}", port)
    (work / java_command.CONFIG_FILE).write_bytes(_defaults(ports, text).encode() + text.encode())
    temp, logs = work / "tmp", work / "logs"
    for folder in (temp, logs, store):
        folder.mkdir(parents=True, exist_ok=True)
    values = ServerProperties({"model_store": str(store)})
    environment = java_command.environment(work, temp, logs, env or {})
    process = java_command.run(java_command.command(find_java(), values, work, temp), work, logs, environment)
    addresses = [f"http://127.0.0.1:{ports[name]}" for name in ("inference", "management", "metrics")]
    server = RawServer(*addresses, logs)
    try:
        _wait(server, process)
        yield server
    finally:
        process.kill()
        process.wait()
        end_marked(str(work))
        shutil.rmtree(work, ignore_errors=True)


def _defaults(ports: Mapping[str, str], text: str) -> str:
    defaults = {
        "inference_address": f"http://127.0.0.1:{ports['inference']}",
        "management_address": f"http://127.0.0.1:{ports['management']}",
        "metrics_address": f"http://127.0.0.1:{ports['metrics']}",
        "grpc_inference_port": ports["grpc1"],
        "grpc_management_port": ports["grpc2"],
        "enable_model_api": "true",
        "disable_token_authorization": "true",
    }
    return "".join(f"{key}={value}\n" for key, value in defaults.items() if not re.search(rf"(?m)^{key}\b", text))


def _wait(server: RawServer, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        if STARTED in server.log(java_command.CONSOLE):
            return
        time.sleep(0.1)
    server.console = server.log(java_command.CONSOLE) + server.log()
