"""question-answering: the piece of a context that answers a question.

Input: ``{"question": "Who …?", "context": "…"}``, or a list of those. Parameters: ``top_k``, ``max_answer_len``,
``handle_impossible_answer``, ``align_to_words``, ``max_seq_len``, ``doc_stride``. Output for each, as transformers'
pipeline gives it (until 4.57; 5 has none)::

    {"score": 0.98, "start": 11, "end": 17, "answer": "Berlin"}        with top_k over 1 a list of these, best first

A long context is read in overlapping windows. In each window a span of tokens scores the probability that the answer
starts at its first token times the probability that it ends at its last; the same words found in several windows add
up. With ``handle_impossible_answer`` an empty answer stands for "it is not in the context", and scores what the first
token does in the window that is surest of an answer. Needs a fast tokenizer; the question is never cut.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import numpy as np
import torch
from pydantic import Field

from tsbatch.errors import SettingsError, Unprocessable
from tsbatch.protocol.fields import kind_of
from tsbatch.protocol.request import Item, Request
from tsbatch.settings import Section
from tsbatch.tasks.shared.task_handler import filled
from tsbatch.tasks.text.handler import EXAMPLES
from tsbatch.tasks.text.spans import best_spans, position_chances
from tsbatch.tasks.text.token_features import Ids
from tsbatch.tasks.text.windows import Cut, Window, WindowHandler
from tsbatch.worker.resources import to_device

EXPECTED = '{"question": "...", "context": "..."}'
WINDOW, OVERLAP = 384, 128
"""Tokens of a window, and those that it shares with the one before, unless the model is smaller."""


class QuestionAnsweringOptions(Section):
    """The section ``handler:`` of model-config.yaml: what holds where a request says nothing."""

    max_seq_len: int | None = Field(default=None, ge=4, description="tokens of a window, the question's among them")
    doc_stride: int | None = Field(default=None, ge=0, description="tokens that windows share")
    max_answer_len: int = Field(default=15, ge=1, description="tokens of an answer")
    handle_impossible_answer: bool = False


class QuestionAnsweringParameters(Section):
    """What a request may ask for; what is left out is as in the archive's model-config.yaml.

    Attributes:
        top_k: so many answers, as far as the context has them.
        max_answer_len: the longest answer in tokens.
        handle_impossible_answer: the answer may be that there is none.
        align_to_words: whole words alone; false is better for languages without blanks.
        max_seq_len: tokens of a window, those of the question among them; 384 where the model takes as many.
        doc_stride: tokens of the context that windows share; 128, or half a smaller window.
    """

    top_k: int = Field(default=1, ge=1, le=100)
    max_answer_len: int | None = Field(default=None, ge=1)
    handle_impossible_answer: bool | None = None
    align_to_words: bool = True
    max_seq_len: int | None = Field(default=None, ge=4)
    doc_stride: int | None = Field(default=None, ge=0)

    @property
    def spans(self) -> int:
        """Spans wanted of each window: some become the same answer when they are aligned to words."""
        return 2 * self.top_k + 10 if self.align_to_words else self.top_k


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class AnswerWindow(Window):
    """A window of a question and its context.

    Attributes:
        context: whether each token is the context's, shape (length,).
        width: the most tokens that an answer may have.
        spans: spans wanted of the window.
    """

    context: Ids
    width: int
    spans: int

    @classmethod
    def of(cls, window: Window, wish: QuestionAnsweringParameters) -> AnswerWindow:
        """The window with what a request wants of it."""
        context = np.array([text == 1 for text in window.encoding.sequence_ids], dtype=bool)
        width = min(cast(int, wish.max_answer_len), len(window))  # what a client asks for may fit no tensor
        return cls(window.ids, window.types, window.encoding, context=context, width=width, spans=wish.spans)

    def characters(self, first: int, last: int, *, whole_words: bool) -> tuple[int, int]:
        """Where in the context a span of tokens begins and ends; its words do, where the tokenizer knows words."""
        start, end = (self._word(token) if whole_words else None for token in (first, last))
        if start is None or end is None:
            start, end = self.encoding.offsets[first], self.encoding.offsets[last]
        return start[0], end[1]

    def _word(self, token: int) -> tuple[int, int] | None:
        """The characters of the word that a token is of; None where the tokenizer does not know."""
        word = self.encoding.token_to_word(token)
        return None if word is None else self.encoding.word_to_chars(word, sequence_index=1)


class QuestionAnsweringHandler(WindowHandler):
    """Finds answers in contexts. See the module for input, output and parameters."""

    task: ClassVar[str] = "question-answering"
    item_keys: ClassVar[frozenset[str]] = frozenset({"question", "context"})
    input_schema: ClassVar[Any] = {
        "type": "object",
        "required": ["question", "context"],
        "properties": {"question": {"type": "string"}, "context": {"type": "string"}},
    }
    output_schema: ClassVar[Any] = {
        "type": "object",
        "required": ["score", "start", "end", "answer"],
        "properties": {
            "score": {"type": "number"},
            "start": {"type": "integer"},
            "end": {"type": "integer"},
            "answer": {"type": "string"},
        },
        "description": "with top_k over 1 a list of these",
    }
    parameters_class: ClassVar[Any] = QuestionAnsweringParameters
    settings_class: ClassVar[Any] = QuestionAnsweringOptions

    def load_model(self) -> Any:
        """The model with its head."""
        from transformers import AutoModelForQuestionAnswering

        return self.load_pretrained(AutoModelForQuestionAnswering, complete=True)

    def prepare(self) -> None:
        """See to it that the archive's own windows fit the model."""
        cls = self.tokenizer.cls_token_id
        self._no_answer = -1 if cls is None else cls
        try:
            self._wish(QuestionAnsweringParameters())
        except Unprocessable as error:
            raise SettingsError(f"model-config.yaml: {error.message.replace('parameters.', 'handler.')}") from None

    def examples(self) -> list[dict[str, str]]:
        """Contexts of the lengths that clients send."""
        return [{"question": "What is it about?", "context": text} for text in EXAMPLES]

    def decode_item(self, value: Any) -> dict[str, str]:
        """A question and a context.

        Raises:
            Unprocessable: one is missing, empty or no text.
            PayloadTooLarge: one is over ``tsbatch.limits.characters``.
        """
        if not isinstance(value, dict):
            raise Unprocessable(f"the item is {kind_of(value)}", expected=EXPECTED)
        for name in ("question", "context"):
            text = value.get(name)
            if not isinstance(text, str):
                what = f"is {kind_of(text)}" if name in value else "is missing"
                raise Unprocessable(f"the {name} {what}", expected=EXPECTED)
            if not text.strip():
                raise Unprocessable(f"the {name} is empty", expected=EXPECTED)
            super().decode_item(text)
        return value

    def decode_request(self, request: Request) -> list[Item]:
        """The items of one request, with parameters that this model can follow."""
        items = super().decode_request(request)
        for item in items:
            item.parameters = self._wish(item.parameters)
        return items

    def preprocess(self, items: Sequence[Item]) -> list[Any]:
        """Questions and contexts to windows, a list an item."""
        questions, contexts = ([item.value[name] for item in items] for name in ("question", "context"))
        cuts = [Cut(item.parameters.max_seq_len, item.parameters.doc_stride) for item in items]
        features: list[Any] = self.windows(questions, contexts, cuts)
        for place, item in enumerate(items):
            if isinstance(features[place], list):
                item.state = [AnswerWindow.of(window, item.parameters) for window in features[place]]
                features[place] = item.state
                if not item.state[0].context.any():
                    features[place] = Unprocessable("the context has no token", expected="a context with a word")
        return features

    def collate(self, features: Sequence[Any]) -> dict[str, Any]:
        """What the model takes, and beside it which tokens may be in an answer and how much of them is wanted."""
        inputs = super().collate(features)
        context = np.zeros(inputs["input_ids"].shape, dtype=bool)
        for row, feature in zip(context, features, strict=True):
            row[: len(feature)] = feature.context
        return {
            "inputs": inputs,
            "context": torch.from_numpy(context),
            "widths": torch.tensor([feature.width for feature in features]),
            "spans": max(feature.spans for feature in features),
        }

    def inference(self, tensors: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """Windows (n, longest) to the best spans of each, (n, spans, 2) with their scores, and "no answer" (n,)."""
        moved = to_device(tensors, self.device)
        output, context = self.model(**moved["inputs"]), moved["context"]
        # The first token stands for "no answer", so it takes part; it is cls_token wherever the tokenizer has one.
        allowed = context | (moved["inputs"]["input_ids"] == self._no_answer)
        starts = position_chances(output.start_logits, allowed)
        ends = position_chances(output.end_logits, allowed)
        scores, spans = best_spans(starts, ends, context, moved["widths"], moved["spans"])
        return {"scores": scores, "spans": spans, "none": starts[:, 0] * ends[:, 0]}

    def postprocess(self, outputs: Sequence[Any], items: Sequence[Item]) -> list[Any]:
        """The best spans of each window to answers."""
        return [self._answer(rows, item) for rows, item in zip(outputs, items, strict=True)]

    def _answer(self, rows: Sequence[Mapping[str, torch.Tensor]], item: Item) -> Any:
        context, wish = item.value["context"], item.parameters
        found: dict[str, dict[str, Any]] = {}
        for row, window in zip(rows, item.state, strict=True):
            spans = zip(row["scores"][: window.spans].tolist(), row["spans"].tolist(), strict=False)
            for score, (first, last) in spans:
                if score < 0:  # the window has no more
                    break
                start, end = window.characters(first, last, whole_words=wish.align_to_words)
                text = context[start:end]
                answer = found.setdefault(text.lower(), {"score": 0.0, "start": start, "end": end, "answer": text})
                answer["score"] += score
        answers = list(found.values())
        if wish.handle_impossible_answer:
            answers.append({"score": min(float(row["none"]) for row in rows), "start": 0, "end": 0, "answer": ""})
        best = sorted(answers, key=lambda answer: -answer["score"])[: wish.top_k]
        return best[0] if wish.top_k == 1 else best

    def _wish(self, asked: QuestionAnsweringParameters) -> QuestionAnsweringParameters:
        """The parameters with what they leave out filled in.

        Raises:
            Unprocessable: windows that the model cannot take.
        """
        wish = filled(asked, self.options)
        limit = self.token_limit()
        length = wish.max_seq_len or min(limit, WINDOW)
        stride = min(length // 2, OVERLAP) if wish.doc_stride is None else wish.doc_stride
        if length > limit:
            raise Unprocessable(f"parameters.max_seq_len: {length} is over what the model takes, {limit}")
        if stride > length:
            raise Unprocessable(f"parameters.doc_stride: {stride} is over the window's length, {length}")
        return wish.model_copy(update={"max_seq_len": length, "doc_stride": stride})
