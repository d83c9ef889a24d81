"""Poolings against plain sums over the tokens that are there, and the files that describe them."""

from __future__ import annotations

import json
import math
import sys

import pytest
import torch

from tests.tiny import save_sentence_files, write
from tsbatch.errors import LoadError
from tsbatch.tasks.text.pooling import POOLINGS, Head, read_head

CPU = torch.device("cpu")


def by_hand(name, rows):
    """``rows``: the states of the real tokens of one text, as lists."""
    columns = list(zip(*rows, strict=True))
    if name == "cls":
        return list(rows[0])
    if name == "last":
        return list(rows[-1])
    if name == "max":
        return [max(column) for column in columns]
    if name == "mean":
        return [sum(column) / len(rows) for column in columns]
    if name == "mean_sqrt_len":
        return [sum(column) / math.sqrt(len(rows)) for column in columns]
    weights = range(1, len(rows) + 1)
    return [sum(w * x for w, x in zip(weights, column, strict=True)) / sum(weights) for column in columns]


@pytest.mark.parametrize("name", POOLINGS)
@pytest.mark.parametrize("padding", [0.0, 1e6, -1e6])
def test_each_pooling_sees_its_own_tokens_alone(name, padding):
    torch.manual_seed(0)
    counts = [4, 1, 7, 2]
    states = torch.full((4, 7, 3), padding)
    mask = torch.zeros(4, 7, dtype=torch.long)
    for row, count in enumerate(counts):
        states[row, :count] = torch.randn(count, 3) - 5  # all negative: a maximum over padding would show
        mask[row, :count] = 1
    pooled = POOLINGS[name](states, mask)
    for row, count in enumerate(counts):
        assert pooled[row].tolist() == pytest.approx(by_hand(name, states[row, :count].tolist()), rel=1e-4)


@pytest.mark.parametrize("name", POOLINGS)
def test_half_precision(name):
    states, mask = torch.ones(2, 5, 3, dtype=torch.bfloat16), torch.ones(2, 5, dtype=torch.long)
    pooled = POOLINGS[name](states, mask)
    assert pooled.dtype == torch.bfloat16
    assert pooled.isfinite().all()


def test_several_poolings_are_put_side_by_side_and_dense_layers_follow():
    states, mask = torch.randn(2, 3, 4), torch.ones(2, 3, dtype=torch.long)
    dense = torch.nn.Linear(8, 5)
    vectors = Head(poolings=("cls", "mean"), dense=(dense,))(states, mask)
    assert torch.allclose(vectors, dense(torch.cat([states[:, 0], states.mean(1)], dim=-1)))


def test_a_plain_folder_is_mean_and_normalised(tmp_path):
    assert read_head(tmp_path, CPU) == Head()
    assert Head().poolings == ("mean",)
    assert Head().normalize


SWITCHES = {
    "pooling_mode_cls_token": ("cls",),
    "pooling_mode_max_tokens": ("max",),
    "pooling_mode_mean_tokens": ("mean",),
    "pooling_mode_mean_sqrt_len_tokens": ("mean_sqrt_len",),
    "pooling_mode_weightedmean_tokens": ("weighted_mean",),
    "pooling_mode_lasttoken": ("last",),
}


@pytest.mark.parametrize("switch, poolings", SWITCHES.items())
def test_poolings_by_switch(tmp_path, switch, poolings):
    config = {"word_embedding_dimension": 3, **dict.fromkeys(SWITCHES, False), switch: True}
    assert read_head(save_sentence_files(tmp_path, pooling=config), CPU).poolings == poolings


@pytest.mark.parametrize(
    "mode, poolings",
    [
        ("cls", ("cls",)),
        ("mean", ("mean",)),
        ("max", ("max",)),
        ("lasttoken", ("last",)),
        ("weightedmean", ("weighted_mean",)),
        (["cls", "mean"], ("cls", "mean")),
    ],
)
def test_poolings_by_name(tmp_path, mode, poolings):
    assert read_head(save_sentence_files(tmp_path, pooling={"pooling_mode": mode}), CPU).poolings == poolings


