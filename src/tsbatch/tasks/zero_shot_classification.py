"""zero-shot-classification: how well labels of the client's own fit a text, from a model of textual entailment.

Input: a text, or a list of texts. Parameters: ``candidate_labels`` (a list, or one string with commas; needed),
``hypothesis_template``, ``multi_label``. Output for each text, best label first, as transformers' pipeline has it::

    {"sequence": "…", "labels": ["travel", "cooking"], "scores": [0.93, 0.07]}

Each label makes a pair for the model, the text and the template filled with the label; the pairs of all requests share
forward passes. A text that is too long is cut, the label never.
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from pydantic import Field, field_validator

from tsbatch.errors import LoadError, PayloadTooLarge, Unprocessable
from tsbatch.protocol.request import Item, Request
from tsbatch.settings import Section
from tsbatch.tasks.shared.class_names import class_names
from tsbatch.tasks.shared.classification import Array, softmax
from tsbatch.tasks.shared.pretrained_folder import some
from tsbatch.tasks.text.handler import EXAMPLES
from tsbatch.tasks.text.sequence_classification import SequenceClassificationHandler, check_pairs, spans

LONGEST = 1000
"""Characters of a label, and of a template."""
Label = Annotated[str, Field(max_length=LONGEST)]


class ZeroShotOptions(Section):
    """The section ``handler:`` of model-config.yaml.

    Attributes:
        max_labels: the most candidate labels of one text.
        entailment: the model's own label for a text that says what the hypothesis does; by default the one that begins
            with ``entail``.
    """

    max_labels: int = Field(default=128, ge=1, description="candidate labels of one text; each is a forward pass's row")
    entailment: str | None = None


class ZeroShotParameters(Section):
    """What a request asks for.

    Attributes:
        candidate_labels: the labels to choose from.
        hypothesis_template: what is said of the text, with ``{}`` for the label.
        multi_label: score each label by itself, instead of all of them to a sum of 1.
    """

    candidate_labels: list[Label] | str
    hypothesis_template: str = Field(default="This example is {}.", max_length=LONGEST)
    multi_label: bool = False

    @field_validator("candidate_labels")
    @classmethod
    def _listed(cls, labels: list[str] | str) -> list[str]:
        if isinstance(labels, str):
            labels = [label.strip() for label in labels.split(",") if label.strip()]
        if not labels:
            raise ValueError("there must be at least one label")
        if max(map(len, labels)) > LONGEST:
            raise ValueError(f"a label may have at most {LONGEST} characters")
        return labels

    @field_validator("hypothesis_template")
    @classmethod
    def _one_place(cls, template: str) -> str:
        _split_at_label(template)
        return template

    def hypotheses(self) -> list[str]:
        """The template, filled with each label."""
        before, after = _split_at_label(self.hypothesis_template)
        return [before + label + after for label in self.candidate_labels]


def _split_at_label(template: str) -> tuple[str, str]:
    """What stands before and after the label, read as ``str.format`` does.

    Its further syntax is refused: it reaches attributes of Python objects and makes texts of any length.
    """
    pieces, places = [""], 0
    for text, name, form, conversion in string.Formatter().parse(template):
        pieces[-1] += text
        if name is not None:
            if name not in ("", "0") or form or conversion:
                raise ValueError("{} is the only field that it may have")
            pieces.append("")
            places += 1
    if places != 1:
        raise ValueError("it must have {} once, where the label goes")
    return pieces[0], pieces[1]


def _entails(label: str, asked: str | None) -> bool:
    return label.lower().startswith("entail") if asked is None else label == asked


class ZeroShotClassificationHandler(SequenceClassificationHandler):
    """Scores labels of the client's own. See the module for input, output and parameters."""

    task: ClassVar[str] = "zero-shot-classification"
    input_schema: ClassVar[Any] = {"type": "string"}
    output_schema: ClassVar[Any] = {
        "type": "object",
        "required": ["sequence", "labels", "scores"],
        "properties": {
            "sequence": {"type": "string"},
            "labels": {"type": "array", "items": {"type": "string"}},
            "scores": {"type": "array", "items": {"type": "number"}},
        },
    }
    parameters_class: ClassVar[Any] = ZeroShotParameters
    settings_class: ClassVar[Any] = ZeroShotOptions
    entailment: int

    def prepare(self) -> None:
        """Find the class that means that the text says what the label does.

        Raises:
            LoadError: there is no such class. transformers' pipeline then takes the last, which is another one in many
                models.
        """
        super().prepare()
        config = self.model.config
        if config.num_labels < 2:
            raise LoadError("config.json: num_labels is 1; zero-shot-classification needs a model of entailment")
        names = class_names(config.num_labels, folder=self.model_dir, aux=self.aux, config=config)
        places = {name: place for place, name in enumerate(names)} | (config.label2id or {})
        asked = self.options.entailment
        found = [place for name, place in places.items() if _entails(name, asked) and place in range(len(names))]
        if not found:
            wrong = "begins with 'entail'" if asked is None else f"is {asked!r}, as handler.entailment has it"
            raise LoadError(
                f"none of the model's labels, {some(list(places))}, {wrong}; say in model-config.yaml which one means "
                "that a text says so: handler: {entailment: NAME}"
            )
        self.entailment = found[0]

    def examples(self) -> Sequence[Any]:
        """Texts of the lengths that clients send, with some labels."""
        parameters = {"candidate_labels": ["sports", "politics", "science"][: self.options.max_labels]}
        return [{"text": text, "parameters": parameters} for text in EXAMPLES]

    def decode_request(self, request: Request) -> list[Item]:
        """The items of one request, each with no more labels than ``handler.max_labels``."""
        items = super().decode_request(request)
        options: ZeroShotOptions = self.options
        for item in items:
            count = len(item.parameters.candidate_labels)
            if count > options.max_labels:
                raise PayloadTooLarge(
                    f"parameters.candidate_labels has {count} labels, over the limit of {options.max_labels}",
                    expected="fewer labels, or a larger handler.max_labels in model-config.yaml",
                )
        check_pairs(sum(_pair_characters(item) for item in items))
        return items

    def preprocess(self, items: Sequence[Item]) -> list[Any]:
        """Texts to pairs of tokens: a list of one feature a label for each item, or its error."""
        hypotheses = [item.parameters.hypotheses() for item in items]
        texts = [item.value for item, own in zip(items, hypotheses, strict=True) for _ in own]
        pairs, _ = self.fit(texts, [label for own in hypotheses for label in own], truncation="only_first")
        features = [pairs[span] for span in spans([len(own) for own in hypotheses])]
        return [next((pair for pair in own if isinstance(pair, Unprocessable)), own) for own in features]

    def postprocess(self, outputs: Sequence[Sequence[torch.Tensor]], items: Sequence[Item]) -> list[dict[str, Any]]:
        """Logits (classes,) of every pair to the labels of each item."""
        logits = torch.stack([row for own in outputs for row in own]).numpy()
        against = -1 if self.entailment == 0 else 0
        alone = softmax(logits[:, [against, self.entailment]])[:, 1]
        together = logits[:, self.entailment]
        results = []
        for item, span in zip(items, spans([len(own) for own in outputs]), strict=True):
            single = item.parameters.multi_label or len(item.parameters.candidate_labels) == 1
            results.append(_ranked(item, alone[span] if single else softmax(together[span])))
        return results


def _pair_characters(item: Item) -> int:
    labels, template = item.parameters.candidate_labels, item.parameters.hypothesis_template
    return len(labels) * (len(item.value) + len(template)) + sum(map(len, labels))


def _ranked(item: Item, scores: Array) -> dict[str, Any]:
    order = np.argsort(scores, kind="stable")[::-1]
    labels = item.parameters.candidate_labels
    return {"sequence": item.value, "labels": [labels[place] for place in order], "scores": scores[order]}
