"""Where an archive comes from, and whether it is the one that was deployed."""

from __future__ import annotations

import http.server
import json
import threading
import zipfile
from contextlib import contextmanager
from functools import partial

import pytest

from tests.unit.ray.replica_side import DOUBLES, handler_archive
from tsbatch.archive.writer import sha256
from tsbatch.errors import LoadError, UsageError
from tsbatch.ray.archive_cache import describe, fetched, key_of, unpack_verified, verify_folder


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    return handler_archive(tmp_path_factory.mktemp("archives"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return handler_archive(tmp_path_factory.mktemp("folders"), form="folder")


@contextmanager
def served(folder):
    """A folder on the web."""
    serve = partial(http.server.SimpleHTTPRequestHandler, directory=folder)
    serve.log_message = lambda *_: None
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), serve) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture(scope="module")
def url(archive):
    with served(archive.parent) as address:
        yield address


def test_a_path_is_described(archive):
    source = describe(archive)
    assert (source.name, source.version, source.file) == ("double", "1.5", "double.mar")
    assert source.uri == str(archive.resolve())
    assert source.sha256 == sha256(archive)
    assert source.config["batchSize"] == 4
    assert source.manifest["handler"].endswith(".py")


def test_every_way_to_name_it_gives_the_same(archive, url, monkeypatch):
    monkeypatch.chdir(archive.parent)
    named = [describe(uri) for uri in (archive.name, archive.as_uri(), f"{url}/{archive.name}")]
    assert {source.sha256 for source in named} == {sha256(archive)}
    assert len({key_of(source) for source in named}) == 1
    assert named[0].uri == str(archive.resolve())


def test_what_is_unpacked_is_what_was_packed(archive, url, tmp_path):
    for name, uri in {"file": str(archive), "web": f"{url}/{archive.name}"}.items():
        place = tmp_path / name
        place.mkdir()
        unpack_verified(describe(uri), place)
        assert (place / "MAR-INF/MANIFEST.json").is_file()


def test_a_folder_is_served_where_it_lies(folder):
    source = describe(folder)
    assert (source.name, source.sha256) == ("double", "")
    assert verify_folder(source) == folder


def test_a_folder_may_be_named_by_its_address(folder):
    assert verify_folder(describe(folder.as_uri())) == folder


def test_an_address_need_not_end_as_a_file_would(archive, tmp_path):
    (tmp_path / "download").write_bytes(archive.read_bytes())
    with pytest.raises(UsageError, match=r"download: is a zip whose name does not end in \.mar"):
        describe(tmp_path / "download")
    with served(tmp_path) as address:
        source = describe(f"{address}/download?token=s3cret")
        assert source.sha256 == sha256(archive)
        (tmp_path / "there").mkdir()
        unpack_verified(source, tmp_path / "there")


def test_no_message_tells_what_may_be_secret(url):
    secret = f"{url.replace('http://', 'http://me:pass@')}/nothing.mar?X-Signature=s3cret"
    with pytest.raises(UsageError, match=r"/nothing\.mar: cannot be fetched") as caught:
        describe(secret)
    assert "s3cret" not in str(caught.value)
    assert "pass@" not in str(caught.value)


def test_a_broken_download_is_named_by_its_url(tmp_path):
    (tmp_path / "m.mar").write_text("no zip")
    with served(tmp_path) as address, pytest.raises(UsageError, match=rf"^{address}/m\.mar: neither a \.mar nor"):
        describe(f"{address}/m.mar")


def test_another_archive_in_its_place_is_refused(tmp_path):
    archive = handler_archive(tmp_path)
    source = describe(archive)
    with archive.open("ab") as file:
        file.write(b"x")
    (tmp_path / "there").mkdir()
    with pytest.raises(LoadError, match="it has changed; deploy it again"):
        unpack_verified(source, tmp_path / "there")
    archive.unlink()
    with pytest.raises(LoadError, match=r"no such archive here.*on the node"):
        unpack_verified(source, tmp_path / "there")


