"""Other serving systems with the same model: their environments, and servers that leave nothing behind."""

from __future__ import annotations

import hashlib
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal

import httpx
from _systems import model_dir

from tsbatch.system.ports import free_ports
from tsbatch.system.processes import MARK, detached, end_marked

ROOT: Final = Path(__file__).resolve().parent.parent
APPS: Final = Path(__file__).resolve().parent / "peer_apps"
ENVIRONMENTS: Final = ROOT / ".venv-peers"
TORCH: Final = "torch==2.13.0"
TRANSFORMERS: Final = "transformers==5.24.0"
SECONDS_TO_START: Final = 180
SECONDS_TO_ANSWER: Final = 10
"""A server that is still starting may accept a connection and never answer it."""
EXAMPLE: Final = "All of them have to give the same answer to this sentence."
MIN_COSINE: Final = 0.9999
Name = Literal["litserve", "ray", "infinity", "bentoml"]


class PeerError(Exception):
    """A peer cannot be installed or started; the message gives the reason in one line."""


@dataclass(frozen=True, slots=True)
class Peer:
    """Another serving system.

    Attributes:
        title: its usual name.
        requirements: the packages that pip installs for it in addition to torch.
        command: the command that starts its server, with ``{bin}``, ``{apps}``, ``{model}``, ``{port}`` and ``{batch}``
            as placeholders.
        path: the HTTP path that accepts texts.
        body: builds the request body for one text.
        processes: whether it can run several workers.
    """

    title: str
    requirements: Sequence[str]
    command: str
    path: str
    body: Callable[[str], Any]
    processes: bool = True


PEERS: Final[dict[Name, Peer]] = {
    "litserve": Peer(
        "LitServe",
        ["litserve==0.2.19", TRANSFORMERS],
        "{bin}/python {apps}/with_litserve.py",
        "/predict",
        lambda text: {"inputs": text},
    ),
    "ray": Peer(
        "Ray Serve",
        ["ray[serve]==2.60.0", TRANSFORMERS],
        "{bin}/python {apps}/with_ray.py",
        "/predict",
        lambda text: {"inputs": text},
    ),
    "infinity": Peer(
        "infinity-emb",
        ["infinity-emb[server,torch]==0.0.78"],
        "{bin}/infinity_emb v2 --model-id {model} --host 127.0.0.1 --port {port} --batch-size {batch} --engine torch"
        " --device cpu --dtype float32 --no-compile --no-bettertransformer --log-level warning",
        "/embeddings",
        lambda text: {"input": [text], "model": "model"},
        processes=False,
    ),
    "bentoml": Peer(
        "BentoML",
        ["bentoml==1.4.40", TRANSFORMERS],
        "{bin}/bentoml serve with_bentoml:Encoder --working-dir {apps} --host 127.0.0.1 --port {port}",
        "/predict",
        lambda text: {"inputs": [text]},
    ),
}


@dataclass(frozen=True, slots=True)
class PeerSystem:
    """A peer with its settings, the counterpart of ``_systems.System`` for TorchServe; ``delay`` is in ms."""

    peer: Name
    workers: int
    threads: int
    batch: int
    delay: int = 5

    def __str__(self) -> str:
        return f"{PEERS[self.peer].title}: {self.settings}"

    @property
    def settings(self) -> str:
        """The settings in words, for example ``2 workers x 1 thread, batch 32``."""
        workers = "1 worker" if self.workers == 1 else f"{self.workers} workers"
        threads = f"{self.threads} thread{'s' * (self.threads > 1)}"
        return f"{workers} × {threads}, {f'batch {self.batch}' if self.batch > 1 else 'no batching'}"

    def figures(self) -> dict[str, Any]:
        """Convert to one JSON object."""
        return asdict(self)


def sweep(peer: Name, cores: int, *, quick: bool) -> list[PeerSystem]:
    """List the settings to try for a peer; some of them have batch 32."""
    shares = [(1, cores), (cores, 1)] if PEERS[peer].processes and cores > 1 else [(1, cores)]
    if quick:
        return [PeerSystem(peer, *shares[-1], 32)]
    return [PeerSystem(peer, *share, batch) for share in shares for batch in (1, 8, 32)]


def install(peer: Name) -> Path:
    """Create the peer's environment if it does not exist yet, and return the folder of its programs.

    Raises:
        PeerError: pip failed.
    """
    folder = ENVIRONMENTS / peer
    programs = folder / ("Scripts" if os.name == "nt" else "bin")
    wanted = [TORCH, *PEERS[peer].requirements]
    stamp = folder / "stamp"
    key = hashlib.sha256(json.dumps([sys.version, wanted]).encode()).hexdigest()
    if stamp.is_file() and stamp.read_text(encoding="ascii") == key:
        return programs
    _run([sys.executable, "-m", "venv", "--clear", str(folder)])
    constraints = folder / "constraints.txt"
    constraints.write_text(f"{TORCH}\n", encoding="ascii")
    _run([str(programs / "python"), "-m", "pip", "install", "-q", "-c", str(constraints), *wanted])
    stamp.write_text(key, encoding="ascii")
    return programs


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()] or [f"exit code {done.returncode}"]
        raise PeerError(next((line for line in lines if line.startswith("ERROR")), lines[-1]))


