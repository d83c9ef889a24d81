"""Token classification on tiny models, against transformers' pipeline on the same folder."""

from __future__ import annotations

import json
import warnings
from functools import partial

import numpy as np
import pytest

from tests.classifiers import ask, load, pipeline_of
from tests.tiny import save_encoder
from tests.tiny_text import MODES, draw_weights, save_bpe, save_model, save_wordpiece
from tests.varied import TEXTS, answers_in_batches
from tsbatch.errors import LoadError
from tsbatch.protocol.request import Request
from tsbatch.tasks.token_classification import TokenClassificationHandler

LABELS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC", "MISC"]
LIMIT = 100
INPUTS = [*TEXTS, "", "   ", "known and Ω≈ç√ unknown", "[CLS] typed [MASK]", "Zürich, München; Genève"]
BY_WORD = ("first", "average", "max")
STRATEGIES = ("none", "simple", *BY_WORD)
TOKENIZERS = {"wordpiece": save_wordpiece, "bpe": save_bpe, "untyped": partial(save_wordpiece, types=False)}
SEEDS = {"wordpiece": 8, "bpe": 9}


def save(folder, kind="Bert", *, tokenizer="wordpiece", seed=8, scale=40.0, **config):
    names = dict(enumerate(LABELS))
    model = save_model(
        folder,
        f"{kind}ForTokenClassification",
        tokenizer=partial(TOKENIZERS[tokenizer], max_length=LIMIT),
        id2label=names,
        label2id={name: place for place, name in names.items()},
        **config,
    )
    draw_weights(model, seed, scale)
    model.save_pretrained(folder)
    return folder


def pipeline_that_tells_margins(folder):
    """The pipeline, and a list that gets the margin of every decision between labels that it takes."""
    pipe, margins = pipeline_of("token-classification", folder), []
    aggregate, aggregate_word = pipe.aggregate, pipe.aggregate_word

    def above(scores):
        first, second = np.sort(scores)[::-1][:2]
        margins.append(float(first - second))

    def aggregate_and_tell(entities, strategy):
        if strategy.value in ("none", "simple"):
            for entity in entities:
                above(entity["scores"])
        return aggregate(entities, strategy)

    def aggregate_word_and_tell(entities, strategy):
        scores = np.stack([entity["scores"] for entity in entities])
        if strategy.value == "average":
            above(scores.mean(0))
        else:
            above(scores[0] if strategy.value == "first" else scores[scores.max(1).argmax()])
        if strategy.value == "max":
            peaks, labels = scores.max(1), scores.argmax(1)
            others = peaks[labels != labels[peaks.argmax()]]
            margins.extend([float(peaks.max() - others.max())] if len(others) else [])
        return aggregate_word(entities, strategy)

    pipe.aggregate, pipe.aggregate_word = aggregate_and_tell, aggregate_word_and_tell
    return pipe, margins


def by_pipeline(pipe, text, **wish):
    if not pipe.tokenizer(text)["input_ids"]:
        return []  # the pipeline raises: its model cannot take a text without a token
    with warnings.catch_warnings():
        # It says so of every tokenizer that does not mark what is inside a word.
        warnings.filterwarnings("ignore", "Tokenizer does not support real words")
        return pipe(text, **wish)


def check(answer, expected):
    """The same entities with scores within 1e-4."""
    plain = json.loads(json.dumps(expected, default=float))
    assert [{**entity, "score": 0} for entity in answer] == [{**entity, "score": 0} for entity in plain]
    assert [entity["score"] for entity in answer] == pytest.approx([entity["score"] for entity in plain], abs=1e-4)


@pytest.fixture(scope="module", params=SEEDS)
def told(request, tmp_path_factory):
    """A folder, and requests with what the pipeline answers: of each strategy those that are no matter of rounding."""
    kind = request.param
    folder = save(tmp_path_factory.mktemp(kind), tokenizer=kind, seed=SEEDS[kind])
    pipe, margins = pipeline_that_tells_margins(folder)
    bodies, expected = [], []
    for strategy in STRATEGIES:
        clear = []
        for text in INPUTS:
            margins.clear()
            answer = by_pipeline(pipe, text, aggregation_strategy=strategy)
            if min(margins, default=1) > 1e-2:
                clear.append(({"inputs": text, "parameters": {"aggregation_strategy": strategy}}, answer))
        assert len(clear) >= 40, f"{strategy}: choose another seed"
        bodies += [body for body, _ in clear]
        expected += [answer for _, answer in clear]
    assert len({entity.get("entity_group") for answer in expected for entity in answer}) > 3
    return folder, bodies, expected


