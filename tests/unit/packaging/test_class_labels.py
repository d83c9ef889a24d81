from __future__ import annotations

import json

import pytest

from tsbatch.errors import UsageError
from tsbatch.packaging.builder import plan
from tsbatch.packaging.class_labels import index_to_name


@pytest.mark.parametrize(
    "name, text, wanted",
    [
        ("a.json", '["cat", "dög"]', {"0": "cat", "1": "dög"}),
        ("a.JSON", '{"1": "dog", "0": "cat"}', {"0": "cat", "1": "dog"}),
        ("a.json", '{"0": ["n01440764", "tench"]}', {"0": ["n01440764", "tench"]}),
        ("a.txt", "cat\nbig dog\n", {"0": "cat", "1": "big dog"}),
        ("a.txt", "cat\r\ndog", {"0": "cat", "1": "dog"}),
        ("a.json", json.dumps([str(number) for number in range(12)]), {str(n): str(n) for n in range(12)}),
    ],
)
def test_labels_in_every_form(tmp_path, name, text, wanted):
    (tmp_path / name).write_text(text, encoding="utf-8", newline="")
    found = json.loads(index_to_name(tmp_path / name))
    assert found == wanted
    assert list(found) == list(wanted)


@pytest.mark.parametrize(
    "name, text, message",
    [
        ("a.json", '{"0": "cat", "2": "dog"}', "has 2 labels but none for index 1"),
        ("a.json", '{"cat": 0}', "expected a JSON list"),
        ("a.json", "[1, 2]", "expected a JSON list"),
        ("a.json", "[]", "expected a JSON list"),
        ("a.json", '"cat"', "expected a JSON list"),
        ("a.json", "[", "cannot be read"),
        ("a.txt", "", "expected a JSON list"),
        ("a.txt", b"\xff\xfe", "cannot be read"),
        ("a.txt", None, "no such file"),
    ],
)
def test_what_is_no_list_of_labels(tmp_path, name, text, message):
    if text is not None:
        (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(UsageError, match=message) as caught:
        index_to_name(tmp_path / name)
    assert str(tmp_path / name) in str(caught.value)


def test_an_archive_has_them_for_both_kinds_of_handler(tmp_path):
    (tmp_path / "h.py").write_text("class H:\n    pass\n")
    (tmp_path / "names.txt").write_text("cat\ndog\n")
    archive = plan(name="m", handler=tmp_path / "h.py", labels=tmp_path / "names.txt")
    assert json.loads(archive.files["index_to_name.json"]) == {"0": "cat", "1": "dog"}
    assert archive.config["tsbatch"]["aux"] == {"labels": "index_to_name.json"}
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "index_to_name.json").touch()
    with pytest.raises(UsageError, match="is in the archive already"):
        plan(name="m", handler=tmp_path / "h.py", model=tmp_path / "model", labels=tmp_path / "names.txt")
