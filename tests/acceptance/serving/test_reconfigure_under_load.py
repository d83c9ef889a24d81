"""`tsbatch reconfigure` under a load of 50 requests/s loses none, and the new values hold."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest

from tests.e2e.support import get, post, processes, worker_pids
from tsbatch.archive.model_config import ModelConfig
from tsbatch.cli.program import main
from tsbatch.packaging.builder import package

RATE = 50
"""Requests a second."""
CALM = 2.0
"""Seconds of load before and after the change."""

HANDLER = """
import time
from tsbatch import BatchHandler


class Steady(BatchHandler):
    item_ndim = 0

    def load_model(self):
        return lambda tensors: tensors

    def inference(self, tensors):
        time.sleep({seconds})
        return super().inference(tensors)

    def postprocess(self, outputs, items):
        return [[float(output), self.identity.version] for output in outputs]
"""


class Load:
    """Requests at fixed times, whatever became of those before; each on a connection of its own."""

    def __init__(self, server, model: str, path: str | None = None) -> None:
        self.server, self.model, self.path = server, model, path
        self.answers: list[tuple[int, object]] = []
        self.over = threading.Event()
        self.lock = threading.Lock()
        self.asking: list[threading.Thread] = []
        self.thread = threading.Thread(target=self.run)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *error):
        self.over.set()
        self.thread.join()
        for thread in self.asking:
            thread.join()

    def run(self) -> None:
        begin, number = time.monotonic(), 0
        while not self.over.is_set():
            thread = threading.Thread(target=self.ask, args=(number,))
            self.asking.append(thread)
            thread.start()
            number += 1
            time.sleep(max(0.0, begin + number / RATE - time.monotonic()))

    def ask(self, number: int) -> None:
        try:
            answer = post(self.server, self.model, {"inputs": float(number)}, path=self.path, timeout=100)
            found: tuple[int, object] = (answer.status, answer.json())
            if answer.status == 200 and answer.json()[0] != number:
                found = (-1, f"{number} was answered with {answer.json()}")
        except OSError as error:
            found = (-1, str(error))
        with self.lock:
            self.answers.append(found)


@pytest.fixture
def serve(server_factory, tmp_path):
    def start(form: str, seconds: float, **settings):
        folder = tmp_path / form
        folder.mkdir()
        (folder / "steady.py").write_text(HANDLER.format(seconds=seconds))
        archive = package(
            name="steady", handler=folder / "steady.py", output_dir=folder / "store", form=form,
            config=ModelConfig(**settings),
        )  # fmt: skip
        return server_factory(models=[archive])

    return start


def run(server, capsys, *words: str) -> dict:
    assert main(["reconfigure", "steady", "--name", server.instance.name, "--json", *words]) == 0
    return json.loads(capsys.readouterr().out)


def described(server) -> list[dict]:
    return get(server, "/models/steady/all", management=True).json()


@pytest.mark.parametrize("form", ["mar", "folder"])
def test_line_7(serve, form, capsys, record_property):
    # Batches of 8 that take 0.1 s: a worker is busy and something waits at nearly every instant.
    with serve(form, 0.1, workers=2, batch_size=8, max_batch_delay=20) as server:
        with Load(server, "steady") as load:
            time.sleep(CALM)
            begin = time.monotonic()
            report = run(server, capsys, "--batch-size", "16", "--max-batch-delay", "40", "--response-timeout", "60")
            seconds = time.monotonic() - begin
            time.sleep(CALM)
        statuses = Counter(status for status, _ in load.answers)
        assert statuses == {200: len(load.answers)}, [answer for answer in load.answers if answer[0] != 200][:5]
        versions = Counter(answer[1] for _, answer in load.answers)
        assert set(versions) == {"1.0", "1.0-r1"}, "both versions answered in their time"
        (model,) = described(server)
        assert (model["modelVersion"], model["batchSize"], model["maxBatchDelay"], model["responseTimeout"]) == (
            "1.0-r1", 16, 40, 60,
        )  # fmt: skip
        assert report["changed"] == {
            "batchSize": {"before": 8, "now": 16},
            "maxBatchDelay": {"before": 20, "now": 40},
            "responseTimeout": {"before": 120, "now": 60},
        }
        assert len(worker_pids(server, "steady")) == 2
        # And once more, from what the first change made.
        report = run(server, capsys, "--batch-size", "4")
        assert (report["version"], report["batch_size"]) == ("1.0-r2", 4)
        assert post(server, "steady", {"inputs": 1.0}).json() == [1.0, "1.0-r2"]
        folders = [path.name for path in (server.instance.work_dir / "reconfigured").iterdir()]
        assert folders == ["steady-1.0-r2"]
    text = f"{len(load.answers)} requests at {RATE}/s, none failed; the change took {seconds:.1f} s; {dict(versions)}"
    record_property(f"line7_{form}", text)
    print(text)


def test_a_change_that_fails_leaves_everything_as_it_was(serve, capsys, record_property):
    """The new version's worker cannot load: nobody notices but who asked for it."""
    with serve("mar", 0.01, workers=1, batch_size=8, max_batch_delay=20) as server:
        folder = Path(psutil.Process(worker_pids(server, "steady")[0]).cwd())
        with (folder / "steady.py").open("a") as source:
            source.write("\nraise RuntimeError('broken on the way')\n")
        before = len(processes(server))
        with Load(server, "steady") as load:
            assert main(["reconfigure", "steady", "--name", server.instance.name, "--batch-size", "16"]) == 3
            assert "broken on the way" in capsys.readouterr().err
            time.sleep(CALM)
        assert Counter(status for status, _ in load.answers) == {200: len(load.answers)}
        (model,) = described(server)
        assert (model["modelVersion"], model["batchSize"]) == ("1.0", 8)
        assert len(processes(server)) == before
        assert not list((server.instance.work_dir / "reconfigured").iterdir())
    record_property("line7_put_back", f"{len(load.answers)} requests meanwhile, none failed")


def test_pinned_clients_are_warned_about(serve, capsys):
    with serve("mar", 0.01, workers=1) as server:
        for _ in range(3):
            assert post(server, "steady", {"inputs": 1.0}, path="/predictions/steady/1.0").status == 200
        report = run(server, capsys, "--batch-size", "2")
        assert report["notes"][0].startswith("3 requests in access_log.log named version 1.0")
        assert post(server, "steady", {"inputs": 1.0}, path="/predictions/steady/1.0").status == 404
