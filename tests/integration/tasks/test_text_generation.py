"""Text generation on tiny decoders, against transformers' pipeline and ``generate`` on the same folder."""

from __future__ import annotations

import pytest

from tests.generators import NEW, ask, by_hand, generated, load, new_texts, save_generator
from tests.generators import new_text_of as body
from tests.varied import TEXTS, answers_in_batches
from tsbatch.errors import SettingsError
from tsbatch.tasks.text_generation import TextGenerationHandler

POSITIONS = 512
"""Of the models: the longest of TEXTS has 170 tokens."""
KINDS = {
    "GPT2LMHeadModel": (1, 7, 32),  # learned positions
    "LlamaForCausalLM": (1, 7, 32),  # rotary ones
    "BloomForCausalLM": (7, 32),  # ALiBi
    "OPTForCausalLM": (7, 32),  # learned ones, counted from the attention mask
}
"""Sizes of the batches, by model."""
GREEDY = [{"inputs": text, "parameters": {"max_new_tokens": NEW}} for text in TEXTS]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A folder a kind, and the pipeline's answers to TEXTS."""
    from transformers import pipeline

    made = {}

    def folder(kind):
        if kind not in made:
            path = tmp_path_factory.mktemp(kind)
            about = {"max_position_embeddings": POSITIONS} if kind != "BloomForCausalLM" else {}
            save_generator(path, kind, **about)
            pipe = pipeline("text-generation", model=str(path), device="cpu")
            wish = {"max_new_tokens": NEW, "do_sample": False, "clean_up_tokenization_spaces": False}
            made[kind] = path, [pipe(text, **wish) for text in TEXTS]
        return made[kind]

    return folder


@pytest.fixture(scope="module")
def gpt2(folders):
    return folders("GPT2LMHeadModel")[0]


@pytest.fixture(scope="module")
def handler(gpt2):
    return load(TextGenerationHandler, gpt2)


@pytest.mark.parametrize("kind", KINDS)
def test_as_the_pipeline_alone_and_in_batches(folders, kind):
    folder, expected = folders(kind)
    tell_apart(folder, expected)
    for place, answer in answers_in_batches(load(TextGenerationHandler, folder), GREEDY, KINDS[kind]):
        assert answer == expected[place]


def tell_apart(folder, expected):
    """The texts differ, and no two best scores are so close that rounding could swap them."""
    news = [answer[0]["generated_text"].removeprefix(text) for answer, text in zip(expected, TEXTS, strict=True)]
    assert len(set(news)) > len(TEXTS) // 2
    assert all(news)
    made = [generated(folder, text, max_new_tokens=NEW, do_sample=False) for text in TEXTS]
    assert min(gap for _, gap in made) > 1e-2


@pytest.mark.parametrize("mode", ["bucketed", "padded"])
def test_however_prompts_share_a_pass(folders, mode):
    folder, expected = folders("GPT2LMHeadModel")
    for place, answer in answers_in_batches(
        load(TextGenerationHandler, folder, batching={"mode": mode}), GREEDY, (32,)
    ):
        assert answer == expected[place]


def test_packing_cannot_be_asked_for(gpt2):
    with pytest.raises(SettingsError, match="in its own row"):
        load(TextGenerationHandler, gpt2, batching={"mode": "packed"})


# ---- parameters ------------------------------------------------------------------------------------------------


def test_greedy_texts_of_all_lengths_share_one_generate(handler, gpt2, monkeypatch):
    passes = counted(handler, monkeypatch)
    wishes = [
        {"max_new_tokens": 1},
        {"max_new_tokens": 9},
        {"max_new_tokens": 30},
        {"max_new_tokens": 9, "min_new_tokens": 9},
        {"max_new_tokens": 9, "repetition_penalty": 1.7},
    ]
    bodies = [body(TEXTS[place % 40], **wish) for place, wish in enumerate(wishes * 4)]
    made = new_texts(handler, bodies)
    assert passes == [len(bodies)]
    for one, text in zip(bodies, made, strict=True):
        wish = {key: value for key, value in one["parameters"].items() if key != "return_full_text"}
        assert text == generated(gpt2, one["inputs"], do_sample=False, **wish)[0], one


