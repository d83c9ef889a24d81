"""Fetch an archive and verify it.

A path or a URL names the archive. It is described once, where it is deployed from. Each replica then verifies that it
gets the same bytes (SHA-256), compares every file with the archive's hashes (:mod:`tsbatch.archive.verification`), and
works in a folder that all replicas of the node share, so that they also share the weights in the page cache.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import socket
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit, urlunsplit

import yaml

from tsbatch.archive.reader import ScannedArchive, scan
from tsbatch.archive.verification import Finding, manifest_of, verify
from tsbatch.archive.writer import CHUNK, HASHES_NAME, sha256
from tsbatch.emulation.worker_environment import unpack
from tsbatch.errors import LoadError, UsageError

SCHEMES = ("http", "https", "s3", "gs", "gcs", "azure", "abfs", "abfss")
"""URL schemes read through smart_open, which Ray Serve includes; clouds need an additional package."""
MAX_FINDINGS = 3
"""Findings in a message."""
HTTP_TIMEOUT = 60
"""Seconds to wait for a web server that sends nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A described archive for replicas to load.

    Attributes:
        uri: a path, ``file://`` or another URL.
        sha256: the archive's hash; empty for a folder, for which only the hashes of its files are compared.
        name, version: the model's name and version in the manifest.
        config: the complete model-config.yaml (the manifest may give the file another name).
        manifest: the ``model`` section of MAR-INF/MANIFEST.json.
    """

    uri: str
    sha256: str
    name: str
    version: str
    config: Mapping[str, Any]
    manifest: Mapping[str, Any]

    @property
    def file(self) -> str:
        """The archive's file name."""
        return Path(_split(self.uri).path).name or self.shown

    @property
    def shown(self) -> str:
        """Its name in messages."""
        return _shown(self.uri)


def describe(uri: str | Path) -> Source:
    """Read an archive once and describe it, so that replicas can verify theirs.

    Raises:
        UsageError: it does not exist, cannot be fetched, is not an archive, or differs from what was packed.
    """
    uri = str(uri) if _split(str(uri)).scheme else str(Path(uri).resolve())
    shown = _shown(uri)
    with fetched(uri) as path:
        try:
            found = scan(path)
        except UsageError as error:
            raise UsageError(str(error).replace(str(path), shown)) from None
        if wrong := _differences(found):
            more = f" and {len(wrong) - MAX_FINDINGS} more" if len(wrong) > MAX_FINDINGS else ""
            raise UsageError(
                f"{shown}: differs from what was packed: {'; '.join(map(str, wrong[:MAX_FINDINGS]))}{more}"
            )
        model = manifest_of(found).get("model")
        if not isinstance(model, dict) or not model.get("handler"):
            raise UsageError(f"{shown}: its MAR-INF/MANIFEST.json names no handler; use tsbatch package")
        return Source(
            uri=uri,
            sha256="" if path.is_dir() else sha256(path),
            name=str(model.get("modelName") or Path(_split(uri).path).stem),
            version=str(model.get("modelVersion", "1.0")),
            config=_config(found, model, shown),
            manifest=model,
        )


