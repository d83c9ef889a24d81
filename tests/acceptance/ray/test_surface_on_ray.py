"""What the commands print that reach Ray Serve has the keys it had; see tests/surface/take.py."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from tests.surface import on_server, outputs, take

pytestmark = pytest.mark.slow
SNAPSHOT = take.read()["json_ray"]


@pytest.fixture(scope="module")
def now():
    pytest.importorskip("ray")
    # Sockets lie there, and their paths must be short.
    with tempfile.TemporaryDirectory(prefix="tsb-") as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("TSBATCH_STATE_DIR", f"{folder}/state")
        return take.plain(on_server.outputs_of_ray(Path(folder, "ray")))


@pytest.mark.parametrize("name", SNAPSHOT)
def test_keys_and_types(now, name):
    different = take.differences(SNAPSHOT[name], outputs.alike(SNAPSHOT[name], now[name]))
    assert not different, "\n".join([f"{name}:", *different])