@dataclass(frozen=True, slots=True)
class PeerServer:
    """A peer's running server.

    Attributes:
        system: the running peer and its settings.
        address: host and port, for example ``127.0.0.1:8000``.
    """

    system: PeerSystem
    address: str

    @property
    def peer(self) -> Peer:
        """The serving system."""
        return PEERS[self.system.peer]


@contextmanager
def serving(
    system: PeerSystem,
    programs: Path,
    expected: Sequence[float],
    more: Callable[[Path], Mapping[str, str]] = lambda _: {},
) -> Iterator[PeerServer]:
    """Start the server, wait until it answers :data:`EXAMPLE` correctly, and stop it with all its processes afterwards.

    Args:
        system: the peer and its settings.
        programs: the folder of its programs.
        expected: the correct vector.
        more: computes additional environment variables from its working folder.

    Raises:
        PeerError: it exited, took too long, or gave a different answer.
    """
    port = free_ports(1)[0]
    values = {"bin": programs, "apps": APPS, "model": model_dir(), "port": port, "batch": system.batch}
    command = [word.format(**values) for word in PEERS[system.peer].command.split()]
    with tempfile.TemporaryDirectory(prefix="tsbatch-peer-") as folder:
        log = Path(folder) / "log.txt"
        with log.open("wb") as out:
            process = subprocess.Popen(
                command,
                stdout=out,
                stderr=out,
                cwd=folder,
                env={**_environment(system, port, folder), **more(Path(folder))},
                **detached(),
            )
        try:
            server = PeerServer(system, f"127.0.0.1:{port}")
            _wait(server, process, log, expected)
            yield server
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            end_marked(folder)


def _environment(system: PeerSystem, port: int, folder: str) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR") if name in os.environ}
    settings = {"MODEL": model_dir(), "PORT": port, "WORKERS": system.workers, "THREADS": system.threads}
    settings |= {"BATCH": system.batch, "DELAY": system.delay}
    own = {f"PEER_{name}": str(value) for name, value in settings.items()}
    quiet = {"HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1", "BENTOML_DO_NOT_TRACK": "True", "RAY_USAGE_STATS_ENABLED": "0"}
    # Despite its name, this variable keeps all of Ray's own ports on 127.0.0.1.
    quiet |= {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
    threads = dict.fromkeys(("OMP_NUM_THREADS", "RAYON_NUM_THREADS"), str(system.threads))
    home = {"BENTOML_HOME": f"{folder}/bentoml", "PYTHONPATH": str(APPS), MARK: folder}
    return {**kept, **own, **quiet, **threads, **home}


def _wait(server: PeerServer, process: subprocess.Popen[bytes], log: Path, expected: Sequence[float]) -> None:
    deadline = time.monotonic() + SECONDS_TO_START
    while True:
        try:
            vector = _ask(server)
            break
        except httpx.HTTPError as error:
            if process.poll() is not None:
                raise PeerError(f"its server exited: {_last_line(log)}") from None
            if time.monotonic() > deadline:
                raise PeerError(f"no answer in {SECONDS_TO_START} s: {error}; {_last_line(log)}") from None
            time.sleep(0.2)
    if (found := cosine(vector, expected)) < MIN_COSINE:
        raise PeerError(f"its answer differs from the expected vector: cosine {found:.4f}")


def _ask(server: PeerServer) -> list[float]:
    url = f"http://{server.address}{server.peer.path}"
    answer = httpx.post(
        url, json=server.peer.body(EXAMPLE), trust_env=False, timeout=SECONDS_TO_ANSWER
    ).raise_for_status()
    found = next(vectors_in(answer.json()), None)
    if found is None:
        raise PeerError(f"its answer contains no vector: {answer.text[:200]}")
    return found


def vectors_in(value: Any) -> Iterator[list[float]]:
    """Find every list of numbers in an answer."""
    if isinstance(value, list) and value and isinstance(value[0], float):
        yield value
    elif isinstance(value, list | Mapping):
        for inside in value.values() if isinstance(value, Mapping) else value:
            yield from vectors_in(inside)


def cosine(one: Sequence[float], other: Sequence[float]) -> float:
    """Compute the cosine of two vectors."""
    return sum(a * b for a, b in zip(one, other, strict=True)) / (_norm(one) * _norm(other))


def _norm(vector: Sequence[float]) -> float:
    return math.sqrt(sum(number * number for number in vector))


def _last_line(log: Path) -> str:
    lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return lines[-1].strip() if lines else "its log is empty"
