"""Every command of docs/bench.md works as it is written there, only shorter."""

from __future__ import annotations

import re
import shlex
from functools import reduce
from pathlib import Path

import pytest

from tests.e2e import timing
from tsbatch.cli.program import main
from tsbatch.serving.server import Server

PAGE = Path(__file__).resolve().parents[3] / "docs" / "bench.md"
SHORT = {"bench": ["--duration", "0.5", "--warm-up", "0.1"]}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    one, *_ = timing.archives(tmp_path_factory.mktemp("docs"))
    with Server.start(models=[f"embed={one}", f"embed-new={one}"], name="acceptance-docs") as server:
        yield server


def commands():
    text = PAGE.read_text(encoding="utf-8")
    for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL):
        yield from (line.strip() for line in block.splitlines() if line.strip().startswith("tsbatch "))


def test_every_command_of_the_page(server, tmp_path, monkeypatch, record_property, capsys):
    monkeypatch.chdir(tmp_path)
    own = {
        "http://127.0.0.1:8080": server.inference_address,
        "http://127.0.0.1:8081": server.management_address,
        "$INFERENCE_TOKEN": server.inference_token,
    }
    Path("requests.jsonl").write_text('{"inputs": "a sentence"}\n')
    Path("arrivals.txt").write_text("0\n0.1\n0.15\n")
    lines = list(commands())
    for line in lines:
        monkeypatch.setenv("TSBATCH_TOKEN", server.management_token if "--server" in line else server.inference_token)
        words = [reduce(lambda word, each: word.replace(*each), own.items(), word) for word in shlex.split(line)[1:]]
        verb = words[0]
        if verb == "bench":
            words += [*SHORT["bench"], *(["--repeat", "2"] if "--repeat" in words else [])]
            words += [] if "://" in line else ["--name", server.instance.name]
        code = main(words)
        told = capsys.readouterr()
        # Two short runs of the same thing: equal, or called different now and then.
        assert code in ((0,) if verb == "bench" else (0, 1)), f"{line}: {told.out}{told.err}"
    record_property("commands", len(lines))
    assert len(lines) >= 10
    assert {"before.json", "after.json", "old.json", "new.json"} <= {path.name for path in tmp_path.iterdir()}
