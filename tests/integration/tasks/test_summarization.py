"""Summarization on tiny encoder-decoders, against transformers' ``generate`` on the same folder, one text at a time."""

from __future__ import annotations

import pytest

from tests.generators import EOS, NEW, ask, generated, load, save_generator
from tests.varied import TEXTS, answers_in_batches
from tsbatch.errors import LoadError, SettingsError
from tsbatch.tasks.summarization import SummarizationHandler

POSITIONS = 512
KINDS = ["BartForConditionalGeneration", "T5ForConditionalGeneration"]
PREFIX = "summarize: "


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    made = {}

    def folder(kind):
        if kind not in made:
            about = {"max_position_embeddings": POSITIONS} if kind.startswith("Bart") else {}
            path = tmp_path_factory.mktemp(kind)
            made[kind] = save_generator(path, kind, **about)
        return made[kind]

    return folder


def body(text, **parameters):
    return {"inputs": text, "parameters": {"max_new_tokens": NEW, **parameters}}


def summaries(handler, bodies):
    answers = ask(handler, bodies)
    assert [status for status, _ in answers] == [200] * len(bodies), answers
    return [answer["summary_text"] for _, answer in answers]


@pytest.mark.parametrize("kind", KINDS)
def test_greedy_alone_and_in_batches(folders, kind):
    folder = folders(kind)
    expected = [generated(folder, text, max_new_tokens=NEW, num_beams=1, clean=False) for text in TEXTS]
    assert min(gap for _, gap in expected) > 1e-2
    assert len({text for text, _ in expected}) > len(TEXTS) // 2
    assert all(text for text, _ in expected)
    bodies = [body(text, num_beams=1) for text in TEXTS]
    for place, answer in answers_in_batches(load(SummarizationHandler, folder), bodies):
        assert answer == {"summary_text": expected[place][0]}


@pytest.mark.parametrize("mode", ["bucketed", "padded"])
def test_four_beams_where_nobody_says(folders, mode):
    folder = folders("BartForConditionalGeneration")
    expected = [generated(folder, text, max_new_tokens=NEW, num_beams=4, clean=False)[0] for text in TEXTS]
    handler = load(SummarizationHandler, folder, batching={"mode": mode})
    for place, answer in answers_in_batches(handler, [body(text) for text in TEXTS], (7, 32)):
        assert answer == {"summary_text": expected[place]}


def test_as_a_model_for_news_is_set(tmp_path):
    """All that BART's generation_config for news says."""
    own = {
        "early_stopping": True,
        "forced_bos_token_id": 5,
        "forced_eos_token_id": EOS,
        "length_penalty": 2.0,
        "max_length": 14,
        "min_length": 6,
        "no_repeat_ngram_size": 3,
        "num_beams": 4,
    }
    folder = save_generator(tmp_path, "BartForConditionalGeneration", max_position_embeddings=POSITIONS, generation=own)
    handler = load(SummarizationHandler, folder)
    texts = TEXTS[:16]
    expected = [generated(folder, text, clean=False)[0] for text in texts]
    assert summaries(handler, [{"inputs": text} for text in texts]) == expected
    wishes = [
        {"max_length": 9, "min_length": 2},
        {"num_beams": 1},
        {"length_penalty": 0.5},
        {"num_beams": 1, "max_length": 8},
    ]
    bodies = [{"inputs": text, "parameters": wishes[place % 4]} for place, text in enumerate(texts)]
    expected = [generated(folder, one["inputs"], clean=False, **one["parameters"])[0] for one in bodies]
    assert summaries(handler, bodies) == expected


def test_greedy_requests_of_all_lengths_share_one_generate(folders, monkeypatch):
    folder = folders("BartForConditionalGeneration")
    handler = load(SummarizationHandler, folder)
    passes, generate = [], handler.model.generate
    monkeypatch.setattr(
        handler.model, "generate", lambda **given: passes.append(len(given["input_ids"])) or generate(**given)
    )
    monkeypatch.setattr(handler.pass_cost, "fixed", 1e9)
    wishes = [
        {"max_length": 3},
        {"max_new_tokens": 20},
        {"max_new_tokens": 9, "min_length": 8},
        {"max_new_tokens": 9, "repetition_penalty": 1.5},
    ]
    bodies = [{"inputs": TEXTS[place], "parameters": {"num_beams": 1, **wishes[place % 4]}} for place in range(24)]
    made = summaries(handler, bodies)
    assert passes == [24]
    assert made == [generated(folder, one["inputs"], clean=False, **one["parameters"])[0] for one in bodies]


