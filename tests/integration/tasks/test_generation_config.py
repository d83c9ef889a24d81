"""What generation_config.json says is obeyed as by ``generate`` of transformers, one text alone, or refused."""

from __future__ import annotations

import json

import pytest
import transformers

from tests.generators import EOS, NEW, ask, by_hand, generated, load, new_texts, save_generator
from tests.generators import new_text_of as body
from tests.varied import TEXTS
from tsbatch.errors import LoadError
from tsbatch.tasks.generation.generation_config import COMMON, PER_ROW, REFUSED, RESET, check_supported
from tsbatch.tasks.summarization import SummarizationHandler
from tsbatch.tasks.text_generation import TextGenerationHandler
from tsbatch.tasks.translation import TranslationHandler

DECODER, ENCODER_DECODER = "GPT2LMHeadModel", "T5ForConditionalGeneration"
TASKS = {DECODER: TextGenerationHandler, ENCODER_DECODER: SummarizationHandler}
SOME = [*TEXTS[:6], TEXTS[36], "x", "ok", "ok"]
PLAIN = {"max_new_tokens": NEW, "do_sample": False, "num_beams": 1}


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A folder a kind without own settings, and what it writes."""
    made = {}
    for kind in TASKS:
        folder = save_generator(tmp_path_factory.mktemp("plain"), kind, generation=PLAIN)
        made[kind] = folder, alone(folder)
    return made


def alone(folder, **settings):
    return [generated(folder, text, **settings)[0] for text in SOME]


def together(handler, **parameters):
    if isinstance(handler, TextGenerationHandler):
        return new_texts(handler, [body(text, **parameters) for text in SOME])
    answers = ask(handler, [{"inputs": text, "parameters": parameters} for text in SOME])
    return [answer["summary_text"] for _, answer in answers]


def with_settings(folder, tmp_path, **own):
    """The same model with further settings in its generation_config.json."""
    for path in folder.iterdir():
        (tmp_path / path.name).symlink_to(path)
    path = tmp_path / "generation_config.json"
    saved = json.loads(path.read_text())
    path.unlink()
    path.write_text(json.dumps({**saved, **own}))
    return tmp_path


def often(folder):
    """The new tokens that occur most."""
    tokenizer, model = by_hand(folder)
    ids = []
    for text in SOME:
        inputs = tokenizer(text, return_tensors="pt", return_token_type_ids=False)
        ids += model.generate(**inputs, **PLAIN, pad_token_id=0)[0, -NEW:].tolist()
    return sorted(set(ids) - {0, EOS}, key=ids.count, reverse=True)[:6]


OBEYED = {
    "bad_words_ids": lambda ids: [[ids[0]], [ids[2], ids[1]], [0, ids[3]]],
    "suppress_tokens": lambda ids: ids[:3],
    "begin_suppress_tokens": lambda ids: ids,
    "sequence_bias": lambda ids: [[[ids[0]], -300.0], [[ids[1], ids[2]], 100.0]],
    "encoder_repetition_penalty": lambda _: 3.0,
    "encoder_no_repeat_ngram_size": lambda _: 1,
    "no_repeat_ngram_size": lambda _: 1,
    "repetition_penalty": lambda _: 3.0,
    "forced_bos_token_id": lambda ids: ids[3],
    "forced_eos_token_id": lambda ids: [ids[4]],
    "min_new_tokens": lambda _: 5,
    "renormalize_logits": lambda _: True,
    "stop_strings": lambda _: ["e", "o", "1"],
}


LIKE_A_DECODER = ("renormalize_logits", "min_new_tokens", "suppress_tokens", "sequence_bias", "repetition_penalty")
UNSEEN = {
    DECODER: ("renormalize_logits", "min_new_tokens"),
    ENCODER_DECODER: ("renormalize_logits", "min_new_tokens"),
}
"""Settings that change nothing here."""


@pytest.mark.parametrize(
    "kind, name, beams",
    [(DECODER, name, 1) for name in OBEYED]
    + [(ENCODER_DECODER, name, 1) for name in OBEYED if name not in LIKE_A_DECODER]
    + [(DECODER, name, 2) for name in ("no_repeat_ngram_size", "stop_strings", "bad_words_ids")],
)
def test_settings_of_the_model_are_obeyed(plain, tmp_path, kind, name, beams):
    folder, usual = plain[kind]
    if name == "stop_strings" and kind == ENCODER_DECODER and transformers.__version__.startswith("4."):
        pytest.skip("generate of transformers 4.57 fails")
    own = {name: OBEYED[name](often(folder)), "num_beams": beams}
    folder = with_settings(folder, tmp_path, **own)
    settings = {"tokenizer": by_hand(folder)[0]} if name == "stop_strings" else {}
    expected = alone(folder, **settings)
    assert beams > 1 or name in UNSEEN[kind] or expected != usual
    assert together(load(TASKS[kind], folder, warmup=False), num_beams=beams) == expected


@pytest.mark.parametrize("kind", TASKS)
def test_settings_that_do_not_change_the_text_are_ignored(plain, tmp_path, kind):
    folder, usual = plain[kind]
    numbers = {"assistant_early_exit": 1, "prompt_lookup_num_tokens": 2, "max_matching_ngram_size": 2}
    own = {name: numbers.get(name, True) for name in RESET if name != "speculation_type"}
    assert together(load(TASKS[kind], with_settings(folder, tmp_path, **own), warmup=False)) == usual


VALUES = {
    "guidance_scale": 1.5,
    "num_beam_groups": 2,
    "num_return_sequences": 2,
    "penalty_alpha": 0.6,
    "top_h": 0.5,
    "watermarking_config": {"greenlist_ratio": 0.2},
}


@pytest.mark.parametrize("name", REFUSED)
def test_settings_that_would_be_ignored_are_refused(name):
    with pytest.raises(LoadError, match=f"^generation_config.json: {name}: .* is not supported"):
        check_supported({name: VALUES.get(name, 0.4)})


@pytest.mark.parametrize("name", ["guidance_scale", "watermarking_config"])
def test_they_are_refused_before_the_worker_is_ready(plain, tmp_path, name):
    folder = with_settings(plain[DECODER][0], tmp_path, **{name: VALUES[name]})
    with pytest.raises(LoadError, match=f"^generation_config.json: {name}: .* is not supported"):
        load(TextGenerationHandler, folder)


@pytest.mark.parametrize("value", [[], None, False, 1])
def test_values_that_ask_for_nothing_are_accepted(plain, value):
    names = [name for name, neutral in REFUSED.items() if value is None or value in neutral]
    check_supported(dict.fromkeys(names, value))
    assert names


def test_a_setting_of_one_language_pair_alone_is_refused(tmp_path):
    pair = {"translation_en_to_de": {"prefix": "to German: ", "bad_words_ids": [[5]]}}
    folder = save_generator(tmp_path, ENCODER_DECODER, task_specific_params=pair)
    with pytest.raises(LoadError, match=r"config.json: task_specific_params: bad_words_ids"):
        load(TranslationHandler, folder)


def test_settings_of_the_task_are_obeyed(plain, tmp_path):
    ids = often(plain[ENCODER_DECODER][0])
    own = {"summarization": {"suppress_tokens": ids[:3], "max_new_tokens": NEW, "num_beams": 1}}
    folder = save_generator(tmp_path, ENCODER_DECODER, task_specific_params=own)
    assert together(load(SummarizationHandler, folder, warmup=False)) == alone(
        folder, suppress_tokens=ids[:3], max_new_tokens=NEW
    )


def test_every_setting_of_transformers_is_known():
    ids = {"bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id"}
    known = {*PER_ROW, *RESET, *COMMON, *REFUSED, *ids, *FOR_SPEED}
    fields = {name for name in vars(transformers.GenerationConfig()) if not name.startswith("_")}
    assert fields - known - {"transformers_version"} == set()


FOR_SPEED = {
    "assistant_confidence_threshold",
    "assistant_ensemble_weight",
    "assistant_lookbehind",
    "cache_config",
    "cache_implementation",
    "compile_config",
    "continuous_batching_config",
    "disable_compile",
    "max_cache_len",
    "num_assistant_tokens",
    "num_assistant_tokens_schedule",
    "prefill_chunk_size",
    "return_legacy_cache",
    "target_lookbehind",
    "use_cache",
}
"""How fast it runs, and in how much memory; some matter only for an assistant model, which none has."""
