"""Reranking on tiny cross-encoders, against a forward pass of transformers' own for each pair."""

from __future__ import annotations

import json
import random

import pytest
import torch

from tests.classifiers import LONGEST, ask, load, modes, save_classifier
from tests.varied import TEXTS, answers_in_batches
from tsbatch.errors import LoadError
from tsbatch.protocol.request import Request
from tsbatch.tasks.reranking import RerankingHandler

WISHES = [
    {},
    {"raw_scores": True},
    {"return_text": True},
    {"top_n": 2, "return_documents": True},
    {"top_n": 99, "raw_scores": True},
]
KEYS = ["texts", "passages", "documents"]


def made_up():
    """A query with 1 to 4 passages for each text, under every key, with the parameters beside them or apart."""
    numbers, bodies = random.Random(0), []
    for place, query in enumerate(TEXTS):
        passages = numbers.sample(TEXTS, numbers.randint(1, 4))
        item, wish = {"query": query, KEYS[place % 3]: passages}, WISHES[place % len(WISHES)]
        bodies.append({**item, **wish} if place % 2 else {**item, "parameters": wish})
    return bodies


QUERIES = made_up()


def by_hand(folder):
    """The logit of every pair, one at a time."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    logits = []
    for body in QUERIES:
        own = []
        for passage in passages_of(body):
            inputs = tokenizer(body["query"], passage, truncation=True, max_length=LONGEST, return_tensors="pt")
            with torch.no_grad():
                own.append(float(model(**inputs).logits[0, 0]))
        logits.append(own)
    return logits


def passages_of(body):
    return next(body[key] for key in KEYS if key in body)


def check(answer, logits, body):
    wish = {**body.get("parameters", {}), **body}
    order = sorted(range(len(logits)), key=lambda place: -logits[place])[: wish.get("top_n")]
    assert [entry["index"] for entry in answer] == order
    scores = torch.tensor([logits[place] for place in order])
    scores = scores if wish.get("raw_scores") else scores.sigmoid()
    assert [entry["score"] for entry in answer] == pytest.approx(scores.tolist(), abs=1e-4)
    if wish.get("return_text") or wish.get("return_documents"):
        assert [entry["text"] for entry in answer] == [passages_of(body)[place] for place in order]
    else:
        assert not any("text" in entry for entry in answer)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    made = {}

    def folder(kind):
        if kind not in made:
            path = save_classifier(tmp_path_factory.mktemp(kind), kind, labels=("score",), seed=4)
            made[kind] = path, by_hand(path)
        return made[kind]

    return folder


@pytest.mark.parametrize("kind", ["Bert", "DistilBert", "GPT2"])
def test_as_a_forward_pass_for_each_pair(folders, kind):
    folder, logits = folders(kind)
    gaps = [abs(one - other) for own in logits for place, one in enumerate(own) for other in own[:place]]
    assert min(gaps) > 1e-3
    assert len({max(range(len(own)), key=own.__getitem__) for own in logits}) > 2, "not always the same place"
    for place, answer in answers_in_batches(load(RerankingHandler, folder), QUERIES):
        check(answer, logits[place], QUERIES[place])


@pytest.mark.parametrize("mode", modes())
def test_however_features_share_a_pass(folders, mode):
    folder, logits = folders("Bert")
    handler = load(RerankingHandler, folder, batching={"mode": mode})
    for place, answer in answers_in_batches(handler, QUERIES, (32,)):
        check(answer, logits[place], QUERIES[place])


@pytest.fixture(scope="module")
def bert(folders):
    return load(RerankingHandler, folders("Bert")[0], handler={"max_passages": 20})


def test_the_pairs_of_all_requests_share_forward_passes(folders):
    handler = load(RerankingHandler, folders("Bert")[0], batching={"mode": "padded"})
    record = handler.run_batch([Request.of(body, index=place) for place, body in enumerate(QUERIES[:8])], Nowhere())
    assert (record.items, record.forward_passes) == (8, 1)
    assert record.features == sum(len(passages_of(body)) for body in QUERIES[:8])


class Nowhere:
    def send(self, index, reply):
        pass


def test_every_shape_of_a_query(bert):
    item = {"query": "a man", "texts": ["eating", "weather"]}
    bodies = [item, {"inputs": item}, {"instances": [item]}, {"inputs": [item, {**item, "top_n": 1}]}]
    answers = ask(bert, bodies)
    assert [status for status, _ in answers] == [200] * 4
    ranking = answers[0][1]
    assert answers[1][1] == ranking
    assert answers[2][1] == {"predictions": [ranking]}
    assert answers[3][1] == [ranking, ranking[:1]]


def test_equal_passages_keep_their_order_and_scores_of_one_are_told_apart(bert):
    [(_, answer)] = ask(bert, [{"query": "a", "texts": ["word"] * 3}])
    assert [entry["index"] for entry in answer] == [0, 1, 2]
    outputs = [[torch.tensor([30.0]), torch.tensor([40.0])]]
    items = bert.decode_request(Request.of({"query": "a", "texts": ["b", "c"]}))
    [told] = bert.postprocess(outputs, items)
    assert [entry["index"] for entry in told] == [1, 0]
    assert told[0]["score"] == told[1]["score"] == 1


@pytest.mark.parametrize(
    "body, status, part",
    [
        ("a text", 422, "not one query with its passages"),
        ({"query": "a"}, 422, "not one query with its passages"),
        ({"texts": ["a"]}, 422, "not one query with its passages"),
        ({"query": "a", "texts": ["b"], "documents": ["b"]}, 422, "not one query with its passages"),
        ({"query": 5, "texts": ["b"]}, 422, "not one query with its passages"),
        ({"query": "a", "texts": []}, 422, "texts is not a list of one or more texts"),
        ({"query": "a", "passages": ["b", 5]}, 422, "passages is not a list"),
        ({"query": "a", "texts": "b"}, 422, "texts is not a list"),
        ({"query": "a", "texts": ["b"], "topn": 3}, 422, "'topn'"),
        ({"query": "a", "texts": ["b"], "top_n": 0}, 422, "parameters.top_n"),
        ({"query": "a", "texts": ["b"], "parameters": {"top_k": 1}}, 422, "did you mean 'top_n'"),
        ({"query": "a", "texts": ["b"] * 21}, 413, "21 passages, over the limit of 20"),
        ({"query": "a", "texts": ["b", "x" * 100_001]}, 413, "100,001 characters"),
        ({"query": "a", "texts": ["b", "x " * 200], "truncate": False}, 422, "passage 1 have 204 tokens"),
        ({"query": "a", "texts": ["b", "half \ud800"]}, 422, "surrogate"),
    ],
)
def test_what_is_wrong_hurts_its_sender_alone(bert, body, status, part):
    answers = ask(bert, [QUERIES[0], body, QUERIES[1]])
    assert [code for code, _ in answers] == [200, status, 200]
    assert part in answers[1][1]["error"]["message"]


def test_the_limit_of_passages_is_the_operators(folders):
    handler = load(RerankingHandler, folders("Bert")[0], handler={"max_passages": 1})
    answers = ask(handler, [{"query": "a", "texts": ["b"]}, {"query": "a", "texts": ["b", "c"]}])
    assert [status for status, _ in answers] == [200, 413]


def test_a_long_query_is_not_read_for_every_passage_of_every_item(bert):
    long = [{"query": "x" * 100_000, "texts": ["y"] * 20}] * 6
    answers = ask(bert, [{"query": "a", "texts": ["b"]}, long])
    assert [status for status, _ in answers] == [200, 413]
    assert "have 12,000,120 characters together" in answers[1][1]["error"]["message"]


def test_the_description(bert):
    [reply] = bert.answer([Request.of(None, kind="describe")])
    told = json.loads(reply.body)
    assert told["task"] == "reranking"
    assert set(told["parameters"]) == {"raw_scores", "return_text", "return_documents", "top_n", "truncate"}


def test_a_model_of_several_classes_is_refused(tmp_path):
    save_classifier(tmp_path)
    with pytest.raises(LoadError, match="has 3 classes; reranking needs a cross-encoder with one"):
        load(RerankingHandler, tmp_path)
