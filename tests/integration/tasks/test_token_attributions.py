"""Explanations of texts: the axiom of completeness, and the integral computed by hand."""

from __future__ import annotations

import json
import sys

import pytest
import torch

from tests.classifiers import ask, load, modes, save_classifier
from tests.varied import TEXTS
from tsbatch.protocol.request import Request
from tsbatch.tasks.text_classification import TextClassificationHandler

LABELS = ("bad", "so-so", "good")
SOME = [TEXTS[place] for place in (0, 6, 13, 17, 22, 25, 31, 36)]
SCALE = 3.0
"""A model as mild as a trained one: its gradients change slowly, so that fifty steps are enough."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    made = {}

    def folder(kind):
        if kind not in made:
            made[kind] = save_classifier(tmp_path_factory.mktemp(kind), kind, labels=LABELS, scale=SCALE, spread=1.0)
        return made[kind]

    return folder


@pytest.fixture(scope="module")
def bert(folders):
    return load(TextClassificationHandler, folders("Bert"))


def explain(handler, bodies):
    answers = ask(handler, bodies, kind="explain")
    assert [status for status, _ in answers] == [200] * len(bodies), answers
    return [body for _, body in answers]


def by_hand(folder, text, pair, label, steps=200):
    """A Riemann sum, middle points, of the label's logit over embeddings; of one text, by transformers alone."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    encoded = tokenizer(text, pair, return_special_tokens_mask=True, return_tensors="pt")
    special = encoded.pop("special_tokens_mask").bool()
    ids = encoded.pop("input_ids")
    table = model.get_input_embeddings()
    end = table(ids).detach()
    start = table(torch.where(special, ids, tokenizer.pad_token_id)).detach()
    ways = (torch.arange(steps) + 0.5)[:, None, None] / steps
    points = (start + ways * (end - start)).requires_grad_()
    rest = {name: tensor.expand(steps, -1) for name, tensor in encoded.items()}
    model(inputs_embeds=points, **rest).logits[:, LABELS.index(label)].sum().backward()
    attributions = (points.grad.mean(0) * (end - start)[0]).sum(-1)
    with torch.no_grad():
        ends = [model(inputs_embeds=place, **encoded).logits[0, LABELS.index(label)].item() for place in (end, start)]
    return attributions[~special[0]].tolist(), *ends


@pytest.mark.parametrize("kind", ["Bert", "Roberta", "DistilBert"])
def test_as_the_integral_by_hand(folders, kind):
    folder = folders(kind)
    texts = [(text, None) for text in SOME[:4]] + [(SOME[0], SOME[4]), ("🙂 emoji", "今日は good")]
    bodies = [text if pair is None else {"text": text, "text_pair": pair} for text, pair in texts]
    told = explain(load(TextClassificationHandler, folder), bodies)
    for (text, pair), answer in zip(texts, told, strict=True):
        attributions, logit, baseline = by_hand(folder, text, pair, answer["label"])
        assert answer["logit"] == pytest.approx(logit, abs=5e-4)
        assert answer["baseline"] == pytest.approx(baseline, abs=5e-4)
        assert [token["attribution"] for token in answer["tokens"]] == pytest.approx(attributions, abs=5e-3), text
        assert max(map(abs, attributions)) > 0.05, "something to tell apart"


@pytest.mark.parametrize("kind", ["Bert", "GPT2"])
def test_attributions_add_up_to_what_the_text_changed(folders, kind):
    bodies = [{"inputs": text, "parameters": {"n_steps": 30}} for text in SOME]
    for answer in explain(load(TextClassificationHandler, folders(kind)), bodies):
        total = sum(token["attribution"] for token in answer["tokens"])
        assert total == pytest.approx(answer["logit"] - answer["baseline"] + answer["delta"], abs=1e-4)
        assert abs(answer["delta"]) < 1e-2
        assert abs(answer["logit"] - answer["baseline"]) > 1e-2


def test_more_steps_come_closer(bert):
    bodies = [{"inputs": SOME[1], "parameters": {"n_steps": steps}} for steps in (1, 5, 50)]
    coarse, some, fine = (abs(answer["delta"]) for answer in explain(bert, bodies))
    assert coarse > 10 * fine
    assert some > fine


def test_the_label_is_the_best_or_the_one_that_was_asked_for(bert):
    [best] = explain(bert, [SOME[0]])
    [(_, predicted)] = ask(bert, [{"inputs": SOME[0], "parameters": {"top_k": None, "function_to_apply": "none"}}])
    assert (best["label"], best["logit"]) == (predicted[0]["label"], pytest.approx(predicted[0]["score"], abs=1e-4))
    asked = explain(bert, [{"inputs": SOME[0], "parameters": {"target": label}} for label in LABELS])
    logits = {entry["label"]: entry["score"] for entry in predicted}
    assert {answer["label"]: answer["logit"] for answer in asked} == pytest.approx(logits, abs=1e-4)


