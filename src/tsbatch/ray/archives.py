"""Where an archive comes from, and the folder of a node that its replicas share.

An archive is named by a path or an address. It is described once, where it is deployed from; each replica then takes
the very same bytes (SHA-256), compares every file with the hashes that were packed (:mod:`tsbatch.ops.verify`), and
works in a folder that all replicas of the node share, so that they share the weights in the page cache too.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import socket
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from tsbatch.errors import LoadError, UsageError
from tsbatch.ops.mar_file import CHUNK, HASHES_NAME, sha256
from tsbatch.ops.survey import Survey, survey
from tsbatch.ops.verify import Finding, config_of, manifest_of, verify
from tsbatch.workplace import unpack

SCHEMES = ("http", "https", "s3", "gs", "gcs", "azure", "abfs", "abfss")
"""Addresses that are read through smart_open, which Ray Serve brings; clouds need their own package beside it."""
TOLD = 3
"""Findings that a message repeats."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """An archive that replicas are to open.

    Attributes:
        uri: a path, ``file://`` or an address.
        sha256: of the whole archive; empty for a folder, of which only the files' own hashes are compared.
        name, version: of the model, from the manifest.
        config: the whole model-config.yaml.
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
        return Path(urlsplit(self.uri).path).name or self.uri


def describe(uri: str | Path) -> Source:
    """Read an archive once from begin to end: what it is, and what its replicas must find.

    Raises:
        UsageError: it is not there, cannot be fetched, is none, or does not hold what was packed.
    """
    uri = _absolute(str(uri))
    with fetched(uri) as path:
        found = survey(path)
        if wrong := _differences(found):
            more = f" and {len(wrong) - TOLD} more" if len(wrong) > TOLD else ""
            raise UsageError(f"{uri}: not as it was packed: {'; '.join(map(str, wrong[:TOLD]))}{more}")
        model = manifest_of(found).get("model")
        if not isinstance(model, dict) or not model.get("handler"):
            raise UsageError(f"{uri}: its MAR-INF/MANIFEST.json names no handler; pack it with tsbatch package")
        return Source(
            uri=uri,
            sha256="" if path.is_dir() else sha256(path),
            name=str(model.get("modelName") or Path(urlsplit(uri).path).stem),
            version=str(model.get("modelVersion", "1.0")),
            config=config_of(found),
            manifest=model,
        )


def unpack_verified(source: Source, folder: Path) -> None:
    """Unpack the archive into ``folder``, after comparing it with its description.

    Raises:
        LoadError: it is not there, or is not what was deployed.
    """
    try:
        with fetched(source.uri) as path:
            if (found := sha256(path)) != source.sha256:
                raise LoadError(
                    f"{source.uri}: its SHA-256 on {socket.gethostname()} is {found[:12]}…, and what was deployed has"
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
    folder = Path(source.uri)
    if not folder.is_dir():
        raise LoadError(f"{folder}: no such folder on the node {socket.gethostname()}; all nodes need it")
    _compare(source, folder)
    return folder


def _compare(source: Source, folder: Path) -> None:
    """Every file as it lies there now: what was unpacked is what is loaded."""
    if wrong := _differences(survey(folder)):
        raise LoadError(f"{source.uri}: in {folder} it is not as it was packed: {wrong[0]}")


def _differences(found: Survey) -> list[Finding]:
    """What is not as it was packed; torch-model-archiver notes no hashes, so that its archives have only their own."""
    return [finding for finding in verify(found) if HASHES_NAME in found.files or finding.what != "no hashes"]


@contextmanager
def fetched(uri: str) -> Iterator[Path]:
    """The archive as a file of this machine, for as long as the block lasts.

    Raises:
        UsageError: it is not there, or the address cannot be read.
    """
    parts = urlsplit(uri)
    if parts.scheme in ("", "file") or len(parts.scheme) == 1:  # a drive's letter
        path = Path(unquote(parts.path) if parts.scheme == "file" else uri)
        if not path.exists():
            raise UsageError(
                f"{uri}: no such archive here; a cluster's nodes all need it: a shared file system, or an address"
            )
        yield path
        return
    if parts.scheme not in SCHEMES:
        raise UsageError(f"{uri}: cannot be fetched; expected a path, file://, {', '.join(f'{s}://' for s in SCHEMES)}")
    with tempfile.TemporaryDirectory(prefix="tsbatch-fetch-") as folder:
        path = Path(folder, Path(parts.path).name or "model.mar")
        _download(uri, path)
        yield path


def _download(uri: str, path: Path) -> None:
    from smart_open import open as open_any

    try:
        with open_any(uri, "rb") as source, path.open("wb") as sink:
            shutil.copyfileobj(source, sink, CHUNK)
    except Exception as error:  # whatever the cloud's own client raises
        reason = " ".join(str(error).split())[:300]
        raise UsageError(f"{uri}: cannot be fetched: {type(error).__name__}: {reason}") from None


def _absolute(uri: str) -> str:
    """A path as it is meant from everywhere on this machine; addresses as they are."""
    scheme = urlsplit(uri).scheme
    return uri if len(scheme) > 1 else str(Path(uri).resolve())


def key_of(source: Source) -> str:
    """What the node's folder of this archive is called."""
    facts = json.dumps([source.sha256, source.uri if not source.sha256 else ""])
    return hashlib.sha256(facts.encode()).hexdigest()[:16]