def test_as_the_pipeline_answers_with_all_strategies_in_one_batch(told):
    folder, bodies, expected = told
    for place, answer in answers_in_batches(load(TokenClassificationHandler, folder), bodies):
        check(answer, expected[place])


@pytest.mark.parametrize("mode", MODES)
def test_however_features_share_a_pass(told, mode):
    folder, bodies, expected = told
    handler = load(TokenClassificationHandler, folder, batching={"mode": mode})
    for place, answer in answers_in_batches(handler, bodies, (32,)):
        check(answer, expected[place])


@pytest.mark.parametrize("stride", [0, 20, 80])
def test_windows_of_long_texts(told, stride):
    folder, _, _ = told
    pipe = pipeline_of("token-classification", folder)
    texts = [*TEXTS[-6:], " ".join(TEXTS[20:]), " ".join(TEXTS[:30]), *TEXTS[:4]]
    wishes = [{"aggregation_strategy": STRATEGIES[1 + place % 4], "stride": stride} for place in range(len(texts))]
    bodies = [{"inputs": text, "parameters": wish} for text, wish in zip(texts, wishes, strict=True)]
    expected = [by_pipeline(pipe, text, **wish) for text, wish in zip(texts, wishes, strict=True)]
    assert any(entity["start"] > 700 for answer in expected for entity in answer)
    for place, answer in answers_in_batches(load(TokenClassificationHandler, folder), bodies, (1, 32)):
        check(answer, expected[place])


def test_labels_to_leave_out(told):
    folder, _, _ = told
    pipe = pipeline_of("token-classification", folder)
    wishes = [
        {"ignore_labels": []},
        {"ignore_labels": ["O", "B-PER", "MISC"]},
        {"ignore_labels": ["PER"], "aggregation_strategy": "simple"},
        {"ignore_labels": ["none such"], "aggregation_strategy": "simple"},
    ]
    answers = ask(
        load(TokenClassificationHandler, folder), [{"inputs": TEXTS[2], "parameters": wish} for wish in wishes]
    )
    for (status, answer), wish in zip(answers, wishes, strict=True):
        assert status == 200
        check(answer, by_pipeline(pipe, TEXTS[2], **wish))


SIZES = {"DistilBert": {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64}, "Roberta": {}}


@pytest.mark.parametrize("kind", SIZES)
def test_other_architectures(tmp_path, kind):
    save(tmp_path, kind, tokenizer="untyped", seed=1, **SIZES[kind])
    pipe = pipeline_of("token-classification", tmp_path)
    handler = load(TokenClassificationHandler, tmp_path)
    bodies = [{"inputs": text, "parameters": {"aggregation_strategy": "simple"}} for text in INPUTS]
    for place, answer in answers_in_batches(handler, bodies, (32,)):
        check(answer, by_pipeline(pipe, INPUTS[place], aggregation_strategy="simple"))


# ---- inputs -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save(tmp_path_factory.mktemp("bert"))


@pytest.fixture(scope="module")
def handler(folder):
    return load(TokenClassificationHandler, folder)


@pytest.mark.parametrize("engine", ["torchscript", "export"])
def test_other_engines(handler, folder, engine):
    bodies = [{"inputs": text, "parameters": {"aggregation_strategy": "average"}} for text in INPUTS]
    expected = ask(handler, bodies)
    for place, answer in answers_in_batches(load(TokenClassificationHandler, folder, engine=engine), bodies, (32,)):
        check(answer, expected[place][1])


def test_every_shape_of_a_text(handler):
    text = TEXTS[2]
    answers = ask(handler, [text, {"inputs": text}, {"text": text, "parameters": {}}, {"inputs": [text, "ok"]}])
    assert [status for status, _ in answers] == [200] * 4
    assert answers[0] == answers[1] == answers[2]
    assert answers[3][1][0] == answers[0][1]


