"""question-answering: the part of a context that answers a question.

Input: ``{"question": "Who …?", "context": "…"}``, or a list of these. Parameters: ``top_k``, ``max_answer_len``,
``handle_impossible_answer``, ``align_to_words``, ``max_seq_len``, ``doc_stride``. Output for each, as transformers'
pipeline until 4.57 (5 has none)::

    {"score": 0.98, "start": 11, "end": 17, "answer": "Berlin"}        with top_k over 1 a list of these, best first

A long context is read in overlapping windows. In each window a span of tokens scores the probability that the answer
starts at its first token times the probability that it ends at its last; the scores of the same words in several
windows add up (Chen et al., Reading Wikipedia to Answer Open-Domain Questions, ACL 2017, section 3.2; transformers
4.57, pipelines/question_answering.py). With ``handle_impossible_answer`` an empty answer stands for "it is not in the
context"; its score is that of the first token, in the window where it is lowest. Needs a fast tokenizer; the question
is never cut.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import numpy as np
import torch
from pydantic import Field
from torch.nn.functional import pad

from tsbatch.errors import SettingsError, Unprocessable
from tsbatch.protocol.fields import kind_of
from tsbatch.protocol.request import Item
from tsbatch.settings import Section
from tsbatch.tasks.shared.schemas import INTEGER, NUMBER, STRING, object_of
from tsbatch.tasks.shared.task_handler import with_defaults
from tsbatch.tasks.text.handler import EXAMPLES
from tsbatch.tasks.text.token_features import Ids
from tsbatch.tasks.text.windows import Cut, Window, WindowHandler
from tsbatch.worker.resources import to_device

EXPECTED = '{"question": "...", "context": "..."}'
CELLS = 4_000_000
"""Spans that are scored at once; their float32 scores take 16 MB."""
WINDOW, OVERLAP = 384, 128
"""Tokens of a window, and those that it shares with the previous one, unless the model takes fewer."""


class QuestionAnsweringOptions(Section):
    """The section ``handler:`` of model-config.yaml: defaults for the parameters of a request."""

    max_seq_len: int | None = Field(default=None, ge=4, description="tokens of a window, with those of the question")
    doc_stride: int | None = Field(default=None, ge=0, description="tokens that windows share")
    max_answer_len: int = Field(default=15, ge=1, description="tokens of an answer")
    handle_impossible_answer: bool = False


class QuestionAnsweringParameters(Section):
    """Parameters of a request; by default those of the archive's model-config.yaml.

    Attributes:
        top_k: the number of answers; fewer if the context does not have so many.
        max_answer_len: the longest answer in tokens.
        handle_impossible_answer: allow the answer that there is none.
        align_to_words: answer with whole words; false is better for languages without spaces.
        max_seq_len: tokens of a window, with those of the question; 384 if the model takes so many.
        doc_stride: tokens of the context that windows share; 128, or half of a smaller window.
    """

    top_k: int = Field(default=1, ge=1, le=100)
    max_answer_len: int | None = Field(default=None, ge=1)
    handle_impossible_answer: bool | None = None
    align_to_words: bool = True
    max_seq_len: int | None = Field(default=None, ge=4)
    doc_stride: int | None = Field(default=None, ge=0)

    @property
    def spans(self) -> int:
        """The number of spans to find in each window: aligned to words, some become the same answer."""
        return 2 * self.top_k + 10 if self.align_to_words else self.top_k


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class AnswerWindow(Window):
    """A window of a question and its context.

    Attributes:
        context: whether each token belongs to the context, shape (length,).
        width: the largest number of tokens of an answer.
        spans: the number of spans to find.
    """

    context: Ids
    width: int
    spans: int

    @classmethod
    def of(cls, window: Window, parameters: QuestionAnsweringParameters) -> AnswerWindow:
        """Combine a window with what a request asks for."""
        context = np.array([text == 1 for text in window.encoding.sequence_ids], dtype=bool)
        width = min(cast(int, parameters.max_answer_len), len(window))  # a client's number may not fit in a tensor
        return cls(window.ids, window.types, window.encoding, context=context, width=width, spans=parameters.spans)

    def characters(self, first: int, last: int, *, whole_words: bool) -> tuple[int, int]:
        """Start and end of a span of tokens in the context; those of its words, if the tokenizer knows words."""
        start, end = (self._word(token) if whole_words else None for token in (first, last))
        if start is None or end is None:
            start, end = self.encoding.offsets[first], self.encoding.offsets[last]
        return start[0], end[1]

    def _word(self, token: int) -> tuple[int, int] | None:
        """Start and end of the word that a token belongs to; None if the tokenizer does not know it."""
        word = self.encoding.token_to_word(token)
        return None if word is None else self.encoding.word_to_chars(word, sequence_index=1)


class QuestionAnsweringHandler(WindowHandler):
    """Finds answers in contexts. See the module for input, output and parameters."""

    task: ClassVar[str] = "question-answering"
    item_keys: ClassVar[frozenset[str]] = frozenset({"question", "context"})
    input_schema: ClassVar[Any] = object_of({"question": STRING, "context": STRING})
    output_schema: ClassVar[Any] = object_of(
        {"score": NUMBER, "start": INTEGER, "end": INTEGER, "answer": STRING},
        description="with top_k over 1 a list of these",
    )
    parameters_class: ClassVar[Any] = QuestionAnsweringParameters
    settings_class: ClassVar[Any] = QuestionAnsweringOptions
    auto_class: ClassVar[str] = "AutoModelForQuestionAnswering"

    def prepare(self) -> None:
        """Check that the windows of model-config.yaml fit the model."""
        cls = self.tokenizer.cls_token_id
        self._no_answer = -1 if cls is None else cls
        try:
            self._complete(QuestionAnsweringParameters())
        except Unprocessable as error:
            raise SettingsError(f"model-config.yaml: {error.message.replace('parameters.', 'handler.')}") from None

    def examples(self) -> list[dict[str, str]]:
        """Contexts of typical lengths."""
        return [self.example(text) for text in EXAMPLES]

    def example(self, text: str) -> dict[str, Any]:
        """Return a question about this context."""
        return {"question": "What is it about?", "context": text}

    def decode_item(self, value: Any) -> dict[str, str]:
        """Check a question and a context.

        Raises:
            Unprocessable: one is missing, empty or not a text.
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

    def check_item(self, item: Item) -> None:
        """Complete the item's parameters, and check that this model can follow them."""
        item.parameters = self._complete(item.parameters)

    def preprocess(self, items: Sequence[Item]) -> list[Any]:
        """Divide questions and contexts into windows: for each item a list, or its error."""
        questions, contexts = ([item.value[name] for item in items] for name in ("question", "context"))
        cuts = [Cut(item.parameters.max_seq_len, item.parameters.doc_stride) for item in items]
        features: list[Any] = self.windows(questions, contexts, cuts)
        for index, item in enumerate(items):
            if isinstance(features[index], list):
                item.state = [AnswerWindow.of(window, item.parameters) for window in features[index]]
                features[index] = item.state
                if not item.state[0].context.any():
                    features[index] = Unprocessable("the context has no token", expected="a context with a word")
        return features

    def collate(self, features: Sequence[Any]) -> dict[str, Any]:
        """The model's inputs, which tokens may be in an answer, and how many spans of what width to find."""
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
        """Find the best spans of each window, (n, spans, 2) with their scores, and the score of "no answer" (n,)."""
        moved = to_device(tensors, self.device)
        output, context = self.model(**moved["inputs"]), moved["context"]
        # The first token stands for "no answer", so it is allowed; it is cls_token if the tokenizer has one.
        allowed = context | (moved["inputs"]["input_ids"] == self._no_answer)
        starts = position_probabilities(output.start_logits, allowed)
        ends = position_probabilities(output.end_logits, allowed)
        scores, spans = best_spans(starts, ends, context, moved["widths"], moved["spans"])
        return {"scores": scores, "spans": spans, "none": starts[:, 0] * ends[:, 0]}

    def postprocess(self, outputs: Sequence[Any], items: Sequence[Item]) -> list[Any]:
        """Turn the best spans of each window into answers."""
        return [self._answer(rows, item) for rows, item in zip(outputs, items, strict=True)]

    def _answer(self, rows: Sequence[Mapping[str, torch.Tensor]], item: Item) -> Any:
        context, parameters = item.value["context"], item.parameters
        found: dict[str, dict[str, Any]] = {}
        for row, window in zip(rows, item.state, strict=True):
            spans = zip(row["scores"][: window.spans].tolist(), row["spans"].tolist(), strict=False)
            for score, (first, last) in spans:
                if score < 0:  # the window has no more spans
                    break
                start, end = window.characters(first, last, whole_words=parameters.align_to_words)
                text = context[start:end]
                answer = found.setdefault(text.lower(), {"score": 0.0, "start": start, "end": end, "answer": text})
                answer["score"] += score
        answers = list(found.values())
        if parameters.handle_impossible_answer:
            answers.append({"score": min(float(row["none"]) for row in rows), "start": 0, "end": 0, "answer": ""})
        best = sorted(answers, key=lambda answer: -answer["score"])[: parameters.top_k]
        return best[0] if parameters.top_k == 1 else best

    def _complete(self, asked: QuestionAnsweringParameters) -> QuestionAnsweringParameters:
        """The parameters with defaults for those that are missing.

        Raises:
            Unprocessable: the model cannot take such windows.
        """
        parameters = with_defaults(asked, self.options)
        limit = self.token_limit()
        length = parameters.max_seq_len or min(limit, WINDOW)
        stride = min(length // 2, OVERLAP) if parameters.doc_stride is None else parameters.doc_stride
        if length > limit:
            raise Unprocessable(f"parameters.max_seq_len: {length} is over the model's limit of {limit}")
        if stride > length:
            raise Unprocessable(f"parameters.doc_stride: {stride} is over the window's length, {length}")
        return parameters.model_copy(update={"max_seq_len": length, "doc_stride": stride})


def position_probabilities(logits: torch.Tensor, allowed: torch.Tensor) -> torch.Tensor:
    """Probabilities over each row's allowed tokens, 0 for the others, from logits (n, tokens)."""
    return torch.softmax(logits.float().masked_fill(~allowed, -torch.inf), dim=-1)


def best_spans(
    starts: torch.Tensor, ends: torch.Tensor, context: torch.Tensor, widths: torch.Tensor, count: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The best spans of each row.

    Args:
        starts: the probability that an answer starts at a token, shape (n, tokens).
        ends: the probability that an answer ends at a token, shape (n, tokens).
        context: whether an answer may start and end at a token, shape (n, tokens).
        widths: the largest number of tokens of an answer, shape (n,).
        count: the number of spans to return.

    Returns:
        Scores, shape (n, count, or fewer if there cannot be so many), best first, -1 where a row has no more; and
        the first and last token of each, shape (n, count, 2).
    """
    longest = starts.shape[1]
    widest = min(int(widths.max()), longest)
    step = max(1, CELLS // (longest * widest))
    parts = []
    for begin in range(0, len(starts), step):
        rows = slice(begin, begin + step)
        parts.append(_best(starts[rows], ends[rows], context[rows], widths[rows], widest, min(count, longest * widest)))
    return torch.cat([scores for scores, _ in parts]), torch.cat([spans for _, spans in parts])


def _best(
    starts: torch.Tensor, ends: torch.Tensor, context: torch.Tensor, widths: torch.Tensor, widest: int, count: int
) -> tuple[torch.Tensor, torch.Tensor]:
    # Entry (row, token, more) is the span from a token to the one ``more`` positions later.
    ends, ended = (pad(tensor, (0, widest - 1)).unfold(1, widest, 1) for tensor in (ends, context))
    short = torch.arange(widest, device=widths.device) < widths[:, None, None]
    scores = (starts[..., None] * ends).masked_fill(~(context[..., None] & ended & short), -1)
    best, positions = scores.flatten(1).topk(count)
    first = positions // widest
    return best, torch.stack([first, first + positions % widest], dim=-1)