def counted(handler, monkeypatch):
    """Rows of each generate from now on."""
    passes, generate = [], handler.model.generate
    monkeypatch.setattr(
        handler.model, "generate", lambda **given: passes.append(len(given["input_ids"])) or generate(**given)
    )
    monkeypatch.setattr(handler.pass_cost, "fixed", 1e9)  # so that the planner cuts nothing
    return passes


def test_beams_are_those_of_transformers_and_share_with_their_like(handler, gpt2, monkeypatch):
    passes = counted(handler, monkeypatch)
    wishes = [
        {"num_beams": 3},
        {"num_beams": 3, "length_penalty": 2.0},
        {"num_beams": 2, "early_stopping": True},
        {"num_beams": 3, "repetition_penalty": 1.5},
        {"num_beams": 1, "no_repeat_ngram_size": 2},
        {},
    ]
    bodies = [body(TEXTS[place % 12], max_new_tokens=NEW, **wish) for place, wish in enumerate(wishes * 2)]
    made = new_texts(handler, bodies)
    assert sorted(passes) == [2, 2, 2, 2, 4]
    for one, text in zip(bodies, made, strict=True):
        wish = {key: value for key, value in one["parameters"].items() if key != "return_full_text"}
        assert text == generated(gpt2, one["inputs"], do_sample=False, **wish)[0], one


def test_a_seed_makes_the_same_text_alone_and_in_any_batch(handler):
    bodies = [
        body(TEXTS[place % 20], seed=place % 3, max_new_tokens=4 + place % 9, **wish)
        for place, wish in enumerate(
            [{"do_sample": True}, {"temperature": 2.0, "top_k": 0}, {"top_p": 0.9}, {}, {"min_p": 0.01, "top_k": 7}] * 8
        )
    ]
    alone = [new_texts(handler, [one])[0] for one in bodies]
    for size in (7, 40):
        for start in range(0, len(bodies), size):
            part = bodies[start : start + size]
            assert new_texts(handler, part) == alone[start : start + size]


def test_seeds_differ_and_a_missing_one_is_drawn(handler):
    wish = {"temperature": 100.0, "top_k": 0, "max_new_tokens": 8}
    assert len(set(new_texts(handler, [body("ok", seed=seed, **wish) for seed in range(8)]))) == 8
    assert len(set(new_texts(handler, [body("ok", **wish) for _ in range(8)]))) == 8
    assert len(set(new_texts(handler, [body("ok", seed=5, **wish) for _ in range(8)]))) == 1


def test_a_drawn_seed_is_told_and_makes_the_text_again(handler):
    wish = {"temperature": 50.0, "top_k": 0, "max_new_tokens": 8, "details": True}
    ((_, first),) = ask(handler, [body("ok", **wish)])
    details = first[0]["details"]
    assert details["finish_reason"] in {"length", "eos_token"}
    ((_, second),) = ask(handler, [body("ok", seed=details["seed"], **wish)])
    assert second == first


def test_several_texts_of_one_request(handler):
    wish = {"temperature": 100.0, "top_k": 0, "max_new_tokens": 8, "seed": 3}
    ((_, four), (_, one), (_, two)) = ask(
        handler,
        [body("ok", num_return_sequences=4, **wish), body("ok", **wish), body("ok", num_return_sequences=2, **wish)],
    )
    assert len({record["generated_text"] for record in four}) == 4
    assert four[:1] == one
    assert four[:2] == two
    ((status, answer),) = ask(handler, [body("ok", num_return_sequences=2)])
    assert status == 422
    assert "greedy decoding always gives the same text" in answer["error"]["message"]


