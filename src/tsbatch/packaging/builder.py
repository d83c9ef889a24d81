"""Build an archive from a model folder: plan its contents, then write the bytes.

torch-model-archiver flattens extra files to their base names, puts the current time into the archive and writes in
place. Here subfolders stay, the same inputs give the same bytes, and an archive appears complete or not at all.
torch-model-archiver writes the manifest.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from tsbatch.archive import model_folder
from tsbatch.archive.file_set import Contents
from tsbatch.archive.manifest import MANIFEST_NAME, check_identity, manifest
from tsbatch.archive.model_config import CONFIG_NAME, ModelConfig, complete, dump, overruled, read
from tsbatch.archive.planned_archive import Archive
from tsbatch.archive.writer import (
    ArchiveInput,
    Format,
    OnBytes,
    file_name,
    sha256_of,
    write_folder,
    write_tar,
    write_zip,
)
from tsbatch.errors import UsageError
from tsbatch.packaging.bundle import with_bundle
from tsbatch.packaging.class_labels import LABELS_NAME, index_to_name
from tsbatch.packaging.handler_files import check_handler, check_model_file, entry_file
from tsbatch.packaging.model_files import model_files, serialized_name
from tsbatch.packaging.requirements import add_requirements, needs
from tsbatch.packaging.safetensors_conversion import converted
from tsbatch.system.atomic_write import atomic_file, atomic_folder


def package(
    *,
    name: str,
    output_dir: Path,
    model_dir: Path | None = None,
    form: Format = "mar",
    link: bool = False,
    force: bool = False,
    allow_pickle: bool = False,
    bundle: bool = False,
    **options: Any,
) -> Path:
    """Plan, convert and write an archive.

    Args:
        name: the name of the model and of the archive.
        output_dir: as in :func:`write`.
        form: as in :func:`write`.
        link: as in :func:`write`.
        force: as in :func:`write`.
        model_dir: the ``model`` of :func:`plan`.
        allow_pickle: pack pickled weights as they are; see :func:`tsbatch.packaging.safetensors_conversion.converted`.
        bundle: include the part of tsbatch that a worker needs; see :func:`tsbatch.packaging.bundle.with_bundle`.
        options: the other arguments of :func:`plan`.

    Returns:
        The path of the archive.

    Raises:
        UsageError: something is missing or wrong, or the archive exists and ``force`` is false.
    """
    with converted(plan(name=name, model=model_dir, **options), allow_pickle=allow_pickle) as archive:
        complete_archive = with_bundle(archive) if bundle else archive
        return write(complete_archive, output_dir, form=form, link=link, force=force).path


def plan(
    *,
    name: str,
    version: str = "1.0",
    model: Path | None = None,
    task: str | None = None,
    handler: Path | None = None,
    model_file: Path | None = None,
    config: ModelConfig | None = None,
    aux: Mapping[str, Path] | None = None,
    labels: Path | None = None,
    extra: Sequence[Path] = (),
    requirements: Path | Literal["auto"] | None = None,
) -> Archive:
    """Decide what goes into an archive and check that nothing is missing.

    Args:
        name: the name of the model and of the archive.
        version: the model's version.
        model: the model's folder or, with ``handler``, a single file (the manifest's ``serializedFile``): weights,
            TorchScript (.pt), an exported program (.pt2) or an ONNX graph (.onnx, with the weights it names).
        task: a ready-made task; or
        handler: a Python file with the handler class.
        model_file: a Python file with the class that the weights belong to, with ``handler``.
        config: the settings for model-config.yaml; they are added to the model folder's file unless they have a base.
        aux: auxiliary files by name, for the handler's ``self.aux``.
        labels: a file with the class names, for ``index_to_name.json`` and ``self.aux["labels"]``.
        extra: more files and folders for the archive's root; a folder keeps its name.
        requirements: pip requirements that TorchServe installs if ``install_py_dep_per_model`` is on; ``auto`` for
            this version of tsbatch, in a separate environment for the model.

    Raises:
        UsageError: something is missing or wrong; the message is one line and says what to do.
    """
    check_identity(name, version)
    entry = _entry(task, handler, model_file)
    files, left_out = model_files(model, task)
    notes: list[str] = []
    config = _merge_config(files.pop(CONFIG_NAME, None), config or ModelConfig(), notes)
    contents = Contents(files)
    aux_names = {key: contents.add_aux(key, path) for key, path in (aux or {}).items()}
    if labels:
        contents.add(LABELS_NAME, index_to_name(labels))
        aux_names.setdefault("labels", LABELS_NAME)
    for path in extra:
        contents.add_extra(path)
    for file in filter(None, (entry, model_file)):
        contents.add(file.name, file)
    whole = complete(config, task=task, aux=aux_names, weight_bytes=model_folder.weight_bytes(files))
    text = manifest(
        name, version, entry.name,
        serialized=serialized_name(model, files, model_file),
        model_file=model_file.name if model_file else None,
        requirements=add_requirements(contents, requirements, whole),
    )  # fmt: skip
    contents.add(CONFIG_NAME, dump(whole))
    contents.add(MANIFEST_NAME, text)
    return Archive(name=name, version=version, files=contents.files, config=whole, left_out=left_out, notes=notes)


def _entry(task: str | None, handler: Path | None, model_file: Path | None) -> Path:
    """Return the Python file that TorchServe imports, after checking it."""
    if (task is None) == (handler is None):
        raise UsageError("give either --task for a ready-made handler or --handler for your own")
    if task:
        if model_file and needs(task).transformers:
            raise UsageError(f"--model-file {model_file}: --task {task} knows its model's class; omit one of them")
        entry = entry_file(task)
    else:
        assert handler is not None
        check_handler(handler)
        entry = handler
    if model_file:
        check_model_file(model_file)
    return entry


@dataclass(frozen=True, slots=True)
class Written:
    """An archive on the disk.

    Attributes:
        path: its path.
        bytes: its size.
        sha256: the SHA-256 of the file; for a folder, of its list of hashes.
    """

    path: Path
    bytes: int
    sha256: str


def write(
    archive: Archive,
    output_dir: Path,
    *,
    form: Format = "mar",
    link: bool = False,
    force: bool = False,
    on_bytes: OnBytes | None = None,
) -> Written:
    """Write the archive; it appears under its name complete or not at all.

    The result describes this archive even if another process has replaced it in the meantime.

    Args:
        archive: the result of :func:`plan`.
        output_dir: created if it does not exist.
        form: ``mar``, ``mar-compressed``, ``tar.gz`` or ``folder``.
        link: use hard links to the model's files in a folder, instead of copies.
        force: replace an existing archive.
        on_bytes: called with the number of bytes written or hashed since the last call. A file is hashed after it is
            written, so its bytes count twice.

    Returns:
        The archive NAME.mar, NAME.tar.gz or the folder NAME in ``output_dir``.

    Raises:
        UsageError: it exists, or a file cannot be read or written.
    """
    target = free_target(archive, output_dir, form=form, force=force)
    reading = ArchiveInput(archive.files, archive.about, on_bytes)
    try:
        output_dir.mkdir(parents=True, exist_ok=True)
        if form == "folder":
            with atomic_folder(target, replace=force) as folder:
                write_folder(reading, folder, link=link)
            hashes = reading.hashes()
            return Written(target, archive.size + len(hashes), hashlib.sha256(hashes).hexdigest())
        with atomic_file(target, replace=force) as stream:
            if form == "tar.gz":
                write_tar(reading, stream, archive.name)
            else:
                write_zip(reading, stream, compress=form == "mar-compressed")
            size = stream.seek(0, io.SEEK_END)
            stream.seek(0)
            digest = sha256_of(stream, on_bytes)
        return Written(target, size, digest)
    except FileExistsError:
        raise UsageError(f"{target} exists: another process has just written it") from None
    except OSError as error:
        raise UsageError(f"{target}: cannot be written: {error}") from None


def free_target(archive: Archive, output_dir: Path, *, form: Format = "mar", force: bool) -> Path:
    """Return the path to write the archive to.

    Raises:
        UsageError: it exists and ``force`` is false, or it is a folder where a file is expected, or the reverse.
    """
    target = output_dir / file_name(archive.name, form)
    if target.exists() and not force:
        raise UsageError(f"{target} exists; replace it with --force, or choose another --name or --output")
    if target.exists() and target.is_dir() != (form == "folder"):
        kind = "folder" if target.is_dir() else "file"
        raise UsageError(f"{target} is a {kind} of another format; remove it, or choose another --name or --output")
    return target


def _merge_config(own: Path | None, config: ModelConfig, notes: list[str]) -> ModelConfig:
    """Put ``config`` on top of the model folder's file, and add notes about the result."""
    if own is None:
        return config
    if config.base:
        notes.append(f"the model folder's {CONFIG_NAME} is ignored because another one was given")
        return config
    config = replace(config, base=read(own))
    notes += [f"the model folder's {CONFIG_NAME} is used and completed", *overruled(config)]
    return config