def test_characters_are_the_texts_own(handler):
    text = TEXTS[2]
    [(_, entities)] = ask(handler, [{"inputs": text, "parameters": {"ignore_labels": []}}])
    assert [text[entity["start"] : entity["end"]].lower() for entity in entities] == [
        entity["word"].removeprefix("##") for entity in entities
    ]


@pytest.mark.parametrize(
    "parameters, status, part",
    [
        ({"aggregation_strategy": "mean"}, 422, "parameters.aggregation_strategy"),
        ({"aggregation": "max"}, 422, "did you mean 'aggregation_strategy'"),
        ({"ignore_labels": "O"}, 422, "parameters.ignore_labels"),
        ({"ignore_labels": ["O"] * 1001}, 422, "parameters.ignore_labels: List should have at most 1000 items"),
        ({"stride": -1, "aggregation_strategy": "max"}, 422, "parameters.stride"),
        ({"stride": 5}, 422, "cannot be told apart"),
        ({"stride": LIMIT - 2, "aggregation_strategy": "max"}, 422, "share 98 cannot be cut: 2 tokens are special"),
    ],
)
def test_what_is_wrong_hurts_its_sender_alone(handler, parameters, status, part):
    answers = ask(handler, ["one", {"inputs": "long " * 200, "parameters": parameters}, "two"])
    assert [code for code, _ in answers] == [200, status, 200]
    assert part in answers[1][1]["error"]["message"]


def test_too_many_windows_are_refused_before_they_are_made(handler):
    body = {"inputs": "a b " * 9000, "parameters": {"aggregation_strategy": "max", "stride": 90}}
    answers = ask(handler, ["one", body])
    assert [code for code, _ in answers] == [200, 413]
    assert "the limit of 1,000" in answers[1][1]["error"]["message"]


def test_requests_with_different_parameters_share_one_pass(handler):
    bodies = [{"inputs": TEXTS[2], "parameters": {"aggregation_strategy": strategy}} for strategy in STRATEGIES]
    requests = [Request.of(body, index=place) for place, body in enumerate(bodies)]
    record = handler.run_batch(requests, type("Nowhere", (), {"send": lambda *_: None})())
    assert (record.features, record.forward_passes) == (5, 1)


# ---- loading ----------------------------------------------------------------------------------------------------


def test_defaults_of_the_archive(folder):
    options = {"aggregation_strategy": "first", "stride": 10, "ignore_labels": ["MISC"]}
    handler, pipe = load(TokenClassificationHandler, folder, handler=options), pipeline_of("ner", folder)
    long = " ".join(TEXTS)
    bodies = [long, {"inputs": long, "parameters": {"aggregation_strategy": "none"}}]
    first, none = ask(handler, bodies)
    check(first[1], by_pipeline(pipe, long, **options))
    check(none[1], by_pipeline(pipe, long, aggregation_strategy="none", ignore_labels=["MISC"]))


def test_wrong_defaults_stop_the_load(folder):
    with pytest.raises(LoadError, match=r"handler\.stride: .* set handler\.aggregation_strategy"):
        load(TokenClassificationHandler, folder, handler={"stride": 5})


def test_labels_of_the_archive_come_before_the_models(tmp_path):
    save(tmp_path)
    names = ["O", "eins", "zwei", "drei", "vier", "fünf"]
    (tmp_path / "index_to_name.json").write_text(json.dumps(dict(enumerate(names))))
    handler = load(TokenClassificationHandler, tmp_path)
    [(_, entities)] = ask(handler, [{"inputs": TEXTS[2], "parameters": {"ignore_labels": []}}])
    assert {entity["entity"] for entity in entities} <= set(names)
    [reply] = handler.answer([Request.of(None, kind="describe")])
    assert json.loads(reply.body)["labels"] == names


def test_a_folder_without_a_head_is_refused(tmp_path):
    save_encoder(tmp_path)
    with pytest.raises(LoadError, match="no weights for classifier"):
        load(TokenClassificationHandler, tmp_path)


def test_a_tokenizer_that_does_not_know_characters_is_refused(folder, monkeypatch):
    from transformers import PreTrainedTokenizerFast

    monkeypatch.setattr(PreTrainedTokenizerFast, "is_fast", False)
    with pytest.raises(LoadError, match=r"does not know the character offsets .*\(tokenizer\.json\)") as caught:
        load(TokenClassificationHandler, folder)
    assert "\n" not in str(caught.value)
