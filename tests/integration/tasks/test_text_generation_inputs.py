"""Text generation: how long prompts and texts may be, chats, and what is refused."""

from __future__ import annotations

import json

import pytest

from tests.generators import NEW, ask, generated, load, new_texts, save_generator
from tests.generators import new_text_of as body
from tests.varied import TEXTS
from tsbatch.errors import LoadError
from tsbatch.protocol.request import Request
from tsbatch.tasks.text_generation import TextGenerationHandler

POSITIONS = 512
TEMPLATE = (
    "{% for message in messages %}{% if message.role == 'tool' %}{{ raise_exception('no tools here') }}{% endif %}"
    "<{{ message.role }}>{{ message.content }}{% if not loop.last or add_generation_prompt %}</s>{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gpt2")
    return save_generator(folder, "GPT2LMHeadModel", max_position_embeddings=POSITIONS)


@pytest.fixture(scope="module")
def handler(gpt2):
    return load(TextGenerationHandler, gpt2)


# ---- how long ----------------------------------------------------------------------------------------------------


def test_rows_near_the_last_position_do_not_share_with_those_that_go_far(tmp_path):
    folder = save_generator(tmp_path, "GPT2LMHeadModel", max_position_embeddings=40)
    handler = load(TextGenerationHandler, folder)
    long = " ".join(f"word{number}" for number in range(10, 24))
    count = len(handler.tokenizer(long)["input_ids"])
    assert 25 < count < 39
    bodies = [body(long, max_new_tokens=40 - count), body("ok", max_new_tokens=30), body("x", max_new_tokens=2)]
    made = new_texts(handler, bodies)
    for one, text in zip(bodies, made, strict=True):
        wish = {"max_new_tokens": one["parameters"]["max_new_tokens"], "do_sample": False}
        assert text == generated(folder, one["inputs"], **wish)[0]


def test_what_has_no_room_is_refused_and_says_what_there_is(tmp_path):
    folder = save_generator(tmp_path, "GPT2LMHeadModel", max_position_embeddings=40)
    handler = load(TextGenerationHandler, folder, handler={"max_new_tokens": 20})
    long = "word1 word2 " * 20
    answers = ask(
        handler,
        [
            body(long),
            body("ok", max_new_tokens=21),
            body("word1 " * 12, max_new_tokens=20),
            body("ok"),
        ],
    )
    assert [status for status, _ in answers] == [422, 422, 422, 200]
    parts = ["limit of 39", "over handler.max_new_tokens of this model, 20", "over the positions of the model"]
    for part, (_, answer) in zip(parts, answers, strict=False):
        assert part in answer["error"]["message"]


def test_hole_cuts_the_beginning_as_the_pipeline_does(gpt2, handler):
    from transformers import pipeline

    pipe = pipeline("text-generation", model=str(gpt2), device="cpu")
    limit = pipe.tokenizer.model_max_length
    assert limit < POSITIONS
    wish = {"max_new_tokens": 20, "handle_long_generation": "hole", "return_full_text": False}
    texts = [text for text in TEXTS if len(pipe.tokenizer(text)["input_ids"]) > limit - 20] + TEXTS[:2]
    assert len(texts) > 3
    expected = [
        pipe(text, do_sample=False, clean_up_tokenization_spaces=False, **wish)[0]["generated_text"] for text in texts
    ]
    assert new_texts(handler, [body(text, **wish) for text in texts]) == expected


def test_hole_without_a_number_leaves_half(tmp_path):
    folder = save_generator(tmp_path, "GPT2LMHeadModel", max_position_embeddings=40)
    handler = load(TextGenerationHandler, folder)
    ((status, answer),) = ask(handler, [body("word1 word2 " * 20, handle_long_generation="hole", details=True)])
    assert status == 200
    assert answer[0]["details"]["generated_tokens"] <= 20


def test_a_longest_input_can_be_set(gpt2):
    handler = load(TextGenerationHandler, gpt2, handler={"max_input_tokens": 10})
    answers = ask(handler, [body("word1 " * 12), body("ok", max_new_tokens=3)])
    assert [status for status, _ in answers] == [422, 200]


def test_an_empty_text_begins_as_in_the_pipeline(gpt2, handler):
    from transformers import pipeline

    pipe = pipeline("text-generation", model=str(gpt2), device="cpu")
    expected = pipe("", max_new_tokens=NEW, do_sample=False, clean_up_tokenization_spaces=False)
    answers = ask(handler, [{"inputs": [""], "parameters": {"max_new_tokens": NEW}}, body("ok", max_new_tokens=2)])
    assert answers[0] == (200, [expected])
    assert answers[1][0] == 200


