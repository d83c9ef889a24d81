"""A replica's HTTP side in this process, without Ray: the application, and calls of it."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from tsbatch import BatchHandler
from tsbatch.archive.model_config import ModelConfig
from tsbatch.packaging.builder import plan, write
from tsbatch.ray.batches import Batches
from tsbatch.ray.deployment_options import RaySettings
from tsbatch.worker.context import ModelContext


class Doubles(BatchHandler):
    """Doubles numbers; ``slow`` seconds a batch."""

    slow = 0.0

    def load_model(self):
        return lambda numbers: 2 * numbers

    def inference(self, tensors):
        import time

        time.sleep(self.slow)
        self.seen = [*getattr(self, "seen", []), len(tensors)]
        return super().inference(tensors)


@dataclass
class Counted:
    """A metric sink that keeps what it is told."""

    knows_ours = True
    counts: dict = field(default_factory=dict)
    gauges: dict = field(default_factory=dict)

    def count(self, name, value, dimensions):
        key = (name, *dimensions.values())
        self.counts[key] = self.counts.get(key, 0) + value

    def gauge(self, name, value, unit):
        self.gauges[name] = value


def batches_of(handler, *, gather_seconds=0.0, **settings):
    """A replica's batches, whose requests are gathered one by one, or for so many seconds."""
    found = RaySettings(name="m", **{"batch_size": 4, **settings})
    thread = ThreadPoolExecutor(1)
    batches = Batches(handler, thread, found, Counted())

    async def gather(ticket):
        await asyncio.sleep(gather_seconds)
        await batches.enqueue([ticket])

    batches.gather = gather
    return batches


def loaded(handler, config=None, *, batch_size=4, model_dir=None):
    """``handler``, loaded as a replica loads it."""
    own = {} if model_dir is None else {"model_dir": model_dir}
    from pathlib import Path

    context = {"model_dir": Path(), "model_name": "m", "batch_size": batch_size, "config": config or {}, **own}
    handler.load(ModelContext(**context))
    return handler


@dataclass(frozen=True)
class Answer:
    """What came back."""

    status: int
    headers: dict
    body: bytes

    def json(self):
        import json

        return json.loads(self.body)


async def call(app, method, path, body=b"", headers=None):
    """One call of an ASGI application, as a server would make it (asgi.readthedocs.io, HTTP)."""
    path, _, query = path.partition("?")
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": query.encode(),
        "headers": [(name.lower().encode(), value.encode()) for name, value in (headers or {}).items()],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 8000),
    }
    sent = []
    pieces = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive():
        if pieces:
            return pieces.pop()
        return {"type": "http.disconnect"}

    async def send(message):
        sent.append(message)

    await app(scope, receive, send)
    if not sent:
        return None
    found = {name.decode("latin-1"): value.decode("latin-1") for name, value in sent[0]["headers"]}
    return Answer(sent[0]["status"], found, b"".join(message.get("body", b"") for message in sent[1:]))


DOUBLES = """
from tsbatch import BatchHandler

class Doubles(BatchHandler):
    def load_model(self):
        return lambda numbers: 2 * numbers
"""


def handler_archive(folder, *, source=DOUBLES, form="mar", **config):
    """An archive of a handler of one file, named ``double``, in batches of 4."""
    handler = folder / "double_handler.py"
    handler.write_text(source)
    numbers = ModelConfig(**{"workers": 1, "batch_size": 4, "max_batch_delay": 20, **config})
    packed = plan(name="double", version="1.5", handler=handler, config=numbers)
    return write(packed, folder, form=form).path
