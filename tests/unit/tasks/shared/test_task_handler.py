"""Labels from the archive come before the model's own, and must fit the model."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.tiny import write
from tsbatch.errors import LoadError
from tsbatch.tasks.shared.task_handler import NAMES_FILE, class_names

CONFIG = SimpleNamespace(id2label={0: "no", 1: "yes"})


def test_each_source_in_turn(tmp_path):
    assert class_names(2, folder=tmp_path, aux={}) == ["LABEL_0", "LABEL_1"]
    assert class_names(2, folder=tmp_path, aux={}, config=CONFIG) == ["no", "yes"]
    write(tmp_path / NAMES_FILE, {"1": "dog", "0": ["n0123", "cat"]})
    assert class_names(2, folder=tmp_path, aux={}, config=CONFIG) == ["cat", "dog"]
    assert class_names(2, folder=tmp_path, aux={"labels": "red\ngreen\n"}, config=CONFIG) == ["red", "green"]
    assert class_names(2, folder=tmp_path, aux={"labels": ["a", "b"]}, config=CONFIG) == ["a", "b"]


@pytest.mark.parametrize("given", [["a"], ["a", "b", "c"], {"0": "a", "2": "b"}])
def test_labels_that_do_not_fit_are_named_with_both_numbers(tmp_path, given):
    with pytest.raises(LoadError, match=r"'labels': has labels for .* and the model has 2 classes, 0 to 1"):
        class_names(2, folder=tmp_path, aux={"labels": given})


@pytest.mark.parametrize("given", [3, [1, 2], {"x": "a", "y": "b"}, [[], []]])
def test_what_is_no_list_of_labels_is_said_to_be_none(tmp_path, given):
    with pytest.raises(LoadError, match="cannot be read as labels; expected"):
        class_names(2, folder=tmp_path, aux={"labels": given})