def _config(found: ScannedArchive, model: Mapping[str, Any], shown: str) -> dict[str, Any]:
    """Read the settings as TorchServe does: only from the YAML that the manifest names."""
    name = model.get("configFile")
    if not name:
        return {}
    if name not in found.texts:
        raise UsageError(f"{shown}: its manifest names the settings file {name}, which is missing; rebuild it")
    try:
        value = yaml.safe_load(found.texts[name])
    except (yaml.YAMLError, ValueError) as error:
        raise UsageError(f"{shown}: {name} is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(value, dict):
        raise UsageError(f"{shown}: {name} contains no settings; expected lines of 'key: value'")
    return value


def unpack_verified(source: Source, folder: Path) -> None:
    """Unpack the archive into ``folder`` after comparing it with its description.

    Raises:
        LoadError: it does not exist, or is not what was deployed.
    """
    try:
        with fetched(source.uri) as path:
            if (found := sha256(path)) != source.sha256:
                raise LoadError(
                    f"{source.shown}: its SHA-256 on {socket.gethostname()} is {found[:12]}…, but the deployed archive"
                    f" has {source.sha256[:12]}…: it has changed; deploy it again, or restore the old archive"
                )
            unpack(path, folder)
    except UsageError as error:
        raise LoadError(f"{error} (on the node {socket.gethostname()})") from None
    _compare(source, folder)


def verify_folder(source: Source) -> Path:
    """Return the folder of an archive that is a folder, after comparing its files with the archive's hashes.

    Raises:
        LoadError: it does not exist, or differs from what was packed.
    """
    folder = _path_of(source.uri)
    if not folder.is_dir():
        raise LoadError(f"{folder}: no such folder on the node {socket.gethostname()}; every node needs it")
    _compare(source, folder)
    return folder


def _compare(source: Source, folder: Path) -> None:
    """Compare every file of a folder with the archive's hashes."""
    if wrong := _differences(scan(folder)):
        raise LoadError(f"{source.shown}: in {folder} it differs from what was packed: {wrong[0]}")


def _differences(found: ScannedArchive) -> list[Finding]:
    """Return the differences from what was packed; archives of torch-model-archiver have no hashes to compare."""
    return [finding for finding in verify(found) if HASHES_NAME in found.files or finding.what != "no hashes"]


@contextmanager
def fetched(uri: str) -> Iterator[Path]:
    """Yield the archive as a local file, which exists until the block ends.

    Raises:
        UsageError: it does not exist, or the URL cannot be read.
    """
    scheme = _split(uri).scheme
    if scheme in ("", "file"):
        path = _path_of(uri)
        if not path.exists():
            raise UsageError(
                f"{uri}: no such archive here; every node of a cluster needs it: use a shared file system or a URL"
            )
        yield path
        return
    if scheme not in SCHEMES:
        expected = ", ".join(f"{one}://" for one in SCHEMES)
        raise UsageError(f"{_shown(uri)}: cannot be fetched; expected a path, file://, {expected}")
    with tempfile.TemporaryDirectory(prefix="tsbatch-fetch-") as folder:
        path = Path(folder, "model.tar.gz")
        _download(uri, path)
        # A URL need not end in the suffix of the format.
        yield path.rename(path.with_name("model.mar")) if zipfile.is_zipfile(path) else path


def _download(uri: str, path: Path) -> None:
    from smart_open import open as open_any

    parts = _split(uri)
    options = {"timeout": HTTP_TIMEOUT} if parts.scheme.startswith("http") else {}
    try:
        with open_any(uri, "rb", transport_params=options) as source, path.open("wb") as sink:
            shutil.copyfileobj(source, sink, CHUNK)
    except Exception as error:  # the clouds' clients raise anything
        reason = " ".join(str(error).split())
        for secret in filter(None, (parts.query, parts.password)):
            reason = reason.replace(secret, "…")
        raise UsageError(f"{_shown(uri)}: cannot be fetched: {type(error).__name__}: {reason[:300]}") from None


def _split(uri: str) -> SplitResult:
    """Split a URL into its parts; a path, also one with a drive letter, is all path."""
    try:
        parts = urlsplit(uri)
    except ValueError as error:
        raise UsageError(f"{uri}: neither a path nor a URL: {error}") from None
    return parts if len(parts.scheme) > 1 else SplitResult("", "", uri, "", "")


def _path_of(uri: str) -> Path:
    parts = _split(uri)
    return Path(unquote(parts.path) if parts.scheme else uri)


def _shown(uri: str) -> str:
    """Return a URL without its secrets: a password, or a signature."""
    parts = _split(uri)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", "")) if parts.netloc else uri


def key_of(source: Source) -> str:
    """Return the name of the node's folder for this archive."""
    facts = json.dumps([source.sha256, source.uri if not source.sha256 else ""])
    return hashlib.sha256(facts.encode()).hexdigest()[:16]
