"""A Ray on this machine for the acceptance tests, driven through the command line, and what is asked of it."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.acceptance.regimes import OURS
from tests.e2e.support import Answer, request
from tsbatch.archive.model_config import ModelConfig
from tsbatch.packaging.builder import package
from tsbatch.ray.deploy import local_cluster
from tsbatch.system.ports import free_ports
from tsbatch.worker.cpu_cores import usable_cores

ROOT = Path(__file__).resolve().parents[2]
CORES = 16 + 2 * usable_cores()
"""What replicas can reserve; most of them sleep, and one has as many threads as the machine has cores."""
ENVIRONMENT = {**local_cluster.ENVIRONMENT, "HF_HUB_OFFLINE": "1", "RAY_DEDUP_LOGS": "0"}


@dataclass
class RayHere:
    """A running Ray with Serve on it.

    Attributes:
        address: of the cluster.
        port: where Serve listens.
        environment: of every command.
    """

    address: str
    port: int
    environment: Mapping[str, str]

    @property
    def url(self) -> str:
        """Where Serve listens."""
        return f"http://127.0.0.1:{self.port}"

    def command(self, *words: str, code: int | None = 0, timeout: float = 240) -> subprocess.CompletedProcess[str]:
        """``tsbatch ray`` with these words."""
        command = [sys.executable, "-m", "tsbatch", "ray", *words, "--address", self.address]
        environment = {**os.environ, **self.environment}
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout, check=False, env=environment, cwd=ROOT
        )
        assert code is None or done.returncode == code, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def deploy(self, archive: Path | str, name: str, *words: str) -> dict[str, Any]:
        """Deploy an archive and return what the command says of it."""
        done = self.command("deploy", str(archive), "--name", name, *words, "--port", str(self.port), "--json")
        return json.loads(done.stdout)

    def undeploy(self, name: str) -> None:
        """Remove it."""
        self.command("undeploy", name, "--json")

    @contextlib.contextmanager
    def serving(self, archive: Path | str, name: str, *words: str) -> Iterator[dict[str, Any]]:
        """An archive that answers for as long as the block lasts."""
        told = self.deploy(archive, name, *words)
        try:
            yield told
        finally:
            self.undeploy(name)

    def status(self) -> dict[str, Any]:
        """What ``tsbatch ray status`` says."""
        done = self.command("status", "--json", code=None)
        assert done.returncode in (0, 1), done.stderr
        return json.loads(done.stdout)

    def post(self, path: str, body: Any, headers: Mapping[str, str] | None = None, timeout: float = 60) -> Answer:
        """POST there; bytes and str as they are, anything else as JSON."""
        given = dict(headers or {})
        if not isinstance(body, (bytes, bytearray, str)):
            body = json.dumps(body)
            given.setdefault("Content-Type", "application/json")
        return request(self.url, "POST", path, body, given, timeout)

    def get(self, path: str) -> Answer:
        """GET from there."""
        return request(self.url, "GET", path)


@contextlib.contextmanager
def ray_here() -> Iterator[RayHere]:
    """A Ray of one node; it ends with the block, and all that it started."""
    os.environ.update(ENVIRONMENT)
    started = local_cluster.start(cores=CORES)
    try:
        with tempfile.TemporaryDirectory() as nothing:
            # Commands do not know it for their own: undeploying the last application would end it.
            environment = {**started.environment, "TSBATCH_STATE_DIR": nothing}
            yield RayHere(started.address, free_ports(1)[0], environment)
    finally:
        local_cluster.end(started)


def wait_until(wanted: Any, seconds: float = 60) -> Any:
    """Ask again until the answer is true, and return it."""
    deadline = time.monotonic() + seconds
    while not (found := wanted()):
        assert time.monotonic() < deadline, f"not in {seconds:g} s"
        time.sleep(0.1)
    return found


SLEEPER = f"""import os
{OURS}
    def postprocess(self, outputs, items):
        return [{{"value": value, "tag": self.options["tag"], "pid": os.getpid()}} for value in outputs]
"""


def sleeper(
    folder: Path, *, fixed: float = 50, each: float = 0, tag: str = "first", batch_size: int = 8, delay: int = 5
) -> Path:
    """An archive of a model that sleeps ``fixed + each * n`` ms a batch, and says who answered."""
    folder.mkdir(parents=True, exist_ok=True)
    handler = folder / "sleeper_handler.py"
    handler.write_text(SLEEPER, encoding="utf-8")
    base = {"handler": {"fixed": fixed, "each": each, "tag": tag}, "responseTimeout": 20}
    config = ModelConfig(workers=1, batch_size=batch_size, max_batch_delay=delay, threads=1, base=base)
    return package(name="sleeper", handler=handler, config=config, output_dir=folder, force=True)


@dataclass(frozen=True)
class Sent:
    """One request of a steady load.

    Attributes:
        at: when it was sent, seconds on the clock of ``time.monotonic``.
        took: seconds until it was over.
        answer: what came; None where nothing did.
    """

    at: float
    took: float
    answer: Answer | None

    @property
    def ok(self) -> bool:
        """Whether it was answered with 200."""
        return self.answer is not None and self.answer.status == 200


class Steady:
    """Sends requests evenly for as long as the block lasts; ``sent`` has what became of those that are over."""

    def __init__(self, running: RayHere, path: str, *, rate: float) -> None:
        self.sent: list[Sent] = []
        self._running, self._path, self._gap = running, path, 1 / rate
        self._over = threading.Event()
        self._pool = ThreadPoolExecutor(64)
        self._clock = threading.Thread(target=self._tick)

    def __enter__(self):
        self._clock.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._clock.join()
        self._pool.shutdown()

    def since(self, moment: float) -> list[Sent]:
        """What was sent since then and is over."""
        return [one for one in list(self.sent) if one.at >= moment]

    def _tick(self) -> None:
        due = time.monotonic()
        number = 0
        while not self._over.wait(max(0.0, due - time.monotonic())):
            self._pool.submit(self._send, number)
            due += self._gap
            number += 1

    def _send(self, number: int) -> None:
        at = time.monotonic()
        answer = None
        with contextlib.suppress(OSError, http.client.HTTPException):
            answer = self._running.post(self._path, number, timeout=60)
        self.sent.append(Sent(at, time.monotonic() - at, answer))
