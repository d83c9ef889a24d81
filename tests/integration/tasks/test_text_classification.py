"""Text classification on tiny models, against transformers' pipeline on the same folder."""

from __future__ import annotations

import json

import pytest

from tests.classifiers import KINDS, LONGEST, ask, load, modes, pipeline_of, save_classifier
from tests.tiny import save_encoder
from tests.varied import TEXTS, answers_in_batches
from tsbatch.errors import LoadError
from tsbatch.protocol.reply import ListSink
from tsbatch.protocol.request import Request
from tsbatch.tasks.text_classification import TextClassificationHandler

PAIRS = [{"text": text, "text_pair": pair} for text, pair in zip(TEXTS, reversed(TEXTS), strict=True)]
WISHES = [
    {},
    {"top_k": None},
    {"top_k": 1},
    {"top_k": 2},
    {"top_k": 99},
    {"function_to_apply": "sigmoid"},
    {"function_to_apply": "none", "top_k": None},
    {"function_to_apply": "softmax", "top_k": 2},
]
MIXED = [
    {"inputs": value, "parameters": WISHES[place % len(WISHES)]}
    for place, value in enumerate(value for both in zip(TEXTS, PAIRS, strict=True) for value in both)
]
"""Texts and pairs in turn, with a wish each; seven wishes, so that all come on both."""
HALF = [body for place, body in enumerate(MIXED) if place % 4 in (0, 3)]
"""Every other one of the texts, and of the pairs."""
SEEDS = {"Roberta": 2, "DistilBert": 4}
"""Of weights with which no two best scores are close."""


def by_pipeline(pipe, body):
    """The pipeline's answer, which it puts into a list of its own for a bare text without ``top_k``."""
    answer = pipe(body["inputs"], truncation=True, **body["parameters"])
    bare = isinstance(body["inputs"], str) and "top_k" not in body["parameters"]
    return answer[0] if bare else answer


def check(answer, expected):
    """Same shape, same labels, scores within 1e-4."""
    if isinstance(expected, dict):
        answer, expected = [answer], [expected]
    assert [entry["label"] for entry in answer] == [entry["label"] for entry in expected]
    assert [entry["score"] for entry in answer] == pytest.approx([entry["score"] for entry in expected], abs=1e-4)


def tell_apart(expected):
    """The model's best scores are apart, and all labels are among them: an answer cannot be right by chance."""
    assert len({entries[0]["label"] for entries in expected}) == 3
    assert min(entries[0]["score"] - entries[1]["score"] for entries in expected) > 1e-2


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    made = {}

    def folder(kind):
        if kind not in made:
            path = save_classifier(tmp_path_factory.mktemp(kind), kind, seed=SEEDS.get(kind, 3))
            pipe = pipeline_of("text-classification", path)
            tell_apart([pipe(body["inputs"], top_k=None, truncation=True) for body in HALF])
            made[kind] = path, [by_pipeline(pipe, body) for body in HALF]
        return made[kind]

    return folder


@pytest.mark.parametrize("kind", KINDS)
def test_as_the_pipeline_answers(folders, kind):
    folder, expected = folders(kind)
    for place, answer in answers_in_batches(load(TextClassificationHandler, folder), HALF):
        check(answer, expected[place])


@pytest.mark.parametrize("mode", ["bucketed", "padded"])
def test_texts_and_pairs_share_a_batch_where_end_marks_count(folders, mode, monkeypatch):
    """BART reads its answer off the last one, and refuses rows of which some have more than others."""
    folder, expected = folders("Bart")
    handler = load(TextClassificationHandler, folder, batching={"mode": mode})
    passes, rows = handler.model.forward, []

    def forward(**tensors):
        output = passes(**tensors)  # one that fails is not counted
        rows.append(len(tensors["input_ids"]))
        return output

    monkeypatch.setattr(handler.model, "forward", forward)
    record = handler.run_batch([Request.of(body, index=place) for place, body in enumerate(HALF[:32])], ListSink(32))
    assert not record.failures
    assert sum(rows) == 32, "each was computed once"
    assert record.forward_passes == record.micro_batches, "no part was tried again"
    written = {"inputs": "with [SEP] in it", "parameters": {}}
    answers = ask(handler, [written, *HALF[:3], {"inputs": PAIRS[0]}])
    for (status, answer), told in zip(answers[1:4], expected, strict=False):
        assert status == 200
        check(answer, told)
    assert answers[0][0] == 200, "a text may have such marks in it"


