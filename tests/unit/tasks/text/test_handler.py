"""The text front end: token ids, limits, padding."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.tiny import save_encoder, save_tokenizer
from tests.tiny_text import save_wordpiece
from tsbatch.errors import LoadError, PayloadTooLarge
from tsbatch.tasks.shared.task_handler import read_json
from tsbatch.tasks.text.handler import TextHandler
from tsbatch.worker.context import ModelContext


class Encoder(TextHandler):
    def load_model(self):
        from transformers import AutoModel

        return self.load_pretrained(AutoModel)


def load(folder, **settings):
    handler = Encoder()
    handler.load(ModelContext(model_dir=folder, config={"tsbatch": {"warmup": False, **settings}}))
    return handler


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return load(save_encoder(tmp_path_factory.mktemp("bert")))


def test_texts_become_ids_in_one_call(bert):
    tokens, counts = bert.fit(["a cat", "", "the dog ran away"])
    assert [row.ids.tolist() for row in tokens] == [[2, 5, 6, 3], [2, 3], [2, 10, 7, 13, 14, 3]]
    assert counts == [4, 2, 6]
    assert all(row.ids.dtype == np.int64 and row.types is None for row in tokens)


def test_a_long_text_is_cut_with_its_special_tokens_and_counted_uncut(bert):
    tokens, counts = bert.fit(["cat " * 100, "a"], max_length=10)
    assert tokens[0].ids.tolist() == [2] + [6] * 8 + [3]
    assert counts == [102, 3]


def test_padding_is_on_the_right_and_masked(bert):
    tokens, _ = bert.fit(["a cat", "the dog ran away"])
    batch = bert.collate(tokens)
    assert batch["input_ids"].tolist() == [[2, 5, 6, 3, 0, 0], [2, 10, 7, 13, 14, 3]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 1]]
    assert bert.lengths(tokens) == [4, 6]


def test_an_item_over_the_limit_of_characters(tmp_path_factory):
    handler = load(save_encoder(tmp_path_factory.mktemp("m")), limits={"characters": 10})
    assert handler.decode_item("x" * 10) == "x" * 10
    with pytest.raises(PayloadTooLarge, match="11 characters, over the limit of 10"):
        handler.decode_item("x" * 11)


# MPNet, CamemBERT and the RoBERTas count positions from padding_idx + 1: two rows of the table are never used.
KINDS = {"Bert": 64, "Roberta": 62, "XLMRoberta": 62, "Camembert": 62, "MPNet": 62, "Electra": 64}


@pytest.mark.parametrize("kind", KINDS)
def test_the_longest_input_is_what_the_model_really_takes(tmp_path, kind):
    folder = save_encoder(tmp_path, kind, pad_token_id=0 if kind in ("Bert", "Electra") else 1, tokenizer=False)
    save_tokenizer(folder)
    handler = load(folder)
    limit = handler.token_limit()
    assert limit == KINDS[kind]

    def run(count):
        ids = torch.full((1, count), 7)
        return handler.model(input_ids=ids, attention_mask=torch.ones_like(ids))

    run(limit)
    with pytest.raises((IndexError, RuntimeError)):
        run(limit + 1)


@pytest.mark.parametrize("tokenizer_limit, expected", [(32, 32), (500, 64), (None, 64)])
def test_tokenizer_and_model_whichever_takes_less(tmp_path, tokenizer_limit, expected):
    save_encoder(tmp_path, tokenizer=False)
    save_tokenizer(tmp_path, max_length=tokenizer_limit)
    assert load(tmp_path).token_limit() == expected


def failure(folder):
    with pytest.raises(LoadError) as caught:
        load(folder)
    message = str(caught.value)
    assert "\n" not in message, "one line"
    return message


def test_no_config(tmp_path):
    save_tokenizer(tmp_path)
    assert failure(tmp_path).startswith("config.json: no such file in the archive")


def test_no_tokenizer(tmp_path):
    save_encoder(tmp_path, tokenizer=False)
    assert "the tokenizer cannot be loaded" in failure(tmp_path)


def test_no_weights(tmp_path):
    (save_encoder(tmp_path) / "model.safetensors").unlink()
    message = failure(tmp_path)
    assert "the model cannot be loaded from the archive" in message
    assert "model.safetensors" in message


@pytest.mark.parametrize("damage", [b"", b"garbage" * 100])
def test_corrupt_weights(tmp_path, damage):
    (save_encoder(tmp_path) / "model.safetensors").write_bytes(damage)
    assert "the model cannot be loaded from the archive" in failure(tmp_path)


def test_broken_config(tmp_path):
    (save_encoder(tmp_path) / "config.json").write_text("{")
    assert "config.json" in failure(tmp_path)


def test_read_json(tmp_path):
    assert read_json(tmp_path / "none.json") is None
    (tmp_path / "a.json").write_text('{"a": [1]}')
    assert read_json(tmp_path / "a.json") == {"a": [1]}


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """A handler whose tokenizer makes pairs; at most 64 tokens."""
    folder = save_encoder(tmp_path_factory.mktemp("pairs"), tokenizer=False, vocab_size=400)
    save_wordpiece(folder, max_length=500)
    return load(folder)


LONG, SHORT = "a " * 100, "a x"


@pytest.mark.parametrize("truncation", [True, "only_first", "only_second"])
def test_pairs_are_cut_as_the_tokenizer_cuts_them_and_counted_uncut(pairs, truncation):
    texts, seconds = [SHORT, LONG, SHORT], [SHORT, SHORT, SHORT]
    if truncation == "only_second":
        texts, seconds = seconds, texts
    features, counts = pairs.fit(texts, seconds, truncation=truncation)
    assert counts == [7, 105, 7]
    for feature, text, second in zip(features, texts, seconds, strict=True):
        expected = pairs.tokenizer(text, second, truncation=truncation, max_length=64)
        assert feature.ids.tolist() == expected["input_ids"]
        assert feature.types.tolist() == expected["token_type_ids"]
    assert len(features[1]) == 64


def test_of_two_long_texts_the_longer_is_cut_first(pairs):
    [feature], [count] = pairs.fit([LONG], ["x " * 20])
    assert (count, len(feature)) == (123, 64)
    assert feature.types.sum() == 21, "the short one and its mark are whole"


def test_a_pair_that_cannot_be_cut_to_fit_has_an_error_in_its_place(pairs):
    features, counts = pairs.fit([SHORT, LONG, SHORT, LONG], [SHORT, SHORT, LONG, LONG], truncation="only_first")
    assert [type(feature).__name__ for feature in features] == ["Tokens", "Tokens", "Unprocessable", "Unprocessable"]
    assert counts == [7, 105, 105, 203]
    assert "more tokens than the model takes, 64" in features[2].message
    assert len(features[1]) == 64


def test_a_tokenizer_that_leaves_it_uncut_gets_the_same_error(pairs, monkeypatch):
    """Those written in Python only log that they could not."""
    whole = type(pairs).encode
    monkeypatch.setattr(pairs, "encode", lambda *texts, **_: whole(pairs, *texts, truncation=False))
    features, _ = pairs.fit([SHORT, SHORT], [SHORT, LONG], truncation="only_first")
    assert [type(feature).__name__ for feature in features] == ["Tokens", "Unprocessable"]


def test_what_else_a_tokenizer_raises_is_not_hidden(pairs, monkeypatch):
    whole = type(pairs).encode

    def encode(*texts, truncation, **_):
        if truncation:
            raise ValueError("broken")
        return whole(pairs, *texts, truncation=False)

    monkeypatch.setattr(pairs, "encode", encode)
    with pytest.raises(ValueError, match="broken"):
        pairs.fit([LONG])
