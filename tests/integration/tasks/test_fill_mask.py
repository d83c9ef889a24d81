"""Fill mask on tiny models, against transformers' pipeline on the same folder."""

from __future__ import annotations

import json
from functools import partial

import pytest

from tests.classifiers import ask, load, pipeline_of
from tests.tiny import save_encoder
from tests.tiny_text import MODES, draw_weights, save_bpe, save_model, save_wordpiece
from tests.varied import TEXTS, answers_in_batches
from tsbatch.errors import LoadError
from tsbatch.protocol.request import Request
from tsbatch.tasks.fill_mask import FillMaskHandler

LIMIT = 100
KINDS = {
    "Bert": (save_wordpiece, {}),
    "Roberta": (save_wordpiece, {}),
    "DistilBert": (partial(save_wordpiece, types=False), {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64}),
    "Electra": (save_wordpiece, {"embedding_size": 32}),
    "MobileBert": (save_wordpiece, {"embedding_size": 16, "intra_bottleneck_size": 16, "true_hidden_size": 16}),
}
SEEDS = {"Bert": 0, "Roberta": 2, "DistilBert": 4, "Electra": 0, "MobileBert": 4}
TRUNCATION = {"tokenizer_kwargs": {"truncation": True}}
WISHES = [
    {},
    {"top_k": 1},
    {"top_k": 20},
    {"targets": ["food", "london", "eating"]},
    {"targets": "the", "top_k": 3},
    {"targets": ["babbage machines", "ok", "ok", "the"], "top_k": 2},
]


