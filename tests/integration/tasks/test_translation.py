"""Translation on tiny encoder-decoders, against ``generate`` of transformers on the same folder, one text at a time."""

from __future__ import annotations

import itertools

import pytest

from tests.generators import LANGUAGES, NEW, ask, by_hand, generated, load, save_generator, save_nllb
from tests.varied import TEXTS, answers_in_batches
from tsbatch.errors import SettingsError
from tsbatch.tasks.translation import TranslationHandler

PAIRS = [(source, target) for source, target in itertools.permutations(LANGUAGES, 2)]
NLLB = {"pad_token_id": 1, "eos_token_id": 2, "bos_token_id": 0, "decoder_start_token_id": 2}
PREFIXES = {
    "translation_en_to_de": {"prefix": "translate English to German: ", "num_beams": 1, "max_length": 10},
    "translation_en_to_fr": {"prefix": "translate English to French: ", "num_beams": 2, "max_length": 8},
    "summarization": {"prefix": "summarize: "},
}


@pytest.fixture(scope="module")
def nllb(tmp_path_factory):
    folder = tmp_path_factory.mktemp("nllb")
    return save_generator(
        folder,
        "M2M100ForConditionalGeneration",
        tokenizer=save_nllb,
        scale=12.0,
        seed=1,
        max_position_embeddings=512,
        **NLLB,
    )


@pytest.fixture(scope="module")
def t5(tmp_path_factory):
    folder = tmp_path_factory.mktemp("t5")
    return save_generator(folder, "T5ForConditionalGeneration", task_specific_params=PREFIXES)


@pytest.fixture(scope="module")
def marian(tmp_path_factory):
    return save_generator(tmp_path_factory.mktemp("marian"), "MarianMTModel", max_position_embeddings=512)


def by_nllb(folder, text, source, target, **settings):
    tokenizer, _ = by_hand(folder)
    tokenizer.src_lang = source
    first = tokenizer.convert_tokens_to_ids(target)
    return generated(folder, text, forced_bos_token_id=first, clean=False, **settings)


def body(text, source=None, target=None, **parameters):
    languages = {"src_lang": source, "tgt_lang": target} if source else {}
    return {"inputs": text, "parameters": {"max_new_tokens": NEW, **languages, **parameters}}


def translations(handler, bodies):
    answers = ask(handler, bodies)
    assert [status for status, _ in answers] == [200] * len(bodies), answers
    return [answer["translation_text"] for _, answer in answers]


@pytest.mark.parametrize("beams", [1, 4])
def test_many_languages_in_one_batch(nllb, beams):
    wishes = [(text, *PAIRS[place % len(PAIRS)]) for place, text in enumerate(TEXTS)]
    expected = [by_nllb(nllb, *wish, max_new_tokens=NEW, num_beams=beams) for wish in wishes]
    if beams == 1:
        assert min(gap for _, gap in expected) > 1e-2
    assert len({text for text, _ in expected}) > len(TEXTS) // 2
    bodies = [body(*wish, num_beams=beams) for wish in wishes]
    for place, answer in answers_in_batches(load(TranslationHandler, nllb), bodies):
        assert answer == {"translation_text": expected[place][0]}


def test_the_language_makes_a_difference(nllb):
    handler = load(TranslationHandler, nllb)
    into = [[body(text, "eng_Latn", target, num_beams=1) for target in LANGUAGES[1:]] for text in TEXTS]
    out_of = [[body(text, source, "eng_Latn", num_beams=1) for source in LANGUAGES[1:]] for text in TEXTS]
    for kind in (into, out_of):
        made = iter(translations(handler, [one for bodies in kind for one in bodies]))
        assert sum(len({next(made) for _ in bodies}) > 1 for bodies in kind) > len(TEXTS) // 4


def test_languages_share_one_generate(nllb, monkeypatch):
    handler = load(TranslationHandler, nllb)
    passes, generate = [], handler.model.generate
    monkeypatch.setattr(
        handler.model, "generate", lambda **given: passes.append(len(given["input_ids"])) or generate(**given)
    )
    monkeypatch.setattr(handler.pass_cost, "fixed", 1e9)
    translations(handler, [body(text, *pair) for text, pair in zip(TEXTS, PAIRS, strict=False)])
    assert passes == [len(PAIRS)]


def test_languages_of_the_settings_hold_where_the_request_has_none(nllb):
    handler = load(TranslationHandler, nllb, handler={"src_lang": "eng_Latn", "tgt_lang": "fra_Latn"})
    made = translations(handler, [body(TEXTS[0]), body(TEXTS[0], tgt_lang="deu_Latn")])
    targets = ("fra_Latn", "deu_Latn")
    assert made == [
        by_nllb(nllb, TEXTS[0], "eng_Latn", target, max_new_tokens=NEW, num_beams=4)[0] for target in targets
    ]


def test_a_language_that_is_missing_or_not_there_is_refused(nllb):
    handler = load(TranslationHandler, nllb)
    bodies = [
        body("ok"),
        body("ok", "eng_Latn", "xxx_Xxxx"),
        body("ok", "English", "fra_Latn"),
        body("ok", "eng_Latn", None),
        body("ok", "eng_Latn", "fra_Latn"),
    ]
    answers = ask(handler, bodies)
    assert [status for status, _ in answers] == [422, 422, 422, 422, 200]
    assert "tgt_lang: is required" in answers[0][1]["error"]["message"]
    assert "this model does not know 'xxx_Xxxx'" in answers[1][1]["error"]["message"]
    assert answers[2][1]["error"]["expected"] == f"one of {', '.join(sorted(LANGUAGES))}"


def test_a_language_of_the_settings_that_is_not_there_is_one_line(nllb):
    with pytest.raises(SettingsError, match="this model does not know 'xx'"):
        load(TranslationHandler, nllb, handler={"src_lang": "xx", "tgt_lang": "fra_Latn"})


def test_prefixes_of_config_json_for_each_pair(t5):
    handler = load(TranslationHandler, t5)
    made = translations(
        handler,
        [
            {"inputs": text, "parameters": {"src_lang": "en", "tgt_lang": target}}
            for text, target in zip(TEXTS[:20], itertools.cycle(["de", "fr"]))
        ],
    )
    for text, target, translation in zip(TEXTS[:20], itertools.cycle(["de", "fr"]), made, strict=False):
        about = dict(PREFIXES[f"translation_en_to_{target}"])
        assert translation == generated(t5, text, clean=False, **about)[0]
    ((status, answer),) = ask(handler, [body("ok", "de", "en")])
    assert status == 422
    assert answer["error"]["expected"] == "one of en to de, en to fr"


def test_a_model_of_two_languages_takes_no_codes(marian):
    expected = [generated(marian, text, max_new_tokens=NEW, num_beams=1, clean=False) for text in TEXTS]
    assert min(gap for _, gap in expected) > 1e-2
    handler = load(TranslationHandler, marian)
    for place, answer in answers_in_batches(handler, [body(text, num_beams=1) for text in TEXTS], (7, 32)):
        assert answer == {"translation_text": expected[place][0]}
    ((status, answer),) = ask(handler, [body("ok", "en", "de")])
    assert status == 422
    assert "only one language pair" in answer["error"]["message"]


def test_describe_names_the_languages(nllb, t5):
    assert load(TranslationHandler, nllb).describe_handle()["languages"] == sorted(LANGUAGES)
    assert load(TranslationHandler, t5).describe_handle()["pairs"] == ["en to de", "en to fr"]
