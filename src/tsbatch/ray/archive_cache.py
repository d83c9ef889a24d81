"""Where an archive comes from, and the folder of a node that its replicas share.

An archive is named by a path or an address. It is described once, where it is deployed from; each replica then takes
the very same bytes (SHA-256), compares every file with the hashes that were packed
(:mod:`tsbatch.archive.verification`), and works in a folder that all replicas of the node share, so that they
share the weights in the page cache too.
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
"""Addresses that are read through smart_open, which Ray Serve brings; clouds need their own package beside it."""
TOLD = 3
"""Findings that a message repeats."""
SECONDS_OF_SILENCE = 60
"""After which a web server that sends nothing is given up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """An archive that replicas are to open.

    Attributes:
        uri: a path, ``file://`` or an address.
        sha256: of the whole archive; empty for a folder, of which only the files' own hashes are compared.
        name, version: of the model, from the manifest.
        config: the whole model-config.yaml, or however the manifest calls it.
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
        """As messages name it."""
        return _shown(self.uri)


def describe(uri: str | Path) -> Source:
    """Read an archive once from begin to end: what it is, and what its replicas must find.

    Raises:
        UsageError: it is not there, cannot be fetched, is none, or does not hold what was packed.
    """
    uri = _absolute(str(uri))
    shown = _shown(uri)
    with fetched(uri) as path:
        try:
            found = scan(path)
        except UsageError as error:
            raise UsageError(str(error).replace(str(path), shown)) from None
        if wrong := _differences(found):
            more = f" and {len(wrong) - TOLD} more" if len(wrong) > TOLD else ""
            raise UsageError(f"{shown}: not as it was packed: {'; '.join(map(str, wrong[:TOLD]))}{more}")
        model = manifest_of(found).get("model")
        if not isinstance(model, dict) or not model.get("handler"):
            raise UsageError(f"{shown}: its MAR-INF/MANIFEST.json names no handler; pack it with tsbatch package")
        return Source(
            uri=uri,
            sha256="" if path.is_dir() else sha256(path),
            name=str(model.get("modelName") or Path(_split(uri).path).stem),
            version=str(model.get("modelVersion", "1.0")),
            config=_config(found, model, shown),
            manifest=model,
        )


def _config(found: ScannedArchive, model: Mapping[str, Any], shown: str) -> dict[str, Any]:
    """What TorchServe would read: the YAML that the manifest names, and no other."""
    name = model.get("configFile")
    if not name:
        return {}
    if name not in found.texts:
        raise UsageError(f"{shown}: its manifest names the settings {name}, which are not in it; pack it again")
    try:
        value = yaml.safe_load(found.texts[name])
    except (yaml.YAMLError, ValueError) as error:
        raise UsageError(f"{shown}: {name} is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(value, dict):
        raise UsageError(f"{shown}: {name} holds no settings; expected lines of 'key: value'")
    return value


def unpack_verified(source: Source, folder: Path) -> None:
    """Unpack the archive into ``folder``, after comparing it with its description.

    Raises:
        LoadError: it is not there, or is not what was deployed.
    """
    try:
        with fetched(source.uri) as path:
            if (found := sha256(path)) != source.sha256:
                raise LoadError(
                    f"{source.shown}: its SHA-256 on {socket.gethostname()} is {found[:12]}…, and what was deployed has"
                    f" {source.sha256[:12]}…: it has changed; deploy it again, or put the old one back"
                )
            unpack(path, folder)
    except UsageError as error:
        raise LoadError(f"{error} (on the node {socket.gethostname()})") from None
    _compare(source, folder)


def verify_folder(source: Source) -> Path:
    """The folder that is served where it lies, after comparing its files with the hashes that were packed.

    Raises:
        LoadError: it is not there, or not as it was packed.
    """
    folder = _path_of(source.uri)
    if not folder.is_dir():
        raise LoadError(f"{folder}: no such folder on the node {socket.gethostname()}; all nodes need it")
    _compare(source, folder)
    return folder


def _compare(source: Source, folder: Path) -> None:
    """Every file as it lies there now: what was unpacked is what is loaded."""
    if wrong := _differences(scan(folder)):
        raise LoadError(f"{source.shown}: in {folder} it is not as it was packed: {wrong[0]}")


def _differences(found: ScannedArchive) -> list[Finding]:
    """What is not as it was packed; torch-model-archiver notes no hashes, so that its archives have only their own."""
    return [finding for finding in verify(found) if HASHES_NAME in found.files or finding.what != "no hashes"]


@contextmanager
def fetched(uri: str) -> Iterator[Path]:
    """The archive as a file of this machine, for as long as the block lasts.

    Raises:
        UsageError: it is not there, or the address cannot be read.
    """
    scheme = _split(uri).scheme
    if scheme in ("", "file"):
        path = _path_of(uri)
        if not path.exists():
            raise UsageError(
                f"{uri}: no such archive here; a cluster's nodes all need it: a shared file system, or an address"
            )
        yield path
        return
    if scheme not in SCHEMES:
        expected = ", ".join(f"{one}://" for one in SCHEMES)
        raise UsageError(f"{_shown(uri)}: cannot be fetched; expected a path, file://, {expected}")
    with tempfile.TemporaryDirectory(prefix="tsbatch-fetch-") as folder:
        path = Path(folder, "model.tar.gz")
        _download(uri, path)
        # An address need not end as a file would.
        yield path.rename(path.with_name("model.mar")) if zipfile.is_zipfile(path) else path


def _download(uri: str, path: Path) -> None:
    from smart_open import open as open_any

    parts = _split(uri)
    options = {"timeout": SECONDS_OF_SILENCE} if parts.scheme.startswith("http") else {}
    try:
        with open_any(uri, "rb", transport_params=options) as source, path.open("wb") as sink:
            shutil.copyfileobj(source, sink, CHUNK)
    except Exception as error:  # whatever the cloud's own client raises
        reason = " ".join(str(error).split())
        for secret in filter(None, (parts.query, parts.password)):
            reason = reason.replace(secret, "…")
        raise UsageError(f"{_shown(uri)}: cannot be fetched: {type(error).__name__}: {reason[:300]}") from None


def _absolute(uri: str) -> str:
    """A path as it is meant from everywhere on this machine; addresses as they are."""
    return uri if _split(uri).scheme else str(Path(uri).resolve())


def _split(uri: str) -> SplitResult:
    """The parts of an address; a path is all path, and so is one with a drive's letter."""
    try:
        parts = urlsplit(uri)
    except ValueError as error:
        raise UsageError(f"{uri}: neither a path nor an address: {error}") from None
    return parts if len(parts.scheme) > 1 else SplitResult("", "", uri, "", "")


def _path_of(uri: str) -> Path:
    parts = _split(uri)
    return Path(unquote(parts.path) if parts.scheme else uri)


def _shown(uri: str) -> str:
    """An address without what may be secret in it: a password, or the signature of a signed one."""
    parts = _split(uri)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", "")) if parts.netloc else uri


def key_of(source: Source) -> str:
    """What the node's folder of this archive is called."""
    facts = json.dumps([source.sha256, source.uri if not source.sha256 else ""])
    return hashlib.sha256(facts.encode()).hexdigest()[:16]