def test_a_file_that_was_changed_inside_is_refused(tmp_path):
    archive = handler_archive(tmp_path)
    broken = tmp_path / "broken.mar"
    with zipfile.ZipFile(archive) as old, zipfile.ZipFile(broken, "w") as new:
        for entry in old.infolist():
            added = b"# changed\n" if entry.filename.endswith(".py") else b""
            new.writestr(entry, old.read(entry.filename) + added)
    with pytest.raises(UsageError, match=r"differs from what was packed: .*does not hold what was packed"):
        describe(broken)


def test_a_folder_that_was_changed_is_refused(tmp_path):
    folder = handler_archive(tmp_path, form="folder")
    source = describe(folder)
    (folder / "more.py").write_text("")
    with pytest.raises(LoadError, match=r"more\.py: added"):
        verify_folder(source)
    with pytest.raises(UsageError, match=r"more\.py: added"):
        describe(folder)


@pytest.mark.parametrize(
    "uri, says",
    [
        ("nowhere.mar", "no such archive here; every node of a cluster needs it"),
        ("ftp://there/m.mar", "cannot be fetched; expected a path, file://"),
        ("http://127.0.0.1:1/m.mar", "cannot be fetched: ConnectionError"),
        ("s3://bucket/m.mar", "cannot be fetched: .*smart_open"),
        ("http://[", "neither a path nor a URL"),
    ],
)
def test_what_cannot_be_fetched_is_reported_in_one_line(uri, says):
    with pytest.raises(UsageError, match=says) as caught, fetched(uri):
        pass
    assert "\n" not in str(caught.value)


def test_what_the_web_does_not_have(url):
    with pytest.raises(UsageError, match="404"):
        describe(f"{url}/other.mar")


def test_no_archive_at_all(tmp_path):
    path = tmp_path / "text.mar"
    path.write_text("hello")
    with pytest.raises(UsageError, match=r"neither a \.mar nor a"):
        describe(path)


def test_an_archive_without_hashes_has_only_its_own(tmp_path):
    archive = handler_archive(tmp_path)
    foreign = tmp_path / "foreign.mar"
    with zipfile.ZipFile(archive) as old, zipfile.ZipFile(foreign, "w") as new:
        for entry in old.infolist():
            if entry.filename != "MAR-INF/tsbatch.json":
                new.writestr(entry, old.read(entry.filename))
    (tmp_path / "there").mkdir()
    unpack_verified(describe(foreign), tmp_path / "there")
    assert (tmp_path / "there" / "double_handler.py").is_file()


@pytest.fixture
def by_others(tmp_path):
    """An archive as torch-model-archiver makes it, with settings under another name."""

    def pack(settings, named="own.yaml"):
        model = {"modelName": "double", "modelVersion": "1.5", "handler": "double_handler.py", "configFile": named}
        with zipfile.ZipFile(tmp_path / "m.mar", "w") as new:
            new.writestr("MAR-INF/MANIFEST.json", json.dumps({"model": model}))
            new.writestr("double_handler.py", DOUBLES)
            new.writestr("own.yaml", settings)
            new.writestr("model-config.yaml", "batchSize: 99\n")
        return describe(tmp_path / "m.mar")

    return pack


def test_the_settings_are_those_that_the_manifest_names(by_others):
    assert by_others("batchSize: 3\n").config == {"batchSize": 3}
    assert by_others("batchSize: 3\n", named=None).config == {}


@pytest.mark.parametrize(
    "settings, named, says",
    [
        ("batchSize: [3\n", "own.yaml", "own.yaml is not YAML: while parsing a flow sequence"),
        ("day: 2026-99-99\n", "own.yaml", "own.yaml is not YAML: month must be in"),
        ("# nothing\n", "own.yaml", "own.yaml contains no settings"),
        ("batchSize: 3\n", "other.yaml", "names the settings file other.yaml, which is missing"),
    ],
)
def test_settings_that_cannot_be_read_are_not_passed_over(by_others, settings, named, says):
    with pytest.raises(UsageError, match=says) as caught:
        by_others(settings, named)
    assert "\n" not in str(caught.value)
