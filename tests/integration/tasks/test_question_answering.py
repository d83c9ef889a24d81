"""Question answering on tiny models, against every span of every window tried one by one, as the method is defined."""

from __future__ import annotations

import json
import math

import pytest
import torch

from tests.classifiers import ask, load
from tests.question_answering import BODIES, LIMIT, check, save
from tests.tiny import save_encoder
from tests.tiny_text import MODES
from tests.varied import answers_in_batches
from tsbatch.errors import LoadError
from tsbatch.protocol.request import Request
from tsbatch.tasks.question_answering import QuestionAnsweringHandler

CLS, SEP = 2, 3


class ByHand:
    """One question, one context, one window, one span at a time; of transformers only the bare model and tokenizer."""

    def __init__(self, folder, types=True):
        from transformers import AutoModelForQuestionAnswering, AutoTokenizer

        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.model = AutoModelForQuestionAnswering.from_pretrained(folder).eval()
        self.types = types
        self.margin = 1.0

    def __call__(self, question, context, top_k=1, max_answer_len=15, handle_impossible_answer=False, **wish):
        length = wish.get("max_seq_len", LIMIT)
        stride = wish.get("doc_stride", min(length // 2, 128))
        align = wish.get("align_to_words", True)
        asked = self.tokenizer(question, add_special_tokens=False)["input_ids"]
        whole = self.tokenizer(context, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        room = length - len(asked) - 3
        answers, none, begin = [], math.inf, 0
        while True:
            part = slice(begin, begin + room)
            spans, nothing = self.spans(asked, whole["input_ids"][part], max_answer_len)
            none = min(none, nothing)
            offsets, words = whole["offset_mapping"][part], whole.word_ids()[part]
            for score, first, last in spans[: 2 * top_k + 10 if align else top_k]:
                if align:
                    first = words.index(words[first])
                    last = len(words) - 1 - words[::-1].index(words[last])
                self.add(answers, score, context, offsets[first][0], offsets[last][1])
            if begin + room >= len(whole["input_ids"]):
                break
            begin += room - stride
        if handle_impossible_answer:
            answers.append({"score": none, "start": 0, "end": 0, "answer": ""})
        answers.sort(key=lambda answer: -answer["score"])
        self.margin = answers[0]["score"] - answers[1]["score"] if len(answers) > 1 else 1.0
        return answers[0] if top_k == 1 else answers[:top_k]

    def spans(self, question, context, max_answer_len):
        ids = [CLS, *question, SEP, *context, SEP]
        first = len(question) + 2
        inputs = {"input_ids": torch.tensor([ids]), "attention_mask": torch.ones(1, len(ids), dtype=torch.long)}
        if self.types:
            inputs["token_type_ids"] = torch.tensor([[0] * first + [1] * (len(context) + 1)])
        with torch.no_grad():
            output = self.model(**inputs)
        places = [0, *range(first, first + len(context))]
        starts, ends = (
            self.softmax({place: logits[0, place].item() for place in places})
            for logits in (output.start_logits, output.end_logits)
        )
        spans = [
            (starts[start] * ends[end], start - first, end - first)
            for start in places[1:]
            for end in places[1:]
            if start <= end < start + max_answer_len
        ]
        return sorted(spans, key=lambda span: -span[0]), starts[0] * ends[0]

    @staticmethod
    def softmax(logits):
        highest = max(logits.values())
        powers = {place: math.exp(logit - highest) for place, logit in logits.items()}
        return {place: power / sum(powers.values()) for place, power in powers.items()}

    @staticmethod
    def add(answers, score, context, start, end):
        for answer in answers:
            if answer["answer"].lower() == context[start:end].lower():
                answer["score"] += score
                return
        answers.append({"score": score, "start": start, "end": end, "answer": context[start:end]})


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    """A folder, and requests with their answers: those where the best answer is no matter of rounding."""
    folder = save(tmp_path_factory.mktemp("bert"))
    by_hand = ByHand(folder)
    told = [(body, by_hand(**body["inputs"], **body["parameters"]), by_hand.margin) for body in BODIES]
    clear = [(body, answer) for body, answer, margin in told if margin > 1e-2]
    best = [answer if isinstance(answer, dict) else answer[0] for _, answer in clear]
    assert len(clear) >= 60, "choose another seed"
    assert len({answer["answer"] for answer in best}) > 20
    assert {answer["answer"] == "" for answer in best} == {True, False}
    return folder, [body for body, _ in clear], [answer for _, answer in clear]


@pytest.mark.parametrize("mode", MODES)
def test_the_best_spans_of_all_windows(bert, mode):
    folder, bodies, expected = bert
    handler = load(QuestionAnsweringHandler, folder, batching={"mode": mode})
    for place, answer in answers_in_batches(handler, bodies, (1, 7, 32) if mode == MODES[0] else (32,)):
        check(answer, expected[place])


def test_a_model_without_token_types(tmp_path):
    save(tmp_path, "DistilBert", types=False, dim=32, n_layers=2, n_heads=4, hidden_dim=64)
    by_hand, handler = ByHand(tmp_path, types=False), load(QuestionAnsweringHandler, tmp_path)
    for place, answer in answers_in_batches(handler, BODIES, (32,)):
        check(answer, by_hand(**BODIES[place]["inputs"], **BODIES[place]["parameters"]))


@pytest.mark.parametrize("engine", ["torchscript", "export"])
def test_other_engines(bert, engine):
    folder, bodies, expected = bert
    handler = load(QuestionAnsweringHandler, folder, engine=engine)
    for place, answer in answers_in_batches(handler, bodies, (32,)):
        check(answer, expected[place])


# ---- inputs -----------------------------------------------------------------------------------------------------

ASKED = {"question": "who?", "context": "Ada Lovelace worked with Charles Babbage."}


@pytest.fixture(scope="module")
def handler(bert):
    return load(QuestionAnsweringHandler, bert[0])


def test_every_shape_of_a_question(handler):
    answers = ask(handler, [ASKED, {"inputs": ASKED}, {**ASKED, "parameters": {}}, {"inputs": [ASKED, ASKED]}])
    assert [status for status, _ in answers] == [200] * 4
    assert answers[0] == answers[1] == answers[2]
    assert answers[3][1] == [answers[0][1]] * 2
    [(_, kserve)] = ask(handler, [{"instances": [{**ASKED, "parameters": {"top_k": 2}}]}])
    assert len(kserve["predictions"][0]) == 2


def test_open_inference_tensors(handler):
    tensors = [{"name": name, "datatype": "BYTES", "shape": [1], "data": [text]} for name, text in ASKED.items()]
    [(status, answer)] = ask(handler, [{"inputs": tensors}])
    [(_, plain)] = ask(handler, [ASKED])
    assert status == 200
    assert {output["name"]: output["data"][0] for output in answer["outputs"]}["answer"] == plain["answer"]


def test_a_short_context_has_as_many_answers_as_spans(handler):
    body = {"inputs": {"question": "who?", "context": "ok"}, "parameters": {"top_k": 50, "align_to_words": False}}
    [(status, answers)] = ask(handler, [body])
    tokens = len(handler.tokenizer("ok", add_special_tokens=False)["input_ids"])
    assert status == 200
    assert len(answers) <= tokens * (tokens + 1) / 2
    assert all(answer["end"] > answer["start"] for answer in answers)


@pytest.mark.parametrize(
    "body, status, part",
    [
        ("only a text", 422, "the item is a string"),
        ({"inputs": {"question": "who?"}}, 422, "the context is missing"),
        ({"question": "who?"}, 422, "the context is missing"),
        ({"question": "who?", "context": 5}, 422, "the context is a number"),
        ({"question": ["who?"], "context": "a"}, 422, "the question is a list"),
        ({"question": "", "context": "a"}, 422, "the question is empty"),
        ({"question": "who?", "context": " \n"}, 422, "the context is empty"),
        ({"question": "who?", "context": "\u200b\u200b"}, 422, "the context has no token"),
        ({"question": "who?", "context": "half \ud800"}, 422, "surrogate"),
        ({"question": "who?", "context": "a", "text": "b"}, 400, "'text'"),
        ({"question": "who?", "context": "x" * 100_001}, 413, "100,001 characters"),
        ({**ASKED, "parameters": {"topk": 2}}, 422, "did you mean 'top_k'"),
        ({**ASKED, "parameters": {"top_k": 0}}, 422, "parameters.top_k"),
        ({**ASKED, "parameters": {"max_answer_len": 0}}, 422, "parameters.max_answer_len"),
        ({**ASKED, "parameters": {"max_seq_len": LIMIT + 1}}, 422, f"over the model's limit of {LIMIT}"),
        ({**ASKED, "parameters": {"max_seq_len": 20, "doc_stride": 21}}, 422, "over the window's length, 20"),
        ({"question": "why " * 200, "context": "a"}, 422, "the question's"),
        ({"question": "why", "context": "a b " * 99, "parameters": {"doc_stride": 97}}, 422, "share 97 cannot be cut"),
        ({"question": "why", "context": "a b " * 9000, "parameters": {"doc_stride": 90}}, 413, "limit of 1,000"),
    ],
)
def test_what_is_wrong_hurts_its_sender_alone(handler, body, status, part):
    answers = ask(handler, [ASKED, body, ASKED])
    assert [code for code, _ in answers] == [200, status, 200], answers[1]
    assert part in answers[1][1]["error"]["message"]


def test_no_answer_is_longer_than_its_window_whatever_is_asked_for(handler):
    """A number that fits no tensor is no fault of the worker's."""
    wishes = [{"max_answer_len": length} for length in (LIMIT, 10**30)]
    (status, whole), (more, same) = ask(handler, [{**ASKED, "parameters": wish} for wish in wishes])
    assert (status, more) == (200, 200), same
    assert same == whole


def test_windows_of_all_requests_share_forward_passes(handler):
    from tests.varied import SENTENCES

    long = {"question": "who?", "context": " ".join(SENTENCES) * 3}
    requests = [Request.of(body, index=place) for place, body in enumerate([long, ASKED, {**long, "question": "why?"}])]
    record = handler.run_batch(requests, type("Nowhere", (), {"send": lambda *_: None})())
    assert record.items == 3
    assert record.features > 5
    assert record.forward_passes == 1


# ---- loading ----------------------------------------------------------------------------------------------------


def test_defaults_of_the_archive(bert):
    folder = bert[0]
    by_hand = ByHand(folder)
    context = BODIES[-1]["inputs"]["context"]
    options = {"max_seq_len": 40, "doc_stride": 7, "max_answer_len": 4, "handle_impossible_answer": True}
    handler = load(QuestionAnsweringHandler, folder, handler=options)
    bodies = [
        {"question": "why", "context": context},
        {"question": "why", "context": context, "parameters": {"handle_impossible_answer": False, "max_seq_len": 60}},
    ]
    wishes = [options, {**options, **bodies[1]["parameters"]}]
    for (_, answer), wish in zip(ask(handler, bodies), wishes, strict=True):
        check(answer, by_hand("why", context, **wish))


def test_wrong_defaults_stop_the_load(bert):
    with pytest.raises(LoadError, match=f"handler.max_seq_len: 101 is over the model's limit of {LIMIT}"):
        load(QuestionAnsweringHandler, bert[0], handler={"max_seq_len": 101})


def test_a_folder_without_a_head_is_refused(tmp_path):
    save_encoder(tmp_path)
    with pytest.raises(LoadError, match="no weights for qa_outputs"):
        load(QuestionAnsweringHandler, tmp_path)


def test_what_it_says_of_itself(handler):
    [reply] = handler.answer([Request.of(None, kind="describe")])
    told = json.loads(reply.body)
    assert told["task"] == "question-answering"
    assert told["input"]["required"] == ["question", "context"]
    assert set(told["parameters"]) >= {"top_k", "doc_stride", "handle_impossible_answer"}