def test_stop_strings_are_cut_off_and_stop_sequences_stay(handler, gpt2):
    whole = {text: generated(gpt2, text, max_new_tokens=NEW, do_sample=False)[0] for text in TEXTS[:20]}
    cases = [(text, new, new[len(new) // 2 : len(new) // 2 + 2]) for text, new in whole.items() if len(new) > 4]
    cases = [case for case in cases if "\ufffd" not in case[2]]
    assert len(cases) > 10
    bodies = [body(text, max_new_tokens=NEW, stop=["never there", stop]) for text, _, stop in cases]
    for made, (_, new, stop) in zip(new_texts(handler, bodies), cases, strict=True):
        assert made == new[: new.index(stop)]
    bodies = [body(text, max_new_tokens=NEW, stop_sequence=stop) for text, _, stop in cases]
    for made, (text, new, stop) in zip(new_texts(handler, bodies), cases, strict=True):
        assert new.startswith(made)
        assert stop in made
        assert stop not in made[: -len(stop) - 1] or text


def test_stop_sequence_as_in_transformers(handler, gpt2):
    """As in the pipeline of transformers 5; that of 4.57 stops at the first token of a stop sequence."""
    tokenizer, _ = by_hand(gpt2)
    stops = ["a", "e", "on", "word", "ing"]
    found = 0
    for text in TEXTS[:12]:
        wish = {"max_new_tokens": NEW, "do_sample": False, "tokenizer": tokenizer}
        expected = [generated(gpt2, text, stop_strings=[stop], **wish)[0] for stop in stops]
        found += sum(stop in new for stop, new in zip(stops, expected, strict=True))
        assert new_texts(handler, [body(text, max_new_tokens=NEW, stop_sequence=stop) for stop in stops]) == expected
    assert found > 10


def test_a_text_that_stops_early_is_done_before_the_longest_it_may_have(handler, gpt2, monkeypatch):
    text = TEXTS[0]
    new = generated(gpt2, text, max_new_tokens=NEW, do_sample=False)[0]
    ((_, answer),) = ask(handler, [body(text, max_new_tokens=400, stop_sequence=new[:3], details=True)])
    assert answer[0]["details"]["finish_reason"] == "stop_sequence"
    assert answer[0]["details"]["generated_tokens"] <= 3


def test_the_end_token_is_a_reason_too(tmp_path, folders):
    folder, _ = folders("GPT2LMHeadModel")
    text = TEXTS[0]
    first = generated(folder, text, max_new_tokens=5, do_sample=False)[0]
    assert first
    handler = load(TextGenerationHandler, folder)
    ids = handler.tokenizer(first, add_special_tokens=False)["input_ids"]
    handler.ends.append(ids[0])
    handler.neutral.eos_token_id = handler.ends
    ((_, answer),) = ask(handler, [body(text, max_new_tokens=5, details=True)])
    assert answer[0]["details"] == {"finish_reason": "eos_token", "generated_tokens": 1, "seed": None}


# ---- the model's own settings ----------------------------------------------------------------------------------


def test_what_generation_config_says_holds_where_the_request_says_nothing(tmp_path):
    own = {"max_new_tokens": 9, "repetition_penalty": 1.8, "num_beams": 2, "no_repeat_ngram_size": 2}
    folder = save_generator(tmp_path, "GPT2LMHeadModel", generation=own)
    handler = load(TextGenerationHandler, folder)
    texts = TEXTS[:8]
    assert new_texts(handler, [body(text) for text in texts]) == [generated(folder, text)[0] for text in texts]
    for wish in ({"num_beams": 1}, {"max_new_tokens": 4}, {"repetition_penalty": 1.0, "no_repeat_ngram_size": 0}):
        made = new_texts(handler, [body(text, **wish) for text in texts])
        assert made == [generated(folder, text, **wish)[0] for text in texts], wish


def test_a_model_that_samples_by_itself_can_be_asked_not_to(tmp_path):
    own = {"do_sample": True, "temperature": 30.0, "top_k": 0, "max_new_tokens": 9}
    folder = save_generator(tmp_path, "GPT2LMHeadModel", generation=own)
    handler = load(TextGenerationHandler, folder)
    assert len(set(new_texts(handler, [body("ok") for _ in range(6)]))) > 1
    expected = generated(folder, "ok", do_sample=False, temperature=1.0, top_k=50)[0]
    assert new_texts(handler, [body("ok", do_sample=False)]) == [expected]
