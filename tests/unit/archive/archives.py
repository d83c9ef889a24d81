"""Archives to break: made by tsbatch, then changed with other tools."""

from __future__ import annotations

import io
import shutil
import tarfile
import zipfile

from tsbatch.packaging.builder import plan, write

HANDLER = "class MyHandler:\n    pass\n"
FILES = {"labels.json": b'["a", "b"]', "w.bin": bytes(range(256)) * 40, "x.bin": bytes(256) * 40}


def make(folder, form="mar", *, name="m", files=FILES, **options):
    """An archive of a few small files, packed in ``folder``."""
    source = folder / f"{name}-source"
    source.mkdir(parents=True, exist_ok=True)
    for file, content in files.items():
        (source / file).write_bytes(content)
    handler = folder / "my_handler.py"
    handler.write_text(HANDLER)
    return write(plan(name=name, handler=handler, model=source, **options), folder, form=form).path


def contents(path):
    """Path inside: bytes, read without tsbatch."""
    if path.is_dir():
        found = [file for file in path.rglob("*") if file.is_file()]
        return {file.relative_to(path).as_posix(): file.read_bytes() for file in found}
    if path.suffix == ".mar":
        with zipfile.ZipFile(path) as archive:
            return {name: archive.read(name) for name in archive.namelist()}
    with tarfile.open(path) as archive:
        return {name.partition("/")[2]: archive.extractfile(name).read() for name in archive.getnames()}


def rewrite(path, files):
    """The archive with other contents, in its format and with right checksums."""
    if path.is_dir():
        shutil.rmtree(path)
        for name, content in files.items():
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            (path / name).write_bytes(content)
    elif path.suffix == ".mar":
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in files.items():
                archive.writestr(name, content)
    else:
        with tarfile.open(path, "w:gz") as archive:
            for name, content in files.items():
                entry = tarfile.TarInfo(f"m/{name}")
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content))


def changed(files):
    return {**files, "w.bin": b"!" + files["w.bin"][1:]}


def added(files):
    return {**files, "deep/new.py": b"print()"}


def dropped(files):
    return {name: content for name, content in files.items() if name != "labels.json"}


def swapped(files):
    return {**files, "w.bin": files["x.bin"], "x.bin": files["w.bin"]}


TAMPERINGS = {
    changed: {("w.bin", "changed")},
    added: {("deep/new.py", "added")},
    dropped: {("labels.json", "dropped")},
    swapped: {("w.bin", "swapped"), ("x.bin", "swapped")},
}
"""What is done to the contents: the findings it must give."""