def test_several_switches_keep_the_order_of_sentence_transformers(tmp_path):
    config = {"pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": True, "pooling_mode_cls_token": True}
    assert read_head(save_sentence_files(tmp_path, pooling=config), CPU).poolings == ("cls", "max", "mean")


def test_a_folder_with_a_pooling_and_no_list_of_modules(tmp_path):
    write(tmp_path / "1_Pooling/config.json", {"pooling_mode_cls_token": True})
    head = read_head(tmp_path, CPU)
    assert (head.poolings, head.normalize) == (("cls",), True)


@pytest.mark.parametrize("normalize", [True, False])
def test_normalisation_as_the_list_says(tmp_path, normalize):
    head = read_head(save_sentence_files(tmp_path, pooling={"pooling_mode": "mean"}, normalize=normalize), CPU)
    assert head.normalize is normalize


def test_length_and_prompts(tmp_path):
    save_sentence_files(
        tmp_path,
        pooling={"pooling_mode": "mean"},
        sentence_bert_config={"max_seq_length": 33},
        config_sentence_transformers={"prompts": {"query": "q: "}, "default_prompt_name": "query"},
    )
    head = read_head(tmp_path, CPU)
    assert (head.max_length, head.prompts, head.default_prompt) == (33, {"query": "q: "}, "query")


def test_a_dense_layer(tmp_path):
    dense = torch.nn.Linear(3, 2)
    head = read_head(save_sentence_files(tmp_path, pooling={"pooling_mode": "mean"}, dense=dense), CPU)
    states, mask = torch.randn(4, 1, 3), torch.ones(4, 1, dtype=torch.long)
    assert torch.allclose(head(states, mask), torch.tanh(dense(states[:, 0])), atol=1e-6)
    assert not any(parameter.requires_grad for parameter in head.dense[0].parameters())


def test_a_dense_layer_in_the_older_file(tmp_path):
    dense = torch.nn.Linear(3, 2, bias=False)
    save_sentence_files(tmp_path, pooling={"pooling_mode": "mean"}, dense=dense)
    (tmp_path / "2_Dense/model.safetensors").unlink()
    torch.save({"linear.weight": dense.weight.detach()}, tmp_path / "2_Dense/pytorch_model.bin")
    assert torch.equal(read_head(tmp_path, CPU).dense[0].linear.weight, dense.weight)


BROKEN = {
    "modules.json": ("{", "modules.json: broken JSON"),
    "1_Pooling/config.json": ("[]", "1_Pooling/config.json: no such file"),
    "sentence_bert_config.json": ("}", "sentence_bert_config.json: broken JSON"),
    "config_sentence_transformers.json": ("nope", "config_sentence_transformers.json: broken JSON"),
}


@pytest.mark.parametrize("file", BROKEN)
def test_broken_files_are_named(tmp_path, file):
    save_sentence_files(tmp_path, pooling={"pooling_mode": "mean"})
    (tmp_path / file).write_text(BROKEN[file][0])
    with pytest.raises(LoadError) as caught:
        read_head(tmp_path, CPU)
    assert BROKEN[file][1] in str(caught.value)


@pytest.mark.parametrize(
    "config, part",
    [
        ({}, "unknown pooling none"),
        ({"pooling_mode": "median"}, r"unknown pooling \['median'\]; known are cls, last"),
        ({"pooling_mode": "mean", "include_prompt": False}, "include_prompt is false"),
    ],
)
def test_a_pooling_that_tsbatch_does_not_do_is_refused(tmp_path, config, part):
    with pytest.raises(LoadError, match=part):
        read_head(save_sentence_files(tmp_path, pooling=config), CPU)


def test_a_module_that_tsbatch_does_not_know_is_refused_and_dropout_is_not(tmp_path):
    save_sentence_files(tmp_path, pooling={"pooling_mode": "mean"})
    listed = json.loads((tmp_path / "modules.json").read_text())
    write(tmp_path / "modules.json", [*listed, {"type": "sentence_transformers.models.Dropout", "path": "1"}])
    read_head(tmp_path, CPU)
    write(tmp_path / "modules.json", [*listed, {"type": "sentence_transformers.models.SpladePooling", "path": "1"}])
    with pytest.raises(LoadError, match=r"the module sentence_transformers\.models\.SpladePooling"):
        read_head(tmp_path, CPU)


