"""Archives in every format, on a real TorchServe."""

from __future__ import annotations

import pytest
import support

from tsbatch.archive.writer import FORMATS
from tsbatch.operations import registration
from tsbatch.packaging.builder import plan, write

HANDLER = """
from pathlib import Path
from tsbatch import BatchHandler


class Finds(BatchHandler):
    def load_model(self):
        return lambda tensors: tensors

    def postprocess(self, outputs, items):
        return [[Path("deep/file.txt").read_text(), str(Path.cwd().resolve())] for _ in items]
"""


pytestmark = pytest.mark.slow


@pytest.fixture
def packed(tmp_path):
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "file.txt").write_text("found")
    (tmp_path / "finds.py").write_text(HANDLER)

    def pack(name, form, store="packed"):
        archive = plan(name=name, handler=tmp_path / "finds.py", extra=[tmp_path / "deep"])
        return write(archive, tmp_path / store, form=form).path

    return pack


def answer(server, name):
    return support.post(server, name, {"inputs": 1}).json()


def test_a_server_takes_every_format(server_factory, packed, tmp_path):
    """At start and registered later, from a store of ours and from elsewhere."""
    names = {form: form.replace(".", "-") for form in FORMATS}
    for form, name in names.items():
        packed(name, form, "store")
    with server_factory(models=["all"], model_store=tmp_path / "store") as server:
        for name in names.values():
            assert answer(server, name)[0] == "found", name
        assert answer(server, "folder")[1] == str((tmp_path / "store" / "folder").resolve())
        later = packed("later", "folder")
        with server.management() as management:
            registration.register(management, str(later), instance=server.instance)
            assert answer(server, "later") == ["found", str(later.resolve())]
            management.unregister("later")
            management.unregister("folder")
        assert (later / "deep" / "file.txt").is_file(), "a folder is the user's, and stays"
        assert (tmp_path / "store" / "folder" / "deep" / "file.txt").is_file()
    with server_factory(models=[packed("one", "tar.gz"), packed("two", "folder")]) as server:
        assert [answer(server, name)[0] for name in ("one", "two")] == ["found", "found"]