def test_tokens_name_their_characters(bert):
    text, pair = "Grüße aus Köln 🙂", "A man!"
    [answer] = explain(bert, [{"text": text, "text_pair": pair}])
    of = {"text": text, "text_pair": pair}
    pieces = [(token["part"], of[token["part"]][token["start"] : token["end"]]) for token in answer["tokens"]]
    assert "".join(piece for part, piece in pieces if part == "text") == text.replace(" ", "")
    assert [piece for part, piece in pieces if part == "text_pair"][-1] == "!"
    assert "part" not in explain(bert, ["a"])[0]["tokens"][0]


def test_explanations_alone_and_among_others_and_predictions_are_the_same(bert):
    """Also more than share one pass, of several lengths and steps."""
    bodies = [{"inputs": text, "parameters": {"n_steps": 3 + place % 2}} for place, text in enumerate(TEXTS[:40])]
    alone = {place: explain(bert, [bodies[place]])[0] for place in (0, 3, 17, 39)}
    requests = [Request.of(body, kind="explain") for body in bodies] + [Request.of(text) for text in TEXTS]
    order = [*range(0, len(requests), 2), *range(1, len(requests), 2)]
    replies = bert.answer([requests[place] for place in order])
    answers = {place: json.loads(reply.body) for place, reply in zip(order, replies, strict=True)}
    for place, expected in alone.items():
        assert answers[place]["label"] == expected["label"]
        for token, other in zip(answers[place]["tokens"], expected["tokens"], strict=True):
            assert token == pytest.approx(other, abs=1e-4)
    for place, (_, predicted) in enumerate(ask(bert, TEXTS), 40):
        assert answers[place]["label"] == predicted["label"]
        assert answers[place]["score"] == pytest.approx(predicted["score"], abs=1e-5)


def test_after_explanations_predictions_are_packed_again(folders):
    if "packed" not in modes():
        pytest.skip("BERT of this transformers cannot run packed")
    handler = load(TextClassificationHandler, folders("Bert"), batching={"mode": "packed"})
    explain(handler, SOME)
    assert handler.encoder.on
    handler.encoder.last = None
    ask(handler, SOME)
    assert handler.encoder.last.calls == 2


@pytest.mark.parametrize(
    "body, status, part",
    [
        ({"inputs": "a text", "parameters": {"target": "goood"}}, 422, "no label 'goood'"),
        ({"inputs": "a text", "parameters": {"n_steps": 501}}, 422, "parameters.n_steps"),
        (
            {"inputs": [f"text {place}" for place in range(7)], "parameters": {"n_steps": 500}},
            413,
            "3,500 n_steps together",
        ),
        ({"inputs": "a text", "parameters": {"n_steps": 0}}, 422, "parameters.n_steps"),
        ({"inputs": "x " * 200, "parameters": {"truncate": False}}, 422, "over the model's 100"),
        ({"inputs": 5}, 422, "a number"),
    ],
)
def test_what_is_wrong_hurts_its_sender_alone(bert, body, status, part):
    answers = ask(bert, ["one", body, "two"], kind="explain")
    assert [code for code, _ in answers] == [200, status, 200]
    assert part in answers[1][1]["error"]["message"]


def test_a_long_text_is_explained_as_far_as_the_model_reads(bert):
    [answer] = explain(bert, [{"inputs": "a man " * 100, "parameters": {"n_steps": 5}}])
    assert len(answer["tokens"]) == 98


def test_a_text_without_words_has_nothing_to_explain(bert):
    [answer] = explain(bert, [""])
    assert answer["tokens"] == []
    assert answer["logit"] == answer["baseline"]


# ---- where it cannot be done ------------------------------------------------------------------------------------


def refused(handler):
    answers = ask(handler, ["a text", "another"], kind="explain")
    assert [status for status, _ in answers] == [501, 501]
    assert [status for status, _ in ask(handler, ["a text"])] == [200], "predictions go on"
    error = answers[0][1]["error"]
    return f"{error['message']}; {error.get('expected')}"


def test_another_engine(folders):
    assert "no gradients with the engine torchscript" in refused(
        load(TextClassificationHandler, folders("Bert"), engine="torchscript")
    )


def test_numbers_without_gradients(folders):
    assert "int8" in refused(load(TextClassificationHandler, folders("Bert"), dtype="int8"))


def test_without_captum(bert, monkeypatch):
    monkeypatch.setitem(sys.modules, "captum.attr", None)
    assert "pip install 'tsbatch[explain]'" in refused(bert)


def test_a_tokenizer_without_offsets(bert, monkeypatch):
    monkeypatch.setattr(type(bert.tokenizer), "is_fast", False)
    assert "a fast tokenizer" in refused(bert)


def test_a_model_that_hides_its_embeddings_or_reads_them_twice(bert, monkeypatch):
    monkeypatch.setattr(bert.model, "get_input_embeddings", raises)
    assert "does not give access to its embeddings" in refused(bert)
    monkeypatch.setattr(bert.model, "get_input_embeddings", lambda: torch.nn.Embedding(1000, 32))
    assert "reads its embedding table 0 times" in refused(bert)


def raises():
    raise NotImplementedError


def test_an_encoder_decoder(tmp_path):
    save_classifier(tmp_path, "Bart")
    assert "times" in refused(load(TextClassificationHandler, tmp_path))