def test_an_empty_text_for_a_model_without_a_beginning_is_refused(tmp_path):
    folder = save_generator(tmp_path, "GPT2LMHeadModel", generation={"bos_token_id": None})
    answers = ask(load(TextGenerationHandler, folder), [{"inputs": [""]}, body("ok", max_new_tokens=2)])
    assert [status for status, _ in answers] == [422, 200]
    assert "no token" in answers[0][1]["error"]["message"]


# ---- chats -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def chatting(tmp_path_factory):
    folder = tmp_path_factory.mktemp("chat")
    save_generator(folder, "LlamaForCausalLM", max_position_embeddings=POSITIONS)
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "chat_template": TEMPLATE}))
    return folder


CHATS = [
    [{"role": "user", "content": "Hello"}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "我来到北京"}],
    [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}, {"role": "user", "content": "z " * 30}],
    [{"role": "user", "content": "Count"}, {"role": "assistant", "content": "One, two"}],
]


@pytest.mark.parametrize("full", [True, False])
def test_chats_as_in_the_pipeline(chatting, full):
    from transformers import pipeline

    pipe = pipeline("text-generation", model=str(chatting), device="cpu")
    wish = {"max_new_tokens": NEW, "return_full_text": full}
    expected = [pipe(chat, do_sample=False, clean_up_tokenization_spaces=False, **wish) for chat in CHATS]
    handler = load(TextGenerationHandler, chatting)
    bare = [{"inputs": chat, "parameters": wish} for chat in CHATS]
    named = [{"messages": chat, "parameters": wish} for chat in CHATS]
    mixed = [*bare, *named, {"inputs": "a text", "parameters": wish}]
    made = [answer for _, answer in ask(handler, mixed)]
    assert made[:-1] == expected * 2
    ((_, several),) = ask(handler, [{"inputs": [{"messages": chat} for chat in CHATS], "parameters": wish}])
    assert several == expected


def test_a_chat_goes_without_a_template_nowhere(handler):
    answers = ask(handler, [{"messages": CHATS[0]}, {"inputs": CHATS[0]}, body("ok", max_new_tokens=2)])
    assert [status for status, _ in answers] == [422, 422, 200]
    assert "no chat template" in answers[0][1]["error"]["message"]


WRONG_CHATS = [
    {"messages": []},
    {"messages": "Hello"},
    {"messages": [{"role": "user"}]},
    {"messages": [{"role": "user", "content": 5}]},
    {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hello"}]}]},
    {"messages": [{"role": "tool", "content": "refused by the template"}]},
    {"messages": [{"role": "user", "content": "half \ud800"}]},
    {"inputs": [{"role": "user", "content": "Hello"}, "and a text"]},
    {"inputs": {"role": "user"}},
]


def test_what_is_no_chat_is_refused_beside_one_that_is(chatting):
    handler = load(TextGenerationHandler, chatting)
    bodies = [*WRONG_CHATS, {"messages": CHATS[0], "parameters": {"max_new_tokens": 2}}]
    replies = handler.answer([Request.of(one) for one in bodies])
    assert [reply.status for reply in replies] == [422] * len(WRONG_CHATS) + [200]


def test_a_long_chat_is_refused_by_its_characters(chatting):
    handler = load(TextGenerationHandler, chatting, limits={"characters": 50}, warmup=False)
    ((status, answer),) = ask(handler, [{"messages": [{"role": "user", "content": "x" * 30}] * 2}])
    assert status == 413
    assert "68 characters, over the limit of 50" in answer["error"]["message"]


# ---- the rest ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "parameters",
    [
        {"max_new_tokens": 0},
        {"no_such": 1},
        {"num_beams": 2, "top_p": 0.5},
        {"stop": "x", "stop_sequence": "y"},
        {"num_beams": 2, "stop_sequence": "y"},
        {"num_return_sequences": 2},
        {"max_length": 1},
    ],
)
def test_wishes_that_cannot_be_are_refused_and_others_answered(handler, parameters):
    answers = ask(handler, [body("ok ok ok", **parameters), body("ok", max_new_tokens=2)])
    assert [status for status, _ in answers] == [422, 200]


def test_describe(handler):
    told = handler.describe_handle()
    assert told["task"] == "text-generation"
    assert {"max_new_tokens", "seed", "stop", "return_full_text"} <= told["parameters"].keys()


def test_a_folder_without_a_decoder_is_one_line(tmp_path):
    save_generator(tmp_path, "T5ForConditionalGeneration")
    with pytest.raises(LoadError, match="the model cannot be loaded"):
        load(TextGenerationHandler, tmp_path)
