"""A handler out of an archive's folder, without TorchServe."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.unit.ray.replica_side import DOUBLES, handler_archive
from tsbatch.errors import LoadError
from tsbatch.ray.archive_cache import describe
from tsbatch.ray.deployment_options import ray_settings
from tsbatch.ray.replica_loading import load


def loaded(folder, source, **files):
    """Packed by nobody in particular: tsbatch would not pack most of these."""
    place = folder / "model"
    (place / "MAR-INF").mkdir(parents=True)
    model = {"modelName": "double", "modelVersion": "1.5", "handler": "double_handler.py"}
    manifest = {"model": {**model, "configFile": "model-config.yaml"}}
    (place / "MAR-INF/MANIFEST.json").write_text(json.dumps(manifest))
    for name, text in {"double_handler.py": source, "model-config.yaml": "batchSize: 4\n", **files}.items():
        (place / name).write_text(text)
    described = describe(place)
    return load(described, ray_settings(described.config, name="m", cpus=1), None)


def test_the_handler_is_loaded_and_answers(tmp_path):
    handler, release = loaded(tmp_path, DOUBLES)
    from tsbatch.protocol.request import Request

    assert [reply.body for reply in handler.answer([Request.of(3), Request.of(4)])] == [b"6", b"8"]
    assert (handler.identity.name, handler.identity.version, handler.batch_size) == ("m", "1.5", 4)
    assert handler.threads.threads == 1
    assert Path.cwd() == handler.model_dir
    release()


def test_its_own_modules_are_found(tmp_path):
    source = "import beside\n" + DOUBLES.replace("2 *", "beside.FACTOR *")
    handler, _ = loaded(tmp_path, source, **{"beside.py": "FACTOR = 5\n"})
    from tsbatch.protocol.request import Request

    assert handler.answer([Request.of(3)])[0].body == b"15"


@pytest.mark.parametrize(
    "source, says",
    [
        (
            "class Plain:\n    def handle(self, data, context):\n        return data\n",
            "has Plain, which is not a BatchHandler",
        ),
        ("def handle(data, context):\n    return data\n", "is a function"),
        (DOUBLES + "\nclass Other(Doubles):\n    pass\n", r"has 2 of them \(Doubles, Other\)"),
        ("x = 1\n", "has no handler class"),
        ("import nowhere_at_all\n", "needs nowhere_at_all, which is not installed on the node"),
        ("1 / 0\n", "raised ZeroDivisionError: division by zero"),
        (DOUBLES.replace("return lambda numbers: 2 * numbers", "1 / 0"), "load_model raised ZeroDivisionError"),
    ],
)
def test_what_is_no_batch_handler_is_reported_in_one_line(tmp_path, source, says):
    with pytest.raises(LoadError, match=says) as caught:
        loaded(tmp_path, source)
    assert "\n" not in str(caught.value)


def test_it_works_where_there_is_no_torchserve(tmp_path):
    archive = handler_archive(tmp_path, source=DOUBLES)
    code = f"""
        import sys
        sys.modules["ts"] = None
        from tsbatch.ray.archive_cache import describe
        from tsbatch.ray.replica_loading import load
        from tsbatch.ray.deployment_options import ray_settings
        from tsbatch.protocol.request import Request
        source = describe({str(archive)!r})
        handler, release = load(source, ray_settings(source.config, name="m"), None)
        print(handler.answer([Request.of(3)])[0].body)
        release()
    """
    environment = {**os.environ, "TMPDIR": str(tmp_path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.stdout == "b'6'\n", done.stderr