@pytest.mark.parametrize("mode", modes())
def test_however_features_share_a_pass(folders, mode):
    folder, expected = folders("Bert")
    handler = load(TextClassificationHandler, folder, batching={"mode": mode})
    for place, answer in answers_in_batches(handler, HALF, (32,)):
        check(answer, expected[place])


@pytest.mark.parametrize("engine", ["torchscript", "export"])
def test_other_engines(folders, engine):
    folder, expected = folders("Bert")
    handler = load(TextClassificationHandler, folder, engine=engine)
    for place, answer in answers_in_batches(handler, HALF, (32,)):
        check(answer, expected[place])


@pytest.mark.parametrize(
    "labels, config",
    [
        (("bad", "so-so", "good"), {"problem_type": "multi_label_classification"}),
        (("bad", "so-so", "good"), {"problem_type": "regression"}),
        (("score",), {}),
        (("score",), {"problem_type": "regression"}),
    ],
)
def test_several_labels_one_label_and_regression(tmp_path, labels, config):
    save_classifier(tmp_path, labels=labels, **config)
    pipe = pipeline_of("text-classification", tmp_path)
    handler = load(TextClassificationHandler, tmp_path)
    bodies = MIXED[:14]
    for (status, answer), body in zip(ask(handler, bodies), bodies, strict=True):
        assert status == 200
        check(answer, by_pipeline(pipe, body))


# ---- inputs -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bert(folders):
    return load(TextClassificationHandler, folders("Bert")[0])


def test_every_shape_of_a_text_and_of_a_pair(bert):
    text, pair = "A man is eating food.", {"text": "A man", "text_pair": "is eating"}
    texts = ask(bert, [text, {"inputs": text}, {"text": text}, {"text": text, "parameters": {}}])
    assert len({json.dumps(answer) for answer in texts}) == 1
    pairs = ask(bert, [pair, {"inputs": pair}, {**pair, "parameters": {}}])
    assert len({json.dumps(answer) for answer in pairs}) == 1
    assert pairs[0] != texts[0]
    [(status, listed)] = ask(bert, [{"inputs": [text, pair, {**pair, "parameters": {"top_k": 1}}]}])
    assert status == 200
    check(listed[:2], [texts[0][1], pairs[0][1]])
    check(listed[2], [pairs[0][1]])


def test_open_inference_tensors_of_texts_and_of_pairs(bert):
    def tensor(name, value):
        return {"name": name, "datatype": "BYTES", "shape": [1], "data": [value]}

    body = {"inputs": [tensor("text", "A man"), tensor("text_pair", "is eating")]}
    [(status, answer)] = ask(bert, [body])
    [(_, plain)] = ask(bert, [{"text": "A man", "text_pair": "is eating"}])
    assert status == 200
    told = {output["name"]: output["data"][0] for output in answer["outputs"]}
    assert told["label"] == plain["label"]
    assert told["score"] == pytest.approx(plain["score"], abs=1e-6)


def test_a_text_without_words_is_answered_as_the_pipeline_does(bert, folders):
    pipe = pipeline_of("text-classification", folders("Bert")[0])
    for (status, answer), text in zip(ask(bert, ["", "   "]), ["", "   "], strict=True):
        assert status == 200
        check(answer, pipe(text)[0])


def test_a_text_without_a_token_is_refused_where_the_pipeline_raises(folders):
    handler = load(TextClassificationHandler, folders("GPT2")[0])
    answers = ask(handler, ["a word", "", "another"])
    assert [status for status, _ in answers] == [200, 422, 200]
    assert "no token" in answers[1][1]["error"]["message"]