def with_masks(text, count):
    """``text`` with ``count`` of its words masked, spread evenly; a short one gets the mask in front."""
    words = text.split(" ")
    if len(words) <= count:
        return " ".join(["[MASK]"] * count + words)
    for number in range(count):
        words[number * len(words) // (2 * count)] = "[MASK]"
    return " ".join(words)


INPUTS = [with_masks(text, 1 + (place % 4 == 3) + (place % 8 == 7)) for place, text in enumerate(TEXTS)]
BODIES = [
    {"inputs": text, "parameters": {**WISHES[(place + shift) % len(WISHES)], **TRUNCATION}}
    for shift in (0, 2)
    for place, text in enumerate(INPUTS)
]


def save(folder, kind="Bert", *, scale=50.0):
    tokenizer, sizes = KINDS[kind]
    model = save_model(folder, f"{kind}ForMaskedLM", tokenizer=partial(tokenizer, max_length=LIMIT), **sizes)
    draw_weights(model, SEEDS[kind], scale)
    model.save_pretrained(folder)
    return folder


def check(answer, expected):
    """The same words with scores within 1e-4, in the same order wherever the scores tell it."""
    if expected and isinstance(expected[0], list):
        assert len(answer) == len(expected)
        for one, other in zip(answer, expected, strict=True):
            check(one, other)
        return
    scores = [word["score"] for word in expected]
    assert [word["score"] for word in answer] == pytest.approx(scores, abs=1e-4)
    for place, (one, other) in enumerate(zip(answer, expected, strict=True)):
        near = [score for score in scores[max(0, place - 1) : place + 2] if abs(score - other["score"]) <= 2e-4]
        if len(near) == 1:
            assert {**one, "score": 0} == {**other, "score": 0}


def tell_apart(expected):
    """The two best words of every mask are apart, and not always the same."""
    masks = [mask for answer in expected for mask in (answer if isinstance(answer[0], list) else [answer])]
    assert min(mask[0]["score"] - mask[1]["score"] for mask in masks if len(mask) > 1) > 1e-2
    assert len({mask[0]["token"] for mask in masks}) > 3


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    made = {}

    def folder(kind):
        if kind not in made:
            path = save(tmp_path_factory.mktemp(kind), kind)
            pipe = pipeline_of("fill-mask", path)
            made[kind] = path, [pipe(body["inputs"], **body["parameters"]) for body in BODIES]
            tell_apart(
                [
                    answer
                    for answer, body in zip(made[kind][1], BODIES, strict=True)
                    if "targets" not in body["parameters"]
                ]
            )
        return made[kind]

    return folder


@pytest.mark.parametrize("kind", KINDS)
def test_as_the_pipeline_answers(folders, kind):
    folder, expected = folders(kind)
    handler = load(FillMaskHandler, folder)
    assert handler.head.sparse == (kind != "MobileBert")  # its head has no layer of its own to the vocabulary
    for place, answer in answers_in_batches(handler, BODIES, (1, 7, 32) if kind == "Bert" else (32,)):
        check(answer, expected[place])


@pytest.mark.parametrize("mode", MODES)
def test_however_features_share_a_pass(folders, mode):
    folder, expected = folders("Bert")
    handler = load(FillMaskHandler, folder, batching={"mode": mode})
    for place, answer in answers_in_batches(handler, BODIES, (32,)):
        check(answer, expected[place])


def test_more_masks_than_fit_into_memory_are_scored_in_portions(folders, monkeypatch):
    folder, expected = folders("Bert")
    handler = load(FillMaskHandler, folder, warmup=False)
    scored, logits = [], handler.head.logits
    monkeypatch.setattr(handler.head, "logits", lambda *given: scored.append(len(given[1][0])) or logits(*given))
    monkeypatch.setattr("tsbatch.tasks.fill_mask.CELLS", 5 * handler.model.config.vocab_size)
    for place, answer in answers_in_batches(handler, BODIES, (32,)):
        check(answer, expected[place])
    assert 1 < max(scored) <= 5
    assert len(scored) > len(BODIES) / 5


@pytest.mark.parametrize("engine", ["torchscript", "export"])
def test_other_engines(folders, engine):
    folder, expected = folders("Bert")
    handler = load(FillMaskHandler, folder, engine=engine)
    assert not handler.head.sparse
    for place, answer in answers_in_batches(handler, BODIES, (32,)):
        check(answer, expected[place])


# ---- inputs -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def handler(folders):
    return load(FillMaskHandler, folders("Bert")[0])


def test_every_shape_of_a_text(handler):
    text = "A man is [MASK] food."
    answers = ask(handler, [text, {"inputs": text}, {"text": text, "parameters": {}}, {"inputs": [text, text]}])
    assert [status for status, _ in answers] == [200] * 4
    assert answers[0] == answers[1] == answers[2]
    assert answers[3][1] == [answers[0][1]] * 2


def test_more_words_than_there_are(handler, folders):
    pipe = pipeline_of("fill-mask", folders("Bert")[0])
    words = pipe.model.config.vocab_size
    [(status, answer)] = ask(handler, [{"inputs": "a [MASK]", "parameters": {"top_k": 1000}}])
    assert status == 200
    assert len(answer) == words
    check(answer, pipe("a [MASK]", top_k=words))


@pytest.mark.parametrize(
    "body, status, part",
    [
        ("a text", 422, "the text has no mask"),
        ("", 422, "the text has no mask"),
        ("[MASK] " + "word " * 200, 422, f"over the model's {LIMIT}"),
        ({"inputs": "word " * 200 + "[MASK]", "parameters": TRUNCATION}, 422, f"no mask in its first {LIMIT} tokens"),
        ({"inputs": "[MASK] [MASK]", "parameters": {"top_k": 501}}, 422, "more than 1,000 filled texts"),
        ({"inputs": "[MASK]", "parameters": {"top_k": 0}}, 422, "parameters.top_k"),
        ({"inputs": "[MASK]", "parameters": {"topk": 1}}, 422, "did you mean 'top_k'"),
        ({"inputs": "[MASK]", "parameters": {"targets": ["\u200b", ""]}}, 422, "knows none of them"),
        ({"inputs": "[MASK]", "parameters": {"targets": []}}, 422, "knows none of them"),
        ({"inputs": "[MASK]", "parameters": {"targets": ["half \ud800"]}}, 422, "surrogate"),
        ({"inputs": "[MASK]", "parameters": {"targets": [5]}}, 422, "parameters.targets"),
        ({"inputs": "[MASK]", "parameters": {"targets": ["a"] * 1001}}, 422, "at most 1000 items"),
        ({"inputs": "[MASK]", "parameters": {"targets": "a" * 201}}, 422, "at most 200 characters"),
        ({"inputs": "[MASK]", "parameters": {"tokenizer_kwargs": {"padding": True}}}, 422, "tokenizer_kwargs.padding"),
    ],
)
def test_what_is_wrong_hurts_its_sender_alone(handler, body, status, part):
    answers = ask(handler, ["one [MASK]", body, "two [MASK]"])
    assert [code for code, _ in answers] == [200, status, 200], answers[1]
    assert part in answers[1][1]["error"]["message"]


def test_a_text_without_a_mask_is_told_what_one_looks_like(handler):
    [(_, answer)] = ask(handler, ["a text"])
    assert "[MASK]" in answer["error"]["expected"]


def test_requests_with_different_parameters_share_one_pass(handler):
    requests = [
        Request.of({"inputs": "a [MASK]", "parameters": wish}, index=place) for place, wish in enumerate(WISHES)
    ]
    record = handler.run_batch(requests, type("Nowhere", (), {"send": lambda *_: None})())
    assert (record.features, record.forward_passes) == (len(WISHES), 1)


# ---- loading ----------------------------------------------------------------------------------------------------


def test_a_tokenizer_without_a_mask_is_refused(tmp_path):
    save_model(tmp_path, "BertForMaskedLM", tokenizer=save_bpe)
    with pytest.raises(LoadError, match="the tokenizer has no mask token"):
        load(FillMaskHandler, tmp_path)


def test_a_folder_without_a_head_is_refused(tmp_path):
    save_encoder(tmp_path)
    with pytest.raises(LoadError, match=r"no weights for cls\.predictions"):
        load(FillMaskHandler, tmp_path)


def test_what_it_says_of_itself(handler):
    [reply] = handler.answer([Request.of(None, kind="describe")])
    told = json.loads(reply.body)
    assert (told["task"], set(told["parameters"])) == ("fill-mask", {"top_k", "targets", "tokenizer_kwargs"})
