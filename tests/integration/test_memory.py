"""A large model's weights stay in the page cache: not copied, and shared by every worker that maps them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.tiny import save_encoder

pytestmark = pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="reads Linux's /proc")

MEGABYTES = 100
SIZES = {"hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 8, "num_attention_heads": 8}
WORKER = """
import sys
from pathlib import Path
from tsbatch.worker.context import ModelContext
from tsbatch.protocol.request import Request
from tsbatch.tasks.text_embedding import TextEmbeddingHandler

handler = TextEmbeddingHandler()
handler.load(ModelContext(model_dir=Path(sys.argv[1]), config={"tsbatch": {"threads": 1}}))
assert handler.answer([Request.of({"inputs": "a cat sat on the mat"})])[0].status == 200
print(handler.choice.mode, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def start():
    """Start a process that has loaded the model in a folder and answered once; it waits until the test is over."""
    running = []

    def start_one(folder):
        command = [sys.executable, "-W", "ignore", "-c", WORKER, str(folder)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        running.append(process)
        assert process.stdout.readline().strip() == "packed"
        return process

    yield start_one
    for process in running:
        process.kill()
        process.communicate()


def private_megabytes(process):
    lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()[1:]
    fields = dict(line.split(":", 1) for line in lines)
    return sum(int(fields[name].split()[0]) for name in ("Private_Clean", "Private_Dirty")) / 1024


def mapped_megabytes(process, file):
    """Resident size of a file's mappings in a process."""
    size, inside = 0, False
    for line in Path(f"/proc/{process.pid}/smaps").read_text().splitlines():
        first = line.split()[0]
        if not first.endswith(":"):
            inside = line.endswith(str(file))
        elif inside and first == "Rss:":
            size += int(line.split()[1])
    return size / 1024


def test_the_second_worker_shares_the_weights_with_the_first(start, tmp_path):
    large = save_encoder(tmp_path / "large", **SIZES)
    small = save_encoder(tmp_path / "small")
    weights = large / "model.safetensors"
    assert weights.stat().st_size > MEGABYTES * 1_000_000
    start(large)
    second = start(large)
    assert mapped_megabytes(second, weights) > 0.9 * weights.stat().st_size / 2**20
    assert private_megabytes(second) - private_megabytes(start(small)) < 0.15 * MEGABYTES
