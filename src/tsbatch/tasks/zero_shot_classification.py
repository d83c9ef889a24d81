"""zero-shot-classification: how well the client's own labels fit a text, from a model of textual entailment.

Input: a text, or a list of texts. Parameters: ``candidate_labels`` (a list, or one string with commas; required),
``hypothesis_template``, ``multi_label``. Output for each text, best label first, as in transformers' pipeline::

    {"sequence": "…", "labels": ["travel", "cooking"], "scores": [0.93, 0.07]}

Each label makes a pair for the model: the text, and the template filled with the label; the pairs of all requests share
forward passes. A text that is too long is cut, the label never.
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from pydantic import Field, field_validator

from tsbatch.errors import LoadError, Unprocessable
from tsbatch.protocol.request import Item, Request
from tsbatch.settings import Section
from tsbatch.tasks.shared.classification import softmax
from tsbatch.tasks.shared.schemas import NUMBER, STRING, array_of, object_of
from tsbatch.tasks.shared.task_handler import abbreviate, check_count
from tsbatch.tasks.text.handler import EXAMPLES
from tsbatch.tasks.text.sequence_classification import SequenceClassificationHandler, check_pairs, spans

MAX_CHARACTERS = 1000
"""Characters of a label, and of a template."""
Label = Annotated[str, Field(max_length=MAX_CHARACTERS)]


class ZeroShotOptions(Section):
    """The section ``handler:`` of model-config.yaml.

    Attributes:
        max_labels: the limit for candidate labels of one text.
        entailment: the model's label for a text that entails the hypothesis; by default the one that begins with
            ``entail``.
    """

    max_labels: int = Field(default=128, ge=1, description="candidate labels of one text; each is one row of a pass")
    entailment: str | None = None


class ZeroShotParameters(Section):
    """Parameters of a request.

    Attributes:
        candidate_labels: the labels to choose from.
        hypothesis_template: a sentence about the text, with ``{}`` for the label.
        multi_label: score each label independently, instead of all with a sum of 1.
    """

    candidate_labels: list[Label] | str
    hypothesis_template: str = Field(default="This example is {}.", max_length=MAX_CHARACTERS)
    multi_label: bool = False

    @field_validator("candidate_labels")
    @classmethod
    def _as_list(cls, labels: list[str] | str) -> list[str]:
        if isinstance(labels, str):
            labels = [label.strip() for label in labels.split(",") if label.strip()]
        if not labels:
            raise ValueError("there must be at least one label")
        if max(map(len, labels)) > MAX_CHARACTERS:
            raise ValueError(f"a label may have at most {MAX_CHARACTERS} characters")
        return labels

    @field_validator("hypothesis_template")
    @classmethod
    def _has_one_field(cls, template: str) -> str:
        _split_at_label(template)
        return template

    def hypotheses(self) -> list[str]:
        """The template filled with each label."""
        before, after = _split_at_label(self.hypothesis_template)
        return [before + label + after for label in self.candidate_labels]


def _split_at_label(template: str) -> tuple[str, str]:
    """The parts before and after the label, parsed as by ``str.format``.

    Further format syntax is refused: it reaches attributes of Python objects and makes texts of any length.
    """
    pieces = [""]
    for text, name, form, conversion in string.Formatter().parse(template):
        pieces[-1] += text
        if name is not None:
            if name not in ("", "0") or form or conversion:
                raise ValueError("{} is the only field that it may have")
            pieces.append("")
    if len(pieces) != 2:
        raise ValueError("it must have {} once, where the label goes")
    return pieces[0], pieces[1]


class ZeroShotClassificationHandler(SequenceClassificationHandler):
    """Scores the client's own labels. See the module for input, output and parameters."""

    task: ClassVar[str] = "zero-shot-classification"
    output_schema: ClassVar[Any] = object_of(
        {"sequence": STRING, "labels": array_of(STRING), "scores": array_of(NUMBER)}
    )
    parameters_class: ClassVar[Any] = ZeroShotParameters
    settings_class: ClassVar[Any] = ZeroShotOptions
    entailment: int

    def prepare(self) -> None:
        """Find the class that means that the text entails the hypothesis.

        Raises:
            LoadError: there is no such class. transformers' pipeline would then take the last one, which is wrong for
                many models.
        """
        super().prepare()
        config = self.model.config
        if config.num_labels < 2:
            raise LoadError("config.json: num_labels is 1; zero-shot-classification needs a model of entailment")
        names = self.read_class_names()
        indices = {name: index for index, name in enumerate(names)} | (config.label2id or {})
        asked = self.options.entailment
        found = [
            index
            for name, index in indices.items()
            if (name.lower().startswith("entail") if asked is None else name == asked) and index in range(len(names))
        ]
        if not found:
            wrong = "begins with 'entail'" if asked is None else f"is {asked!r}, as handler.entailment says"
            raise LoadError(
                f"none of the model's labels, {abbreviate(list(indices))}, {wrong}; name the one that means "
                "entailment in model-config.yaml: handler: {entailment: NAME}"
            )
        self.entailment = found[0]

    def examples(self) -> Sequence[Any]:
        """Texts of typical lengths, with some labels."""
        return [self.example(text) for text in EXAMPLES]

    def example(self, text: str) -> dict[str, Any]:
        """Return the text with some labels."""
        parameters = {"candidate_labels": ["sports", "politics", "science"][: self.options.max_labels]}
        return {"text": text, "parameters": parameters}

    def check_item(self, item: Item) -> None:
        """Refuse more labels than ``handler.max_labels``."""
        count = len(item.parameters.candidate_labels)
        check_count("parameters.candidate_labels", "labels", count, self.options.max_labels, "handler.max_labels")

    def decode_request(self, request: Request) -> list[Item]:
        """Decode the items of one request, if their pairs are not too long together."""
        items, characters = super().decode_request(request), 0
        for item in items:
            labels, template = item.parameters.candidate_labels, item.parameters.hypothesis_template
            characters += len(labels) * (len(item.value) + len(template)) + sum(map(len, labels))
        check_pairs(characters)
        return items

    def preprocess(self, items: Sequence[Item]) -> list[Any]:
        """Tokenize texts and hypotheses as pairs: for each item a list with one feature a label, or its error."""
        hypotheses = [item.parameters.hypotheses() for item in items]
        texts = [item.value for item, own in zip(items, hypotheses, strict=True) for _ in own]
        pairs, _ = self.fit(texts, [label for own in hypotheses for label in own], truncation="only_first")
        features = [pairs[span] for span in spans([len(own) for own in hypotheses])]
        return [next((pair for pair in own if isinstance(pair, Unprocessable)), own) for own in features]

    def postprocess(self, outputs: Sequence[Sequence[torch.Tensor]], items: Sequence[Item]) -> list[dict[str, Any]]:
        """Rank each item's labels by the logits (classes,) of its pairs."""
        logits = torch.stack([row for own in outputs for row in own]).numpy()
        contradiction = -1 if self.entailment == 0 else 0
        independent = softmax(logits[:, [contradiction, self.entailment]])[:, 1]
        entailment = logits[:, self.entailment]
        results = []
        for item, span in zip(items, spans([len(own) for own in outputs]), strict=True):
            single = item.parameters.multi_label or len(item.parameters.candidate_labels) == 1
            scores = independent[span] if single else softmax(entailment[span])
            order = np.argsort(scores, kind="stable")[::-1]
            labels = [item.parameters.candidate_labels[index] for index in order]
            results.append({"sequence": item.value, "labels": labels, "scores": scores[order]})
        return results
