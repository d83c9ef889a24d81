"""From a model folder to an archive: first the plan of what it holds, then the bytes.

torch-model-archiver flattens extra files by their base name, stamps the time into the archive and writes in
place; here sub-folders stay, the same inputs give the same bytes, and an archive appears whole or not at all.
The manifest is torch-model-archiver's own.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tsbatch.errors import UsageError
from tsbatch.ops import model_folder
from tsbatch.ops.appearing import appearing, appearing_folder
from tsbatch.ops.contents import Contents
from tsbatch.ops.handler_files import check_own, entry_file
from tsbatch.ops.mar_file import Format, OnBytes, Reading, file_name, write_folder, write_tar, write_zip
from tsbatch.ops.model_config import CONFIG_NAME, ModelConfig, complete, dump, overruled, read

MANIFEST_NAME = "MAR-INF/MANIFEST.json"
NAME_RULE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_\-.]*")
"""TorchServe's rule for a model name (model_packaging_utils.py); a version goes into URLs as well."""

CREATED_ON = "01/01/1980 00:00:00"
"""The first moment a zip can name; a real one would make every archive different."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Archive:
    """What an archive will hold, before a byte of it is written.

    Attributes:
        name: the model's name.
        version: its version.
        files: path inside the archive: where the file lies now, or its bytes.
        config: the whole model-config.yaml.
        left_out: the model folder's files that do not go in.
        notes: what the person who packs should know.
        about: what the archive says of itself, beside the hashes of its files.
    """

    name: str
    version: str
    files: Mapping[str, Path | bytes]
    config: Mapping[str, Any]
    left_out: Sequence[str] = ()
    notes: Sequence[str] = ()
    about: Mapping[str, Any] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Bytes of all files together."""
        return sum(len(file) if isinstance(file, bytes) else file.stat().st_size for file in self.files.values())


def package(
    *,
    name: str,
    output_dir: Path,
    version: str = "1.0",
    model_dir: Path | None = None,
    task: str | None = None,
    handler: Path | None = None,
    config: ModelConfig | None = None,
    aux: Mapping[str, Path] | None = None,
    extra: Sequence[Path] = (),
    requirements: Path | None = None,
    form: Format = "mar",
    link: bool = False,
    force: bool = False,
) -> Path:
    """Plans and writes an archive; see :func:`plan` for the arguments and :func:`write` for the promises.

    Returns:
        The archive's path.

    Raises:
        UsageError: something is missing or wrong, or the archive exists and ``force`` is false.
    """
    archive = plan(
        name=name,
        version=version,
        model=model_dir,
        task=task,
        handler=handler,
        config=config,
        aux=aux,
        extra=extra,
        requirements=requirements,
    )
    return write(archive, output_dir, form=form, link=link, force=force)


def plan(
    *,
    name: str,
    version: str = "1.0",
    model: Path | None = None,
    task: str | None = None,
    handler: Path | None = None,
    config: ModelConfig | None = None,
    aux: Mapping[str, Path] | None = None,
    extra: Sequence[Path] = (),
    requirements: Path | None = None,
) -> Archive:
    """Decides what goes into an archive and checks that it is all there.

    Args:
        name: the model's name, and the archive's.
        version: the model's version.
        model: the model's folder, or for an own handler a single file (the manifest's ``serializedFile``).
        task: a ready-made task; or
        handler: a Python file with the handler class.
        config: what model-config.yaml should say; it starts from the model folder's own one unless it has a base.
        aux: auxiliary name: file, for the handler's ``self.aux``.
        extra: more files and folders for the archive's root; a folder keeps its name.
        requirements: pip requirements that TorchServe installs when ``install_py_dep_per_model`` is on.

    Raises:
        UsageError: one line with what is missing or wrong, and what to do.
    """
    config = config or ModelConfig()
    _check_identity(name, version)
    if (task is None) == (handler is None):
        raise UsageError("give either --task, for a ready-made handler, or --handler, for your own")
    entry = entry_file(task) if task else handler
    assert entry is not None
    if handler:
        check_own(handler)
    files, left_out, notes = _model_files(model, task)
    config = _on_top_of(files.pop(CONFIG_NAME, None), config, notes)
    contents = Contents(files)
    aux_names = {key: contents.add_aux(key, path) for key, path in (aux or {}).items()}
    for path in extra:
        contents.add_extra(path)
    contents.add(entry.name, entry)
    if requirements:
        contents.add_file("--requirements", requirements, requirements.name)
    whole = complete(config, task=task, aux=aux_names, weight_bytes=model_folder.weight_bytes(files))
    contents.add(CONFIG_NAME, dump(whole))
    serialized = model.name if model and model.is_file() else None
    contents.add(MANIFEST_NAME, _manifest(name, version, entry, serialized, requirements))
    return Archive(name=name, version=version, files=contents.files, config=whole, left_out=left_out, notes=notes)


