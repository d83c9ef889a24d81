"""Zero-shot classification on tiny models, against transformers' pipeline on the same folder."""

from __future__ import annotations

import json
import shutil

import pytest

from tests.classifiers import ask, load, modes, pipeline_of, save_classifier
from tests.varied import TEXTS, answers_in_batches
from tsbatch.errors import LoadError
from tsbatch.protocol.request import Request
from tsbatch.tasks.zero_shot_classification import ZeroShotClassificationHandler

ENTAILMENT = ("contradiction", "neutral", "entailment")
WISHES = [
    {"candidate_labels": ["food", "weather", "prices"]},
    {"candidate_labels": ["film", "London"], "multi_label": True},
    {"candidate_labels": "emoji, code , Chinese,,mixed text"},
    {"candidate_labels": ["wonderful"]},
    {
        "candidate_labels": ["上海", "مرحبا", "🙂", "word7 word8", "evening"],
        "hypothesis_template": "{0}: it {{is}} that.",
    },
    {"candidate_labels": ["good", "bad"], "hypothesis_template": "I think {}", "multi_label": False},
]
MIXED = [{"inputs": text, "parameters": WISHES[place % len(WISHES)]} for place, text in enumerate(TEXTS)]


def by_pipeline(folder):
    """A request for each text, and what transformers' pipeline answers.

    Each has the first of the wishes, in turn, with which the two best scores are apart: so no rounding can swap them.
    """
    pipe, bodies, expected = pipeline_of("zero-shot-classification", folder), [], []
    for place, text in enumerate(TEXTS):
        for wish in [*WISHES[place % len(WISHES) :], *WISHES]:
            answer = pipe(text, **wish)
            if len(answer["scores"]) > 1 and answer["scores"][0] - answer["scores"][1] > 1e-2:
                break
        else:
            raise AssertionError(text)
        bodies.append({"inputs": text, "parameters": wish})
        expected.append(answer)
    best = {
        body["parameters"]["candidate_labels"].index(entry["labels"][0])
        for body, entry in zip(bodies, expected, strict=True)
    }
    assert len(best) > 1, "not always the first label"
    return bodies, expected


def check(answer, expected):
    assert answer["sequence"] == expected["sequence"]
    assert answer["labels"] == expected["labels"]
    assert answer["scores"] == pytest.approx(expected["scores"], abs=1e-4)


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    folder = save_classifier(tmp_path_factory.mktemp("bert"), labels=ENTAILMENT, seed=1)
    return folder, *by_pipeline(folder)


def test_as_the_pipeline_answers(bert):
    folder, bodies, expected = bert
    for place, answer in answers_in_batches(load(ZeroShotClassificationHandler, folder), bodies):
        check(answer, expected[place])


def test_one_label_is_scored_against_contradiction(bert):
    pipe, body = pipeline_of("zero-shot-classification", bert[0]), {"inputs": TEXTS[0], "parameters": WISHES[3]}
    [(status, answer)] = ask(load(ZeroShotClassificationHandler, bert[0]), [body])
    assert status == 200
    check(answer, pipe(TEXTS[0], **WISHES[3]))


@pytest.mark.parametrize("mode", modes())
def test_however_features_share_a_pass(bert, mode):
    folder, bodies, expected = bert
    handler = load(ZeroShotClassificationHandler, folder, batching={"mode": mode})
    for place, answer in answers_in_batches(handler, bodies, (32,)):
        check(answer, expected[place])


@pytest.mark.parametrize(
    "kind, labels",
    [
        ("Roberta", ("ENTAILMENT", "neutral", "contradiction")),
        ("Bart", ("entail", "other")),
    ],
)
def test_where_the_label_of_entailment_is_elsewhere(tmp_path, kind, labels):
    save_classifier(tmp_path, kind, labels=labels, seed=1)
    bodies, expected = by_pipeline(tmp_path)
    for place, answer in answers_in_batches(load(ZeroShotClassificationHandler, tmp_path), bodies, (32,)):
        check(answer, expected[place])


def test_a_model_whose_labels_do_not_say_which_one_it_is(tmp_path):
    """transformers' pipeline takes the last, and only its log says so."""
    folder = save_classifier(tmp_path, "DistilBert", labels=("yes", "perhaps", "no"), seed=1)
    bodies, expected = by_pipeline(folder)
    for place, answer in answers_in_batches(
        load(ZeroShotClassificationHandler, folder, handler={"entailment": "no"}), bodies, (32,)
    ):
        check(answer, expected[place])
    for options, wrong in (
        ({}, "none of the model's labels, yes, perhaps, no, begins with 'entail'"),
        ({"entailment": "ja"}, "none of the model's labels, yes, perhaps, no, is 'ja', as handler.entailment says"),
    ):
        with pytest.raises(LoadError) as caught:
            load(ZeroShotClassificationHandler, folder, handler=options)
        assert str(caught.value).startswith(wrong)
        assert str(caught.value).endswith("handler: {entailment: NAME}")


@pytest.mark.parametrize("kept", ["id2label", "label2id"])
def test_a_config_with_one_of_the_two_tables_alone(bert, tmp_path, kept):
    folder, bodies, expected = bert
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    config = json.loads((tmp_path / "config.json").read_text())
    del config[{"id2label": "label2id", "label2id": "id2label"}[kept]]
    (tmp_path / "config.json").write_text(json.dumps(config))
    for place, answer in answers_in_batches(load(ZeroShotClassificationHandler, tmp_path), bodies, (32,)):
        check(answer, expected[place])


