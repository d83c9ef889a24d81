"""How prompts share a ``generate``: each answer in a batch against transformers, one prompt at a time."""

from __future__ import annotations

import json

import pytest
import torch
import transformers

from tests.generators import ask, by_hand, load
from tests.tiny_text import save_bpe
from tests.varied import TEXTS
from tsbatch.errors import LoadError, SettingsError
from tsbatch.tasks.summarization import SummarizationHandler
from tsbatch.tasks.text_generation import TextGenerationHandler

OLDER = transformers.__version__.startswith("4.")
NEW = 4
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
T5 = {"d_model": 32, "d_ff": 48, "d_kv": 8, "num_layers": 2, "num_heads": 4, "decoder_start_token_id": 0}
KINDS = {
    "GPT2LMHeadModel": ({"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 512}, "bucketed"),
    "MistralForCausalLM": ({**SIZES, "num_key_value_heads": 2, "sliding_window": 8}, "bucketed"),
    "MptForCausalLM": ({"d_model": 32, "n_heads": 4, "n_layers": 2, "max_seq_len": 512}, "bucketed"),
    "MambaForCausalLM": (
        {"hidden_size": 32, "num_hidden_layers": 2, "state_size": 8},
        "equal" if OLDER else "bucketed",
    ),
    "XLNetLMHeadModel": ({"d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 48}, "equal"),
    "RecurrentGemmaForCausalLM": ({**SIZES, "num_hidden_layers": 3, "lru_width": 32}, "equal"),
    "RwkvForCausalLM": ({"hidden_size": 32, "attention_hidden_size": 32, "num_hidden_layers": 2}, "single"),
    "LongT5ForConditionalGeneration": ({**T5, "local_radius": 4}, "bucketed"),
}
MIXED = [*TEXTS[:6], "two words", "two words", "a <pad> b <pad> c", "rain " * 40]


def save(folder, kind):
    model_class, words = getattr(transformers, kind), save_bpe(folder)
    ids = {"bos_token_id": 1, "eos_token_id": 1, "pad_token_id": 1, "decoder_start_token_id": 0}
    torch.manual_seed(0)
    model = model_class(model_class.config_class(vocab_size=words, **{**ids, **KINDS[kind][0]})).eval()
    numbers = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.normal_(0, 0.3, generator=numbers)
    model.save_pretrained(folder)
    return folder


def handler_of(kind):
    return SummarizationHandler if kind.startswith("LongT5") else TextGenerationHandler


@pytest.fixture(scope="module", params=KINDS)
def served(request, tmp_path_factory):
    folder = save(tmp_path_factory.mktemp(request.param), request.param)
    return request.param, folder, load(handler_of(request.param), folder, warmup=False)


def alone(folder, handler, text):
    """The new tokens and the least relative gap between the two best scores of a step."""
    tokenizer, model = by_hand(folder)
    inputs = tokenizer(getattr(handler, "prefix", "") + text, return_tensors="pt", return_token_type_ids=False)
    settings = {"max_new_tokens": NEW, "do_sample": False, "num_beams": 1}
    made = model.generate(**inputs, **settings, output_logits=True, return_dict_in_generate=True)
    best = torch.stack(made.logits)[:, 0].topk(2, dim=-1).values
    start = 1 if model.config.is_encoder_decoder else inputs["input_ids"].shape[1]
    text = tokenizer.decode(made.sequences[0, start:], skip_special_tokens=True)
    return text, float(((best[:, 0] - best[:, 1]) / best[:, 0].abs()).min())


def texts_of(handler, texts):
    parameters = {"max_new_tokens": NEW, "do_sample": False, "num_beams": 1}
    if isinstance(handler, TextGenerationHandler):
        parameters |= {"return_full_text": False}
    answers = ask(handler, [{"inputs": text, "parameters": parameters} for text in texts])
    assert {status for status, _ in answers} == {200}
    return [body[0]["generated_text"] if isinstance(body, list) else body["summary_text"] for _, body in answers]


def test_texts_in_a_batch_are_those_of_generate_alone(served):
    _, folder, handler = served
    expected = [alone(folder, handler, text) for text in MIXED]
    assert len({text for text, _ in expected}) > 2
    for found, (text, gap) in zip(texts_of(handler, MIXED), expected, strict=True):
        assert found == text or gap < 1e-4


def test_the_fastest_mode_that_proves_itself_is_chosen_and_described(served):
    kind, _, handler = served
    described = handler.describe_handle()["batching"]
    assert described["mode"] == KINDS[kind][1], described
    assert 0 <= described["difference"] <= 3e-4
    assert described["mode"] == "bucketed" or "padding cannot be used" in described["reason"]


def test_a_mode_that_changes_the_texts_cannot_be_set(tmp_path):
    folder = save(tmp_path, "RwkvForCausalLM")
    with pytest.raises(SettingsError, match="bucketed cannot be used: its answers differ"):
        load(TextGenerationHandler, folder, batching={"mode": "bucketed"})
    assert load(TextGenerationHandler, folder, batching={"mode": "padded", "proof": "skip"}).choice.mode == "padded"


def test_a_prompt_of_one_token_does_not_continue_the_text_before(tmp_path):
    handler = load(TextGenerationHandler, save(tmp_path, "RecurrentGemmaForCausalLM"), warmup=False)
    if OLDER:
        pytest.skip("transformers 4.57 fails for a prompt of one token")
    first = texts_of(handler, ["x"])
    texts_of(handler, [TEXTS[4]])
    assert texts_of(handler, ["x"]) == first


def test_a_model_that_continues_a_text_differently_each_time_is_refused(tmp_path):
    class Random(TextGenerationHandler):
        def load_model(self):
            model = super().load_model()
            head = model.lm_head.forward
            model.lm_head.forward = lambda states: head(states) * (1 + torch.rand(()))
            return model

    with pytest.raises(LoadError, match="the same text alone differently the second time"):
        load(Random, save(tmp_path, "GPT2LMHeadModel"))


def test_prompts_of_equal_length_share_a_pass_whatever_the_length_of_their_texts(tmp_path, monkeypatch):
    folder = save(tmp_path, "GPT2LMHeadModel")
    handler = load(TextGenerationHandler, folder, batching={"mode": "equal"})
    passes, generate = [], handler.model.generate
    monkeypatch.setattr(
        handler.model, "generate", lambda **given: passes.append(len(given["input_ids"])) or generate(**given)
    )
    bodies = [{"inputs": text, "parameters": {"max_new_tokens": new}} for text in ("x", "ok " * 9) for new in (2, 3, 5)]
    assert {status for status, _ in ask(handler, bodies)} == {200}
    assert sorted(passes) == [3, 3]
    assert json.dumps(handler.describe_handle()["batching"])
