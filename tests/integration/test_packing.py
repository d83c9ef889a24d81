"""Packed passes against the one-by-one run of transformers itself, for many architectures and heads."""

import pytest
import torch
import transformers

from tsbatch.models.packing import NAME, PackedEncoder, prove

OLDER = transformers.__version__.startswith("4.")
"""Which has no NomicBert."""

LENGTHS = [5, 40, 17, 17, 3, 64, 40, 1]
SIZES = {
    "vocab_size": 120,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 80,
}
TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2}
ARCHITECTURES = {
    "Bert": {},
    "Roberta": {"pad_token_id": 1},
    "XLMRoberta": {"pad_token_id": 1},
    "Camembert": {"pad_token_id": 1},
    "Electra": {"embedding_size": 16},
    "Albert": {"embedding_size": 16},
    "DistilBert": {},
    "NomicBert": {},
    "ModernBert": {"local_attention": 16, **TOKENS},
}
NOT_PACKED = {"MPNet": {"pad_token_id": 1}, "DebertaV2": {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]}}
HEADS = ["Model", "ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering", "ForMaskedLM"]


def build(kind, head="Model", **config):
    """A small model whose weights are scaled so that a wrong attention shows in its answers."""
    torch.manual_seed(0)
    settings = getattr(transformers, f"{kind}Config")(**SIZES, **config)
    model = getattr(transformers, f"{kind}{head}")(settings).eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.3)
    return model


def batch_of(lengths, pad=0):
    generator = torch.Generator().manual_seed(1)
    ids = torch.full((len(lengths), max(lengths)), pad)
    mask = torch.zeros_like(ids)
    for row, length in enumerate(lengths):
        ids[row, :length] = torch.randint(5, SIZES["vocab_size"], (length,), generator=generator)
        mask[row, :length] = 1
    return {"input_ids": ids, "attention_mask": mask}


def fields(output):
    return {name: value for name, value in output.items() if isinstance(value, torch.Tensor)}


# transformers has no NomicBertForQuestionAnswering.
CASES = [(kind, head) for kind in ARCHITECTURES for head in HEADS if (kind, head) != ("NomicBert", HEADS[3])]


@pytest.mark.parametrize("kind, head", CASES)
def test_packed_answers_equal_one_by_one(kind, head):
    model = build(kind, head, **ARCHITECTURES[kind])
    batch = batch_of(LENGTHS, model.config.pad_token_id or 0)
    with torch.inference_mode():
        # The oracle: transformers' own model, one text at a time, before anything was registered.
        alone = [
            fields(model(batch["input_ids"][row : row + 1, :length], batch["attention_mask"][row : row + 1, :length]))
            for row, length in enumerate(LENGTHS)
        ]
        encoder = PackedEncoder(model)
        encoder.on = True
        together = fields(model(**batch))
    assert encoder.last is not None
    assert encoder.last.calls == SIZES["num_hidden_layers"]
    for row, (length, expected) in enumerate(zip(LENGTHS, alone, strict=True)):
        assert expected
        for name, value in expected.items():
            found = together[name][row : row + 1]
            found = (
                found[:, :length]
                if value.dim() > 1 and value.shape[1] == length and found.shape[1] != length
                else found
            )
            torch.testing.assert_close(found, value, atol=2e-4, rtol=1e-4, msg=lambda text, n=name: f"{n}: {text}")
            cosine = torch.nn.functional.cosine_similarity(found.flatten().double(), value.flatten().double(), dim=0)
            assert cosine >= 0.99999


@pytest.mark.parametrize("kind", [kind for kind in ARCHITECTURES if kind != "NomicBert" or not OLDER])
def test_packing_is_proven_exactly_where_transformers_has_the_interface(kind):
    """In 5.x that is each of these, in 4.57 none: the oracle is what transformers says of its own class."""
    encoder = PackedEncoder(build(kind, **ARCHITECTURES[kind]))
    can = getattr(transformers, f"{kind}Model")._can_set_attn_implementation()
    assert can == (not OLDER)
    assert (prove(encoder, batch_of(LENGTHS, 1)) is None) == can


@pytest.mark.parametrize("kind", NOT_PACKED)
def test_what_never_calls_the_registered_function_is_not_proven(kind):
    encoder = PackedEncoder(build(kind, **NOT_PACKED[kind]))
    reason = prove(encoder, batch_of(LENGTHS, 1))
    assert reason
    assert "0 times in 3 layers" in reason


def test_a_wrong_answer_is_not_proven(monkeypatch):
    encoder = PackedEncoder(build("Bert"))
    monkeypatch.setattr(encoder, "_positions", lambda ids, mask, layout: layout.positions + 1)  # plausible and wrong
    reason = prove(encoder, batch_of(LENGTHS))
    assert reason
    assert "differ from the one-by-one run" in reason


def test_an_architecture_that_raises_is_not_proven():
    encoder = PackedEncoder(build("Bert"))
    encoder.base.encoder.forward = lambda *_, **__: 1 / 0
    encoder.on = False
    assert encoder.base.encoder.forward is not None
    with pytest.raises(ZeroDivisionError):  # one by one fails too: that is not for packing to hide
        prove(encoder, batch_of([3, 5]))


def test_removing_it_leaves_the_model_as_it_was():
    model = build("Bert")
    batch = batch_of(LENGTHS)
    with torch.inference_mode():
        before = model(**batch).last_hidden_state
        encoder = PackedEncoder(model)
        assert model.config._attn_implementation == NAME
        encoder.remove()
        after = model(**batch).last_hidden_state
    assert model.config._attn_implementation == "sdpa"
    assert torch.equal(before, after)


def test_switched_off_it_answers_as_padded():
    model = build("Bert")
    batch = batch_of(LENGTHS)
    with torch.inference_mode():
        before = model(**batch).last_hidden_state
        PackedEncoder(model)
        after = model(**batch).last_hidden_state
    mask = batch["attention_mask"].bool()
    torch.testing.assert_close(before[mask], after[mask], atol=1e-5, rtol=1e-5)


def test_token_types_travel_with_their_tokens():
    model = build("Bert")
    batch = batch_of([6, 9])
    types = torch.zeros_like(batch["input_ids"])
    types[0, 3:6] = 1
    types[1, 5:9] = 1
    with torch.inference_mode():
        expected = model(**batch, token_type_ids=types).pooler_output
        encoder = PackedEncoder(model)
        encoder.on = True
        found = model(**batch, token_type_ids=types).pooler_output
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
