"""What is sent."""

from __future__ import annotations

import pytest

from tsbatch.bench.request_bodies import BYTES, JSON, TEXT, Body, read_bodies
from tsbatch.errors import UsageError


def write(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.mark.parametrize(
    "name, content, bodies",
    [
        (
            "a.jsonl",
            '{"inputs": ["a", "b"]}\n\n{"inputs": "c"}\r\n[1, 2]\n',
            [Body(b'{"inputs": ["a", "b"]}', JSON, 2), Body(b'{"inputs": "c"}', JSON), Body(b"[1, 2]", JSON)],
        ),
        ("a.json", '[{"instances": [[1], [2]]}, "x"]', [Body(b'{"instances":[[1],[2]]}', JSON, 2), Body(b'"x"', JSON)]),
        ("a.json", '{"inputs": "x"}', [Body(b'{"inputs":"x"}', JSON)]),
        ("a.txt", "\ufeffeins\n\n zwei \n", [Body(b"eins", TEXT), Body(b"zwei", TEXT)]),
        (
            "a.csv",
            'text\n"a, b"\n12\ntrue\n',
            [Body(b'{"inputs":%b}' % cell, JSON) for cell in (b'"a, b"', b"12", b'"true"')],
        ),
        ("a.tsv", "question\tyear\nwho?\t1.5\n", [Body(b'{"inputs":{"question":"who?","year":1.5}}', JSON)]),
        ("a.png", b"\x89PNG\n\n", [Body(b"\x89PNG\n\n", "image/png")]),
        ("a.bin", b"\n\n", [Body(b"\n\n", BYTES)]),
    ],
)
def test_a_file_is_read_by_its_name(tmp_path, name, content, bodies):
    assert read_bodies(write(tmp_path / name, content)) == bodies


def test_a_folder_in_the_order_of_names(tmp_path):
    write(tmp_path / "b.jpg", b"2")
    write(tmp_path / "a.PNG", b"1")
    write(tmp_path / "c.json", '{"inputs": ["a", "b"]}')
    write(tmp_path / ".hidden", b"3")
    (tmp_path / "folder").mkdir()
    assert read_bodies(tmp_path) == [
        Body(b"1", "image/png"),
        Body(b"2", "image/jpeg"),
        Body(b'{"inputs": ["a", "b"]}', JSON, 2),
    ]


def test_another_content_type(tmp_path):
    assert read_bodies(write(tmp_path / "a.txt", "a"), "text/x") == [Body(b"a", "text/x")]


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("a.txt", "\n \n", "contains nothing to send"),
        ("a.jsonl", '1\n{"a\n', "request 2 is not JSON"),
        ("a.json", "{", "a.json is not JSON"),
        ("a.csv", "a,b\n1,2\n3\n", "line 3: the number of cells differs"),
        ("a.csv", "a,b\n1,2,3\n", "line 2: the number of cells differs"),
        ("a.csv", b"a\n\xff\n", "a.csv, line"),
        ("a.csv", 'a\n"x" y\n', "a.csv, line"),
    ],
)
def test_what_cannot_be_understood_is_named(tmp_path, name, content, message):
    with pytest.raises(UsageError, match=message):
        read_bodies(write(tmp_path / name, content))


def test_bad_json_in_a_folder(tmp_path):
    write(tmp_path / "x.json", "{")
    with pytest.raises(UsageError, match=r"x\.json is not JSON"):
        read_bodies(tmp_path)