@pytest.mark.parametrize("about", [{"activation_function": "mine.Tanh"}, {"out_features": None}])
def test_a_dense_layer_that_cannot_be_built(tmp_path, about):
    save_sentence_files(tmp_path, pooling={"pooling_mode": "mean"}, dense=torch.nn.Linear(3, 2))
    config = {"in_features": 3, "out_features": 2, "activation_function": "torch.nn.Identity", **about}
    write(tmp_path / "2_Dense/config.json", {key: value for key, value in config.items() if value is not None})
    with pytest.raises(LoadError, match=r"2_Dense/config\.json: not a dense layer"):
        read_head(tmp_path, CPU)


def module(kind, folder="", package="sentence_transformers.models"):
    return {"type": f"{package}.{kind}", "path": folder}


def test_a_normalisation_before_a_dense_layer_counts(tmp_path):
    dense = torch.nn.Linear(3, 2)
    save_sentence_files(tmp_path, pooling={"pooling_mode": "mean"}, dense=dense)
    order = [module("Transformer"), module("Pooling", "1_Pooling"), module("Normalize"), module("Dense", "2_Dense")]
    write(tmp_path / "modules.json", order)
    head = read_head(tmp_path, CPU)
    states, mask = torch.randn(4, 1, 3), torch.ones(4, 1, dtype=torch.long)
    unit = states[:, 0] / states[:, 0].norm(dim=1, keepdim=True)
    assert torch.allclose(head(states, mask), torch.tanh(dense(unit)), atol=1e-6)
    assert not head.normalize


def test_the_dimensions_that_the_folder_keeps(tmp_path):
    pooling = {"pooling_mode": "mean"}
    save_sentence_files(tmp_path, pooling=pooling, config_sentence_transformers={"truncate_dim": 8})
    assert read_head(tmp_path, CPU).dimensions == 8


ORDERS = {
    "no Pooling: the model makes one vector per token": [module("Transformer")],
    "module pylate.models.Dense": [module("Transformer"), module("Dense", "2_Dense", package="pylate.models")],
    "module sentence_transformers_more.Dense": [
        module("Transformer"),
        module("Pooling", "1_Pooling"),
        module("Dense", "2_Dense", package="sentence_transformers_more"),
    ],
    r"Dense before Pooling needs the library .* install tsbatch\[sentence-transformers\]": [
        module("Transformer"),
        module("Dense", "2_Dense"),
        module("Pooling", "1_Pooling"),
    ],
    "a second Pooling needs the library": [
        module("Transformer"),
        module("Pooling", "1_Pooling"),
        module("Pooling", "1_Pooling"),
    ],
}


@pytest.mark.parametrize("reason", ORDERS)
def test_a_chain_that_would_be_answered_wrongly_is_refused(tmp_path, monkeypatch, reason):
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    save_sentence_files(tmp_path, pooling={"pooling_mode": "mean"}, dense=torch.nn.Linear(3, 2))
    write(tmp_path / "modules.json", ORDERS[reason])
    with pytest.raises(LoadError, match=reason):
        read_head(tmp_path, CPU)


KEYS = {
    "2_Dense/config.json": {"scale": 2},
    "sentence_bert_config.json": {"module_output_name": "sentence_embedding"},
    "config_sentence_transformers.json": {"temperature": 2},
}


@pytest.mark.parametrize("file", KEYS)
def test_a_key_that_may_change_the_vectors_is_refused(tmp_path, file):
    save_sentence_files(tmp_path, pooling={"pooling_mode": "mean"}, dense=torch.nn.Linear(3, 2))
    path = tmp_path / file
    write(path, {**(json.loads(path.read_text()) if path.exists() else {}), **KEYS[file]})
    (key,) = KEYS[file]
    with pytest.raises(LoadError, match=rf"{file}: {key}: .*it may change the vectors"):
        read_head(tmp_path, CPU)
