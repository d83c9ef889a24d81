"""Real servers for the tests, all of which end with the session."""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tsbatch.serving.server import Server

# The helpers beside this file (support, grpc_client) are imported by name.
sys.path.insert(0, str(Path(__file__).parent))

ServerFactory = Callable[..., Server]


@pytest.fixture(scope="session")
def server_factory(state_folder: Path) -> Iterator[ServerFactory]:
    """Starts servers with the arguments of ``Server.start``; all are stopped at the end of the session.

    A test that is done with one calls its ``stop()`` itself, so that few run at a time.
    """
    numbers = itertools.count(1)
    with contextlib.ExitStack() as running:

        def start(**arguments: Any) -> Server:
            arguments.setdefault("name", f"test-{os.getpid()}-{next(numbers)}")
            return running.enter_context(Server.start(**arguments))

        yield start