def test_what_is_too_long_may_be_refused(bert):
    long, short = {"inputs": "word " * 500, "parameters": {"truncate": False}}, "a word"
    pair = {"inputs": {"text": "word " * 60, "text_pair": "word " * 60}, "parameters": {"truncate": False}}
    answers = ask(bert, [long, short, pair, {**long, "parameters": {}}])
    assert [status for status, _ in answers] == [422, 200, 422, 200]
    assert f"over the model's {LONGEST}" in answers[0][1]["error"]["message"]


@pytest.mark.parametrize(
    "body, status, part",
    [
        ({"text": "a", "text_pair": 5}, 422, "not both texts"),
        ({"text_pair": "a"}, 422, "not both texts"),
        ({"text": "a", "text_pair": None}, 422, "not both texts"),
        ({"text": "a", "other": "b"}, 400, "'other'"),
        ({"inputs": 5}, 422, "a number"),
        ({"inputs": {"text": "a", "text_pair": "x" * 100_001}}, 413, "100,001 characters"),
        ({"inputs": "a", "parameters": {"top_k": -1}}, 422, "parameters.top_k"),
        ({"inputs": "a", "parameters": {"topk": 1}}, 422, "did you mean 'top_k'"),
        ({"inputs": "a", "parameters": {"function_to_apply": "tanh"}}, 422, "function_to_apply"),
        ({"inputs": {"text": "a", "text_pair": "half \ud800"}}, 422, "surrogate"),
    ],
)
def test_what_is_wrong_hurts_its_sender_alone(bert, body, status, part):
    answers = ask(bert, ["one", body, "two"])
    assert [code for code, _ in answers] == [200, status, 200]
    assert part in answers[1][1]["error"]["message"]


def test_identical_texts_are_computed_once_and_the_shape_of_an_answer_is_part_of_it(bert):
    bodies = ["a text", "a text", {"inputs": "a text", "parameters": {"top_k": 1}}]
    record = bert.run_batch([Request.of(body, index=place) for place, body in enumerate(bodies)], Nowhere())
    assert (record.items, record.features) == (3, 2)
    (_, first), (_, second), (_, third) = ask(bert, bodies)
    assert third == [first] == [second]


class Nowhere:
    def send(self, index, reply):
        pass


# ---- loading ----------------------------------------------------------------------------------------------------


def test_labels_of_the_archive_come_before_the_models(tmp_path):
    save_classifier(tmp_path)
    (tmp_path / "index_to_name.json").write_text('{"0": "eins", "1": "zwei", "2": "drei"}')
    handler = load(TextClassificationHandler, tmp_path)
    [(_, answer)] = ask(handler, [{"inputs": "a", "parameters": {"top_k": None}}])
    assert {entry["label"] for entry in answer} == {"eins", "zwei", "drei"}
    [reply] = handler.answer([Request.of(None, kind="describe")])
    told = json.loads(reply.body)
    assert (told["task"], told["labels"]) == ("text-classification", ["eins", "zwei", "drei"])
    assert {"top_k", "function_to_apply", "truncate", "target", "n_steps"} == set(told["parameters"])
    assert told["explanation"]["properties"].keys() == {"label", "logit", "baseline", "delta", "tokens"}


def test_a_folder_without_a_head_is_refused(tmp_path):
    save_encoder(tmp_path)
    with pytest.raises(LoadError, match="the folder has no weights for classifier") as caught:
        load(TextClassificationHandler, tmp_path)
    assert "\n" not in str(caught.value)


def test_a_decoder_without_any_token_to_pad_with_is_refused(tmp_path):
    save_classifier(tmp_path, "GPT2", bos_token_id=None, eos_token_id=None)
    about = json.loads((tmp_path / "tokenizer_config.json").read_text())
    for name in ("pad_token", "eos_token"):
        about.pop(name, None)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(about))
    (tmp_path / "special_tokens_map.json").unlink(missing_ok=True)
    with pytest.raises(LoadError, match="pad_token_id"):
        load(TextClassificationHandler, tmp_path)
