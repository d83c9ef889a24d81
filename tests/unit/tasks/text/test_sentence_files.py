"""Files of sentence-transformers: unknown keys are refused, activations come from torch.nn."""

from __future__ import annotations

import pytest
import torch

from tsbatch.errors import LoadError
from tsbatch.tasks.text.sentence_files import check_keys, make_activation, read_mapping


@pytest.mark.parametrize("text", [None, "[1]", "3"])
def test_what_is_no_object_is_empty(tmp_path, text):
    if text is not None:
        (tmp_path / "a.json").write_text(text)
    assert read_mapping(tmp_path / "a.json") == {}


def test_a_broken_file_is_refused(tmp_path):
    (tmp_path / "a.json").write_text("{")
    with pytest.raises(LoadError, match=r"a\.json: broken JSON"):
        read_mapping(tmp_path / "a.json")


@pytest.mark.parametrize("config", [{}, {"a": 5}, {"b": 1}, {"b": None, "a": None}])
def test_known_keys_pass(config):
    check_keys(config, "x.json", known={"a"}, fixed={"b": 1}, what="vectors")


@pytest.mark.parametrize(
    "config, message",
    [
        ({"b": 2}, "x.json: b: 2: expected 1, and it may change the vectors"),
        ({"c": None}, "x.json: c: None: tsbatch does not know this key, and it may change the vectors"),
    ],
)
def test_what_may_change_the_answers_is_refused(config, message):
    with pytest.raises(LoadError) as caught:
        check_keys(config, "x.json", known={"a"}, fixed={"b": 1}, what="vectors")
    assert str(caught.value) == message


def test_activations_of_torch():
    assert isinstance(make_activation("torch.nn.modules.activation.Tanh"), torch.nn.Tanh)
    for path in ("os.system", "torch.nn.functional", "torch.nn.Linear", "torch.nn.NoSuchThing", "Tanh"):
        assert make_activation(path) is None
