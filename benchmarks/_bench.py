"""A TorchServe with models that take turns, and the load that meets them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import psutil
from _systems import System
from _tables import Say

from tsbatch.operations.registration import register
from tsbatch.serving.server import Server
from tsbatch.system.signals import end_on_signals

if TYPE_CHECKING:
    from typing_extensions import Self

LOAD: Final = Path(__file__).with_name("load.py")


@dataclass(frozen=True, slots=True)
class Case:
    """A load.

    Attributes:
        corpus: a key of :data:`_corpus.LENGTHS`.
        clients: connections that each wait for their answer.
        round_size: requests in a round, the same texts each time.
        seconds: the least time to measure, in whole rounds.
    """

    corpus: str
    clients: int
    round_size: int
    seconds: float

    def __str__(self) -> str:
        return f"{self.corpus}, {self.clients} client{'s' * (self.clients > 1)}"


@dataclass(frozen=True, slots=True)
class Run:
    """What a system gave under a load, once.

    Attributes:
        system: who answered.
        case: the load.
        turn: which alternation.
        rate: requests a second.
        p50: latency in ms, median; ``p99`` alike.
        p99: see ``p50``.
        load_cpu: cores that the load generator itself used.
        workers_ms: CPU time of the workers for each request, in ms.
        frontend_ms: CPU time of TorchServe's Java process for each request, in ms.
    """

    system: System
    case: Case
    turn: int
    rate: float
    p50: float
    p99: float
    load_cpu: float
    workers_ms: float
    frontend_ms: float

    def figures(self) -> dict[str, Any]:
        """As one flat JSON object."""
        whole = asdict(self)
        return {"system": self.system.name, **whole.pop("system"), **whole.pop("case"), **whole}


class Bench:
    """A server whose models come and go; used as a context manager.

    Args:
        folder: for archives.
        texts: the corpora by name.
        say: told what happens.
    """

    def __init__(self, folder: Path, texts: dict[str, list[str]], say: Say) -> None:
        self.folder, self.texts, self.say = folder, texts, say
        self.up: dict[str, System] = {}
        queue = {"job_queue_size": "1000", "enable_model_api": "true"}
        self._ends = ExitStack()
        self._ends.enter_context(end_on_signals())
        self.server = Server.start(name=f"serving-{os.getpid()}", properties=queue, env={"HF_HUB_OFFLINE": "1"})
        self._ends.callback(self.server.stop)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._ends.close()

    def start(self, system: System) -> None:
        """Have the system's workers READY."""
        if system.name in self.up:
            return
        self.say(f"loading {system}")
        archive = system.archive(self.folder)
        try:
            with self.server.management() as management:
                asked = {"initial_workers": system.workers}
                register(management, str(archive), instance=self.server.instance, requested=asked)
        finally:
            archive.unlink()  # the server has unpacked it
        self.up[system.name] = system

    def end(self, system: System) -> None:
        """Have its workers gone."""
        if self.up.pop(system.name, None):
            with self.server.management() as management:
                management.unregister(system.name)

    def run(self, system: System, case: Case, turn: int) -> Run:
        """Put the load on the system once."""
        before = self._cpu()
        with self.loaded(system, case) as load:
            said = load.communicate()[0]
        if load.returncode:
            raise SystemExit(f"{system}: the load failed; its own message is above")
        answer = json.loads(said)
        spent = [after - start for start, after in zip(before, self._cpu(), strict=True)]
        workers, frontend = (round(seconds * 1000 / answer["answers"], 3) for seconds in spent)
        self.say(f"turn {turn + 1}, {case}: {system}: {answer['rate']:.1f}/s, P99 {answer['p99']:.0f} ms")
        return Run(system, case, turn, answer["rate"], answer["p50"], answer["p99"], answer["cpu"], workers, frontend)

    @contextmanager
    def loaded(self, system: System, case: Case) -> Iterator[subprocess.Popen[bytes]]:
        """The process that puts the load on the system; it is gone in the end."""
        address = urlsplit(self.server.inference_address)
        fields = {"Host": address.netloc, "Content-Type": "application/json", **self.server.headers("inference")}
        path = f"/predictions/{system.name}"
        requests = [request_for(path, fields, {"inputs": text}) for text in self.texts[case.corpus]]
        with load_on(address.netloc, requests, case) as load:
            yield load

    def _cpu(self) -> tuple[float, float]:
        """CPU seconds so far of all workers together, and of Java."""
        java = psutil.Process(self.server.pid)
        children = [child.cpu_times() for child in java.children(recursive=True)]
        return sum(times.user + times.system for times in children), sum(java.cpu_times()[:2])


@contextmanager
def load_on(address: str, requests: Sequence[bytes], case: Case) -> Iterator[subprocess.Popen[bytes]]:
    """The process that sends these requests, head and body, to ``address``; it is gone in the end."""
    host, _, port = address.partition(":")
    command = [sys.executable, str(LOAD), host, port]
    command += ["--requests", str(case.round_size), "--connections", str(case.clients)]
    command += ["--warm-up", str(max(case.clients, 4)), "--seconds", str(case.seconds)]
    with tempfile.TemporaryFile() as file:
        file.write(b"".join(requests))
        file.seek(0)
        with subprocess.Popen(command, stdin=file, stdout=subprocess.PIPE) as load:
            try:
                yield load
            finally:
                load.kill()


def request_for(path: str, fields: Mapping[str, str], value: Any) -> bytes:
    """A whole request that sends ``value`` as JSON."""
    body = json.dumps(value).encode()
    head = "".join(f"{name}: {text}\r\n" for name, text in fields.items())
    return f"POST {path} HTTP/1.1\r\n{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