def test_labels_of_the_archive(bert, tmp_path):
    """index_to_name.json, as for every task with classes."""
    folder, bodies, expected = bert
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    config = json.loads((tmp_path / "config.json").read_text())
    config |= {"id2label": {str(place): f"LABEL_{place}" for place in range(3)}, "label2id": None}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "index_to_name.json").write_text(json.dumps(ENTAILMENT))
    for place, answer in answers_in_batches(load(ZeroShotClassificationHandler, tmp_path), bodies, (32,)):
        check(answer, expected[place])


def test_the_pairs_of_all_requests_share_forward_passes(bert):
    handler = load(ZeroShotClassificationHandler, bert[0], batching={"mode": "padded"})
    bodies = MIXED[:6]
    record = handler.run_batch([Request.of(body, index=place) for place, body in enumerate(bodies)], Nowhere())
    assert (record.items, record.features, record.forward_passes) == (6, 3 + 2 + 4 + 1 + 5 + 2, 1)


class Nowhere:
    def send(self, index, reply):
        pass


def test_a_list_of_texts_with_the_parameters_of_each(bert):
    handler = load(ZeroShotClassificationHandler, bert[0])
    _, bodies, expected = bert
    inputs = [TEXTS[0], {"text": TEXTS[1], "parameters": bodies[1]["parameters"]}]
    [(status, listed)] = ask(handler, [{**bodies[0], "inputs": inputs}])
    assert status == 200
    check(listed[0], expected[0])
    check(listed[1], expected[1])


def test_a_label_longer_than_the_model_hurts_its_sender_alone(bert):
    """The pipeline goes on uncut, and the model fails; here it is a 422."""
    handler = load(ZeroShotClassificationHandler, bert[0])
    long = {"inputs": "a text", "parameters": {"candidate_labels": ["short", "x " * 200]}}
    answers = ask(handler, [bert[1][0], long, bert[1][-1]])
    assert [status for status, _ in answers] == [200, 422, 200]
    assert "more tokens than the model takes" in answers[1][1]["error"]["message"]
    check(answers[0][1], bert[2][0])
    check(answers[2][1], bert[2][-1])


@pytest.mark.parametrize(
    "parameters, status, part",
    [
        ({}, 422, "parameters.candidate_labels: Field required"),
        ({"candidate_labels": []}, 422, "at least one label"),
        ({"candidate_labels": " , "}, 422, "at least one label"),
        ({"candidate_labels": [5]}, 422, "candidate_labels"),
        ({"candidate_labels": ["x" * 1001]}, 422, "at most 1000 characters"),
        ({"candidate_labels": "short, " + "x" * 1001}, 422, "at most 1000 characters"),
        ({"candidate_labels": ["x"] * 129}, 413, "129 labels, over the limit of 128"),
        ({"candidate_labels": ["half \ud800"]}, 422, "surrogate"),
        ({"candidate_labels": ["a"], "hypothesis_template": "none"}, 422, "must have {} once"),
        ({"candidate_labels": ["a"], "hypothesis_template": "{} {}"}, 422, "must have {} once"),
        ({"candidate_labels": ["a"], "hypothesis_template": "{"}, 422, "hypothesis_template"),
        ({"candidate_labels": ["a"], "hypothesis_template": "{0.__class__}"}, 422, "only field"),
        ({"candidate_labels": ["a"], "hypothesis_template": "{:>999999999}"}, 422, "only field"),
        ({"candidate_labels": ["a"], "hypothesis_template": "{!r}"}, 422, "only field"),
        ({"candidate_labels": ["a"], "multi_labels": True}, 422, "did you mean 'multi_label'"),
    ],
)
def test_what_is_wrong_hurts_its_sender_alone(bert, parameters, status, part):
    handler = load(ZeroShotClassificationHandler, bert[0], warmup=False)
    answers = ask(handler, [MIXED[0], {"inputs": "a text", "parameters": parameters}, MIXED[1]])
    assert [code for code, _ in answers] == [200, status, 200]
    assert part in answers[1][1]["error"]["message"]


def test_the_limit_of_labels_is_the_operators(bert):
    handler = load(ZeroShotClassificationHandler, bert[0], handler={"max_labels": 2})
    answers = ask(handler, [MIXED[0], MIXED[1]])
    assert [status for status, _ in answers] == [413, 200]
    assert "over the limit of 2" in answers[0][1]["error"]["message"]


def test_a_long_text_is_not_read_for_every_label_of_every_item(bert):
    """Six megabytes of texts, as many as a server takes, with 128 labels would be pairs of 800 megabytes."""
    handler = load(ZeroShotClassificationHandler, bert[0], warmup=False)
    long = {"inputs": ["x" * 80_000] * 2, "parameters": {"candidate_labels": ["y"] * 100}}
    answers = ask(handler, [MIXED[0], long])
    assert [status for status, _ in answers] == [200, 413]
    assert "have 16,004,000 characters together" in answers[1][1]["error"]["message"]


def test_the_description(bert):
    [reply] = load(ZeroShotClassificationHandler, bert[0]).answer([Request.of(None, kind="describe")])
    told = json.loads(reply.body)
    assert told["task"] == "zero-shot-classification"
    assert set(told["parameters"]) == {"candidate_labels", "hypothesis_template", "multi_label"}


def test_a_model_of_one_class_is_refused(tmp_path):
    save_classifier(tmp_path, labels=("score",))
    with pytest.raises(LoadError, match="a model of entailment"):
        load(ZeroShotClassificationHandler, tmp_path)
