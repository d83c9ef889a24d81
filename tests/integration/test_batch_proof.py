"""Batching modes that prove themselves: each answer in a batch against transformers, one text at a time."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import transformers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.classifiers import ask, load
from tests.tiny_text import save_model, save_wordpiece
from tests.varied import TEXTS
from tsbatch.errors import LoadError, SettingsError
from tsbatch.tasks.fill_mask import FillMaskHandler
from tsbatch.tasks.text_classification import TextClassificationHandler
from tsbatch.tasks.token_classification import TokenClassificationHandler

OLDER = transformers.__version__.startswith("4.")
PACKED = "bucketed" if OLDER else "packed"
LONGEST = 100
TOLERANCE = 1e-3
"""Largest difference of a logit in a batch from the same logit alone, relative to the text's largest logit."""
KINDS = {
    "Bert": ({}, PACKED),
    "Roberta": ({}, PACKED),
    "Xmod": ({"languages": ["en_XX", "de_DE"], "default_language": "en_XX"}, None),
    "MPNet": ({}, "bucketed"),
    "DebertaV2": ({"relative_attention": True, "pos_att_type": ["p2c", "c2p"]}, "bucketed"),
    "Longformer": ({"attention_window": 8}, "bucketed"),
    "FNet": ({}, "equal"),
    "ConvBert": ({"embedding_size": 32, "head_ratio": 2}, "equal"),
    "Yoso": ({}, "equal"),
    "Funnel": ({"d_model": 32, "n_head": 4, "d_head": 8, "d_inner": 48, "block_sizes": [1, 1]}, None),
    "MobileBert": ({"embedding_size": 16, "true_hidden_size": 32, "intra_bottleneck_size": 32}, "equal"),
}
MIXED = [*TEXTS[:12], "a [PAD] b [PAD] c", "x", "x", "[SEP] so [MASK] it goes", "rain " * 60]


def save(folder, kind, head="ForSequenceClassification"):
    """A tiny model; its padding token has an embedding, as not all trained models leave that at zero."""
    name, own = f"{kind}{head}", KINDS.get(kind, ({},))[0]
    if kind == "Funnel":
        sizes = {"vocab_size": save_wordpiece(folder, types=False, max_length=LONGEST), "num_decoder_layers": 1, **own}
        torch.manual_seed(0)
        model = getattr(transformers, name)(transformers.FunnelConfig(**sizes, num_labels=3)).eval()
    else:
        tokenizer = partial(save_wordpiece, types=False, max_length=LONGEST)
        model = save_model(folder, name, tokenizer=tokenizer, num_labels=3, **own)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, torch.nn.Embedding):
                module.weight[0].normal_(0, 0.5)
    model.save_pretrained(folder)
    return model


def logits_alone(model, tokenizer, texts):
    with torch.no_grad():
        return [model(**tokenizer(text, truncation=True, return_tensors="pt")).logits[0] for text in texts]


def logits_of(handler, texts):
    parameters = {"top_k": None, "function_to_apply": "none"}
    answers = ask(handler, [{"inputs": text, "parameters": parameters} for text in texts])
    assert {status for status, _ in answers} == {200}
    return [torch.tensor([row["score"] for row in sorted(body, key=lambda row: row["label"])]) for _, body in answers]


@pytest.fixture(scope="module", params=KINDS)
def served(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    model = save(folder, request.param)
    handler = load(TextClassificationHandler, folder, warmup=False)
    alone = dict(zip(MIXED, logits_alone(model, handler.tokenizer, MIXED), strict=True))
    return request.param, handler, alone


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts=st.lists(st.sampled_from(MIXED), min_size=1, max_size=12))
def test_each_answer_in_a_batch_is_the_answer_alone_whatever_its_neighbours(served, texts):
    _, handler, alone = served
    for text, found in zip(texts, logits_of(handler, texts), strict=True):
        assert float((found - alone[text]).abs().max()) <= TOLERANCE * float(alone[text].abs().max()), text


def test_the_fastest_mode_that_proves_itself_is_chosen_and_described(served):
    kind, handler, _ = served
    mode = KINDS[kind][1]
    described = handler.describe_handle()["batching"]
    assert mode is None or described["mode"] == mode, described
    assert 0 <= described["difference"] <= 3e-4
    assert described["mode"] == "packed" or "packing cannot be used" in described["reason"]


@pytest.mark.parametrize(
    "handler_class, head", [(TokenClassificationHandler, "ForTokenClassification"), (FillMaskHandler, "ForMaskedLM")]
)
def test_tasks_with_an_answer_for_each_token_prove_theirs(tmp_path, handler_class, head):
    save(tmp_path, "ConvBert", head)
    handler = load(handler_class, tmp_path, warmup=False)
    assert handler.choice.mode == "equal"
    texts = [f"[MASK] {text}" for text in ("a short one", "a much longer one, with a clause; and another", "x y")]
    together = ask(handler, [{"inputs": text} for text in texts])
    for text, (status, found) in zip(texts, together, strict=True):
        [(_, alone)] = ask(handler, [{"inputs": text}])
        assert status == 200
        assert [row["score"] for row in found] == pytest.approx([row["score"] for row in alone], rel=1e-3)


@pytest.mark.parametrize("mode", ["bucketed", "padded"])
def test_a_mode_that_changes_the_answers_cannot_be_set(tmp_path, mode):
    save(tmp_path, "FNet")
    with pytest.raises(
        SettingsError, match=f"tsbatch.batching.mode: {mode} cannot be used: its answers differ from .* by"
    ):
        load(TextClassificationHandler, tmp_path, batching={"mode": mode})
    assert load(TextClassificationHandler, tmp_path, batching={"mode": mode, "proof": "skip"}).choice.mode == mode


@pytest.mark.parametrize("mode", ["equal", "single"])
def test_slower_modes_can_be_set(tmp_path, mode):
    model = save(tmp_path, "Bert")
    handler = load(TextClassificationHandler, tmp_path, batching={"mode": mode})
    assert handler.choice.mode == mode
    expected = logits_alone(model, handler.tokenizer, MIXED)
    for found, alone in zip(logits_of(handler, MIXED), expected, strict=True):
        torch.testing.assert_close(found, alone, atol=1e-4, rtol=1e-4)


def test_a_model_whose_answers_are_not_repeatable_is_refused(tmp_path):
    save(tmp_path, "Bert")

    class Hashing(TextClassificationHandler):
        def inference(self, tensors):  # as random hashes would
            return super().inference(tensors) * (1 + 0.1 * torch.rand(()))

    with pytest.raises(LoadError, match="the same text alone differently the second time"):
        load(Hashing, tmp_path)


@pytest.mark.skipif(OLDER, reason="transformers 4.57 cannot pack")
def test_a_padding_token_inside_a_text_does_not_count_as_a_position_when_packed(tmp_path):
    model = save(tmp_path, "Roberta")
    handler = load(TextClassificationHandler, tmp_path, batching={"mode": "packed"})
    texts = ["a [PAD] b [PAD] c", "one more", "[PAD] x"]
    for found, alone in zip(logits_of(handler, texts), logits_alone(model, handler.tokenizer, texts), strict=True):
        torch.testing.assert_close(found, alone, atol=1e-4, rtol=1e-4)
