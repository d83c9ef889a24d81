"""A TorchServe server whose models are measured in turn, and the load sent to them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
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
        clients: connections; each waits for its answer before it sends the next request.
        round_size: requests in a round, the same texts each time.
        seconds: the minimum time to measure, extended to whole rounds.
    """

    corpus: str
    clients: int
    round_size: int
    seconds: float

    def __str__(self) -> str:
        return f"{self.corpus}, {self.clients} client{'s' * (self.clients > 1)}"


@dataclass(frozen=True, slots=True)
class Run:
    """The figures of one run of a system under a load.

    Attributes:
        system: the system under test.
        case: the load.
        turn: the number of the turn, from 0.
        rate: requests a second.
        p50: median latency in ms.
        p99: 99th percentile of the latency in ms.
        load_cpu: cores that the load generator used.
        workers_ms: CPU time of the workers per request, in ms.
        frontend_ms: CPU time of TorchServe's Java process per request, in ms.
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
        """Convert to one flat JSON object."""
        whole = asdict(self)
        return {"system": self.system.name, **whole.pop("system"), **whole.pop("case"), **whole}


class Bench:
    """A server on which models are registered and unregistered; used as a context manager.

    Args:
        folder: where archives are written.
        texts: the corpora by name.
        say: receives progress messages.
    """

    def __init__(self, folder: Path, texts: dict[str, list[str]], say: Say) -> None:
        self.folder, self.texts, self.say = folder, texts, say
        self.running: dict[str, System] = {}
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
        """Register the system, unless it is running, and wait until its workers are READY."""
        if system.name in self.running:
            return
        self.say(f"loading {system}")
        archive = system.archive(self.folder)
        try:
            with self.server.management() as management:
                requested = {"initial_workers": system.workers}
                register(management, str(archive), instance=self.server.instance, requested=requested)
        finally:
            archive.unlink()  # the server has its own unpacked copy
        self.running[system.name] = system

    def end(self, system: System) -> None:
        """Unregister the system if it is running, which stops its workers."""
        if self.running.pop(system.name, None):
            with self.server.management() as management:
                management.unregister(system.name)

    def run(self, system: System, case: Case, turn: int) -> Run:
        """Run the load against the system once."""
        before = self._cpu()
        with self.loaded(system, case) as load:
            answer = outcome_of(load, str(system))
        spent = [after - start for start, after in zip(before, self._cpu(), strict=True)]
        workers, frontend = (round(seconds * 1000 / answer["answers"], 3) for seconds in spent)
        self.say(f"turn {turn + 1}, {case}: {system}: {answer['rate']:.1f}/s, P99 {answer['p99']:.0f} ms")
        return Run(system, case, turn, answer["rate"], answer["p50"], answer["p99"], answer["cpu"], workers, frontend)

    @contextmanager
    def loaded(self, system: System, case: Case) -> Iterator[subprocess.Popen[bytes]]:
        """Start the process that runs the load against the system; it is killed after the block."""
        address = urlsplit(self.server.inference_address)
        fields = {"Host": address.netloc, "Content-Type": "application/json", **self.server.headers("inference")}
        path = f"/predictions/{system.name}"
        requests = [request_for(path, fields, {"inputs": text}) for text in self.texts[case.corpus]]
        with load_on(address.netloc, requests, case) as load:
            yield load

    def _cpu(self) -> tuple[float, float]:
        """Read the CPU seconds used so far by all workers together, and by Java."""
        java = psutil.Process(self.server.pid)
        children = [child.cpu_times() for child in java.children(recursive=True)]
        return sum(times.user + times.system for times in children), sum(java.cpu_times()[:2])


@contextmanager
def load_on(address: str, requests: Sequence[bytes], case: Case) -> Iterator[subprocess.Popen[bytes]]:
    """Start the process that sends these requests, head and body, to ``address``; it is killed after the block."""
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


def outcome_of(
    load: subprocess.Popen[bytes], name: str, error: Callable[[str], BaseException] = SystemExit
) -> dict[str, Any]:
    """Wait for a load process and return the JSON object that it prints.

    Args:
        load: the process, from :func:`load_on`.
        name: the system under test, for the message.
        error: what to raise if the load failed.
    """
    printed = load.communicate()[0]
    if load.returncode:
        raise error(f"{name}: the load failed; see its message above")
    outcome: dict[str, Any] = json.loads(printed)
    return outcome


def request_for(path: str, fields: Mapping[str, str], value: Any) -> bytes:
    """Build a complete request that sends ``value`` as JSON."""
    body = json.dumps(value).encode()
    head = "".join(f"{name}: {text}\r\n" for name, text in fields.items())
    return f"POST {path} HTTP/1.1\r\n{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
