"""Archives that verify, reproduce, do not meet each other and are never left half written."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import time
import zipfile
import zlib
from pathlib import Path

import pytest

from tests.acceptance.support import model_folder
from tests.unit.archive.archives import added, contents, dropped, rewrite

FORMATS = ("mar", "mar-compressed", "tar.gz", "folder")
AT_ONCE = 20
WEIGHTS = "model.safetensors"


def tsbatch(*words, **options) -> subprocess.CompletedProcess:
    """One command in a process of its own."""
    command = [sys.executable, "-m", "tsbatch", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, **options)


def package(model: Path, store: Path, form: str, *more, name="embed", **options) -> subprocess.CompletedProcess:
    words = ["--task", "text-embedding", "--model", model, "--name", name, "--format", form, "-o", store, *more]
    return tsbatch("package", *words, **options)


def path_in(store: Path, form: str) -> Path:
    return store / {"folder": "embed", "tar.gz": "embed.tar.gz"}.get(form, "embed.mar")


def one_byte(files: dict[str, bytes]) -> dict[str, bytes]:
    data = bytearray(files[WEIGHTS])
    data[len(data) // 2] ^= 1
    return {**files, WEIGHTS: bytes(data)}


def swapped(files: dict[str, bytes]) -> dict[str, bytes]:
    return {**files, "config.json": files["tokenizer.json"], "tokenizer.json": files["config.json"]}


CHANGES = {
    one_byte: {(WEIGHTS, "changed")},
    added: {("deep/new.py", "added")},
    dropped: {("labels.json", "dropped")},
    swapped: {("config.json", "swapped"), ("tokenizer.json", "swapped")},
}
"""Contents changed by other tools, which write right checksums: what verify must find."""


@pytest.mark.parametrize("form", FORMATS)
def test_verify_names_what_was_changed(tmp_path, form, record_property):
    model = tmp_path / "model"
    shutil.copytree(model_folder(), model)
    (model / "labels.json").write_text("[]")
    assert package(model, tmp_path, form).returncode == 0
    path = path_in(tmp_path, form)
    done = tsbatch("verify", path)
    assert done.returncode == 0, done.stdout
    original = contents(path)
    for change, wanted in CHANGES.items():
        rewrite(path, change(original))
        done = tsbatch("verify", path, "--json")
        assert done.returncode == 1
        found = {(finding["file"], finding["what"]) for finding in json.loads(done.stdout)["findings"]}
        assert found == wanted
        assert all(f"{path}: {file}: " in tsbatch("verify", path).stdout for file, _ in wanted)
    rewrite(path, original)
    assert tsbatch("verify", path).returncode == 0
    record_property(f"line3_verify_{form}", f"{len(CHANGES)} changes, each file named")


def test_a_byte_changed_in_place_with_the_checksums_mended(tmp_path):
    """As one does it with a hex editor; Python's and the system's zip programs find nothing."""
    assert package(model_folder(), tmp_path, "mar").returncode == 0
    path = tmp_path / "embed.mar"
    with zipfile.ZipFile(path) as archive:
        entry = archive.getinfo(WEIGHTS)
    data = bytearray(path.read_bytes())
    start = entry.header_offset + 30 + len(WEIGHTS)
    data[start + 1000] ^= 1
    crc = struct.pack("<I", zlib.crc32(data[start : start + entry.file_size]))
    data = data.replace(struct.pack("<I", entry.CRC), crc)
    path.write_bytes(data)
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
    if unzip := shutil.which("unzip"):
        assert subprocess.run([unzip, "-tq", path], check=False, capture_output=True).returncode == 0
    done = tsbatch("verify", path)
    assert done.returncode == 1
    assert f"{path}: {WEIGHTS}: changed" in done.stdout


ON_ANOTHER_DAY = """
import sys, time
late = time.time() + 400 * 86400
time.time = lambda: late
time.localtime = lambda seconds=None, real=time.localtime: real(late if seconds is None else seconds)
time.gmtime = lambda seconds=None, real=time.gmtime: real(late if seconds is None else seconds)
from tsbatch.cli.program import main
sys.exit(main(sys.argv[1:]))
"""


def digest_of(path: Path) -> str:
    if path.is_file():
        return hashlib.sha256(path.read_bytes()).hexdigest()
    hashes = sorted((name, hashlib.sha256(data).hexdigest()) for name, data in contents(path).items())
    return hashlib.sha256(json.dumps(hashes).encode()).hexdigest()


@pytest.mark.parametrize("more", [(), ("--bundle",)])
@pytest.mark.parametrize("form", FORMATS)
def test_other_days_and_folders_give_the_same_bytes(tmp_path, form, more, record_property):
    assert package(model_folder(), tmp_path / "one", form, *more).returncode == 0
    model = tmp_path / "some where" / "élse"
    shutil.copytree(model_folder(), model, copy_function=shutil.copyfile)
    for number, file in enumerate(model.rglob("*")):
        os.utime(file, (10**9 + number, 10**9 + number))
        if file.is_file():
            file.chmod(0o600)
    words = ["package", "--task", "text-embedding", "--model", model, "--name", "embed", "--format", form, *more]
    env = {**os.environ, "TZ": "Asia/Tokyo", "PYTHONHASHSEED": "7", "LC_ALL": "C"}
    done = subprocess.run(
        [sys.executable, "-c", ON_ANOTHER_DAY, *words, "-o", tmp_path / "two"],
        cwd=tmp_path, env=env, umask=0o077, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    one, two = (digest_of(path_in(tmp_path / store, form)) for store in ("one", "two"))
    assert one == two
    record_property(f"line3_sha256_{form}{'_bundle' if more else ''}", one)


@pytest.mark.parametrize("form", ["mar", "folder"])
def test_twenty_at_once_do_not_meet(tmp_path, form, record_property):
    store = tmp_path / "store"
    command = [sys.executable, "-m", "tsbatch", "package", "--task", "text-embedding", "--model", model_folder()]
    command += ["--name", "embed", "--format", form, "-o", store, "--json"]
    begin = time.monotonic()
    running = [
        subprocess.Popen(
            [*command, "--version", str(number), "--force"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        for number in range(AT_ONCE)
    ]
    outputs = [process.communicate(timeout=600) for process in running]
    assert [process.returncode for process in running] == [0] * AT_ONCE, outputs
    assert [path.name for path in store.iterdir()] == [path_in(store, form).name]
    assert tsbatch("verify", path_in(store, form)).returncode == 0
    manifest = json.loads(contents(path_in(store, form))["MAR-INF/MANIFEST.json"])
    assert manifest["model"]["modelVersion"] in map(str, range(AT_ONCE))
    record_property(f"line3_at_once_{form}", f"{AT_ONCE} in {time.monotonic() - begin:.0f} s, the last one is whole")


def test_without_force_one_of_twenty_wins(tmp_path):
    store = tmp_path / "store"
    command = [sys.executable, "-m", "tsbatch", "package", "--task", "text-embedding", "--model", model_folder()]
    command += ["--name", "embed", "-o", store]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(AT_ONCE)]
    errors = [process.communicate(timeout=600)[1].decode() for process in running]
    codes = sorted(process.returncode for process in running)
    assert codes == [0] + [2] * (AT_ONCE - 1), errors
    assert sum("exists" in error for error in errors) == AT_ONCE - 1
    assert tsbatch("verify", store / "embed.mar").returncode == 0


def big_model(folder: Path) -> Path:
    shutil.copytree(model_folder(), folder)
    with (folder / WEIGHTS).open("r+b") as weights:
        weights.truncate(3_000_000_000)  # a sparse file: large to pack, small to make
    return folder


@pytest.mark.skipif(not hasattr(os, "O_TMPFILE"), reason="only Linux has files without a name")
@pytest.mark.parametrize("form", FORMATS)
def test_killed_half_way_nothing_partial_is_left(tmp_path, form, record_property):
    model, store = big_model(tmp_path / "model"), tmp_path / "store"
    command = [sys.executable, "-m", "tsbatch", "package", "--task", "text-embedding", "--model", model]
    process = subprocess.Popen(
        [*command, "--name", "embed", "--format", form, "-o", store], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL
    )
    wait_until_writing(process, store)
    process.send_signal(signal.SIGKILL)
    assert process.wait(30) == -signal.SIGKILL
    assert process.stderr is not None
    process.stderr.close()
    left = [path.name for path in store.iterdir()]
    if form == "folder":
        # A folder cannot be without a name: it is hidden, TorchServe skips it, and the next packing removes it.
        assert all(name.startswith(".embed.") for name in left)
        shutil.copyfile(model_folder() / WEIGHTS, model / WEIGHTS)
        assert package(model, store, form).returncode == 0
        assert [path.name for path in store.iterdir()] == ["embed"]
    else:
        assert left == []
    record_property(f"line3_killed_{form}", f"left behind: {left or 'nothing'}")


def wait_until_writing(process: subprocess.Popen, store: Path) -> None:
    """Until the process has written some of the weights."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        assert process.poll() is None, process.stderr.read()
        written = dict(line.split(": ") for line in Path(f"/proc/{process.pid}/io").read_text().splitlines())
        if int(written["wchar"]) > 20_000_000 or any(part.stat().st_size > 20_000_000 for part in store.rglob(WEIGHTS)):
            return
        time.sleep(0.01)
    raise AssertionError("it wrote nothing in a minute")
