from __future__ import annotations

import base64

import pytest

from tsbatch.check.samples import MAX_SAMPLES, read
from tsbatch.errors import UsageError


def bodies(samples):
    return [(one["name"], base64.b64decode(one["body"]), one["content_type"]) for one in samples]


def test_a_line_is_a_json_body(tmp_path):
    file = tmp_path / "samples.jsonl"
    file.write_text('{"inputs": "a"}\n\n[1, 2]\n')
    assert bodies(read(file)) == [
        ("line 1", b'{"inputs": "a"}', "application/json"),
        ("line 3", b"[1, 2]", "application/json"),
    ]


def test_a_file_of_a_folder_is_a_body_with_the_type_of_its_ending(tmp_path):
    for name, content in {"b.png": b"\x89PNG", "a.txt": b"text", ".hidden": b"", "c.zzz": b"?", "d.json": b"1"}.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "sub").mkdir()
    assert bodies(read(tmp_path)) == [
        ("a.txt", b"text", "text/plain"),
        ("b.png", b"\x89PNG", "image/png"),
        ("c.zzz", b"?", "application/octet-stream"),
        ("d.json", b"1", "application/json"),
    ]


def test_a_bad_line_is_named(tmp_path):
    file = tmp_path / "samples.jsonl"
    file.write_text("1\n{'a': 1}\n")
    with pytest.raises(UsageError, match="line 2: not JSON"):
        read(file)


def test_nothing_there(tmp_path):
    with pytest.raises(UsageError, match="no such file or folder"):
        read(tmp_path / "none")
    with pytest.raises(UsageError, match="contains no samples"):
        read(tmp_path)


def test_there_is_an_end(tmp_path):
    file = tmp_path / "samples.jsonl"
    file.write_text("1\n" * (MAX_SAMPLES + 5))
    assert len(read(file)) == MAX_SAMPLES