def test_a_seed_makes_the_same_summary_alone_and_in_a_batch(folders):
    handler = load(SummarizationHandler, folders("T5ForConditionalGeneration"))
    bodies = [body(text, seed=place % 3, top_p=0.95, temperature=3.0) for place, text in enumerate(TEXTS[:16])]
    assert summaries(handler, bodies) == [summaries(handler, [one])[0] for one in bodies]


def test_stop_is_cut_off_with_beams_too(folders):
    folder = folders("BartForConditionalGeneration")
    handler = load(SummarizationHandler, folder)
    for beams in (1, 3):
        whole = generated(folder, TEXTS[2], max_new_tokens=NEW, num_beams=beams, clean=False)[0]
        stop = whole[4:6]
        assert summaries(handler, [body(TEXTS[2], num_beams=beams, stop=[stop])]) == [whole[: whole.index(stop)]]


def test_the_prefix_that_config_json_names_for_the_task(tmp_path):
    about = {"summarization": {"prefix": PREFIX, "num_beams": 2, "max_length": 9, "min_length": 3}}
    folder = save_generator(tmp_path, "T5ForConditionalGeneration", task_specific_params=about)
    texts = TEXTS[:12]
    wish = {"num_beams": 2, "max_length": 9, "min_length": 3, "clean": False}
    expected = [generated(folder, text, prefix=PREFIX, **wish)[0] for text in texts]
    assert summaries(load(SummarizationHandler, folder), [{"inputs": text} for text in texts]) == expected
    own = load(SummarizationHandler, folder, handler={"prefix": "tl;dr "})
    expected = [generated(folder, text, prefix="tl;dr ", **wish)[0] for text in texts]
    assert summaries(own, [{"inputs": text} for text in texts]) == expected


def test_a_model_without_positions_takes_what_its_tokenizer_calls_too_long(folders):
    folder = folders("T5ForConditionalGeneration")
    handler = load(SummarizationHandler, folder)
    long = [text for text in TEXTS if len(handler.tokenizer(text)["input_ids"]) > handler.tokenizer.model_max_length]
    assert long
    expected = [generated(folder, text, max_new_tokens=NEW, num_beams=1, clean=False)[0] for text in long]
    assert summaries(handler, [body(text, num_beams=1) for text in long]) == expected
    cut = {"tokenizing": {"truncation": True}}
    expected = [generated(folder, text, max_new_tokens=NEW, num_beams=1, clean=False, **cut)[0] for text in long]
    assert summaries(handler, [body(text, num_beams=1, truncation=True) for text in long]) == expected


def test_a_text_over_the_models_positions_is_refused_or_cut(folders):
    folder = folders("BartForConditionalGeneration")
    handler = load(SummarizationHandler, folder)
    long = "word1 word2 " * 200
    answers = ask(
        handler, [body(long), body(long, truncation=True, num_beams=1), body("ok"), body("ok", max_new_tokens=512)]
    )
    assert [status for status, _ in answers] == [422, 200, 200, 422]
    assert f"over the model's {POSITIONS}" in answers[0][1]["error"]["message"]
    cut = {"tokenizing": {"truncation": True}}
    expected = generated(folder, long, max_new_tokens=NEW, num_beams=1, clean=False, **cut)[0]
    assert answers[1][1] == {"summary_text": expected}


def test_an_operators_limit_of_the_input(folders):
    handler = load(SummarizationHandler, folders("T5ForConditionalGeneration"), handler={"max_input_tokens": 20})
    assert [status for status, _ in ask(handler, [body("word1 word2 " * 20), body("ok")])] == [422, 200]


def test_an_empty_text_is_refused(folders):
    handler = load(SummarizationHandler, folders("T5ForConditionalGeneration"))
    answers = ask(handler, [{"inputs": [""]}, body("ok")])
    assert [status for status, _ in answers] == [422, 200]
    assert "no token" in answers[0][1]["error"]["message"]


def test_packing_cannot_be_asked_for(folders):
    with pytest.raises(SettingsError, match="in its own row"):
        load(SummarizationHandler, folders("T5ForConditionalGeneration"), batching={"mode": "packed"})


def test_a_decoder_alone_is_one_line(tmp_path):
    save_generator(tmp_path, "GPT2LMHeadModel")
    with pytest.raises(LoadError, match="the model cannot be loaded"):
        load(SummarizationHandler, tmp_path)


def test_describe(folders):
    told = load(SummarizationHandler, folders("T5ForConditionalGeneration")).describe_handle()
    assert told["task"] == "summarization"
    assert {"max_length", "truncation"} <= told["parameters"].keys()