def write(
    archive: Archive,
    output_dir: Path,
    *,
    form: Format = "mar",
    link: bool = False,
    force: bool = False,
    on_bytes: OnBytes | None = None,
) -> Path:
    """Writes the archive; it appears under its name whole, or not at all.

    Args:
        archive: what :func:`plan` found.
        output_dir: made when it does not exist.
        form: ``mar``, ``mar-compressed``, ``tar.gz`` or ``folder``.
        link: a folder gets hard links to the model's files, not copies.
        force: replace an archive that is there.
        on_bytes: called with the number of bytes written since the last call.

    Returns:
        The path of NAME.mar, NAME.tar.gz or the folder NAME in ``output_dir``.

    Raises:
        UsageError: it exists, or a file cannot be read or written.
    """
    target = free_target(archive, output_dir, form=form, force=force)
    reading = Reading(archive.files, archive.about, on_bytes)
    try:
        output_dir.mkdir(parents=True, exist_ok=True)
        if form == "folder":
            with appearing_folder(target, replace=force) as folder:
                write_folder(reading, folder, link=link)
        else:
            with appearing(target, replace=force) as stream:
                if form == "tar.gz":
                    write_tar(reading, stream, archive.name)
                else:
                    write_zip(reading, stream, compress=form == "mar-compressed")
    except FileExistsError:
        raise UsageError(f"{target} exists; another packing of that name was faster") from None
    except OSError as error:
        raise UsageError(f"{target}: cannot be written: {error}") from None
    return target


def free_target(archive: Archive, output_dir: Path, *, form: Format = "mar", force: bool) -> Path:
    """Where the archive is to be written.

    Raises:
        UsageError: it exists and ``force`` is false, or what is there is a folder where a file goes, or the reverse.
    """
    target = output_dir / file_name(archive.name, form)
    if target.exists() and not force:
        raise UsageError(f"{target} exists; replace it with --force, or choose another --name or --output")
    if target.exists() and target.is_dir() != (form == "folder"):
        kind = "folder" if target.is_dir() else "file"
        raise UsageError(f"{target} is a {kind} of another format; remove it, or choose another --name or --output")
    return target


def _check_identity(name: str, version: str) -> None:
    for option, value in (("--name", name), ("--version", version)):
        if not NAME_RULE.fullmatch(value):
            raise UsageError(
                f"{option} {value!r}: TorchServe takes letters, digits, '_', '-' and '.', and the first must be a"
                " letter or a digit"
            )


def _model_files(model: Path | None, task: str | None) -> tuple[dict[str, Path], list[str], list[str]]:
    """The model's files, those that are left out, and notes."""
    if model is None or not model.is_dir():
        return _single_file(model, task), [], []
    found = model_folder.walk(model)
    files = {name: path for name, path in found.items() if not model_folder.clutter(name)}
    for name in model_folder.not_needed(files) if task else []:
        del files[name]
    if not files:
        raise UsageError(f"--model {model}: the folder is empty; expected the model's files")
    notes = []
    if task:
        model_folder.check_transformers(model, files, task)
        if risky := model_folder.pickled(files):
            notes.append(
                f"pickled weights can run code when they are loaded: {', '.join(risky)}; better save the model"
                " again with save_pretrained(), which writes safetensors"
            )
    return files, [name for name in found if name not in files], notes


def _single_file(model: Path | None, task: str | None) -> dict[str, Path]:
    if model is not None and not model.exists():
        raise UsageError(f"--model {model}: no such folder")
    if task:
        got = f"{model} is a file" if model else "--model is missing"
        raise UsageError(f"{got}; --task {task} needs --model FOLDER, as save_pretrained() writes it")
    return {model.name: model} if model else {}


def _on_top_of(own: Path | None, config: ModelConfig, notes: list[str]) -> ModelConfig:
    """``config`` on top of the model folder's own file, and a note of what that means."""
    if own is None:
        return config
    if config.base:
        notes.append(f"the model folder's {CONFIG_NAME} is not used, another one was given")
        return config
    config = replace(config, base=read(own))
    notes += [f"the model folder's {CONFIG_NAME} is used and completed", *overruled(config)]
    return config


def _manifest(name: str, version: str, entry: Path, serialized: str | None, requirements: Path | None) -> bytes:
    """MANIFEST.json as torch-model-archiver writes it, but for the time."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # its version.py leaves a file open
        from model_archiver.manifest_components.manifest import Manifest, RuntimeType
        from model_archiver.manifest_components.model import Model

    model = Model(
        model_name=name,
        serialized_file=serialized,
        handler=entry.name,
        model_version=version,
        requirements_file=requirements.name if requirements else None,
        config_file=CONFIG_NAME,
    )
    manifest = Manifest(RuntimeType.PYTHON, model).manifest_dict
    return json.dumps({**manifest, "createdOn": CREATED_ON}, indent=2).encode("ascii")
