"""text-classification: labels for a text or a pair of texts, from any transformers sequence classifier.

Input: a text, ``{"text": "…", "text_pair": "…"}``, or a list of these. Parameters: ``top_k``, ``function_to_apply``,
``truncate``; for explanations ``target``, ``n_steps``. Output for each item, as transformers' pipeline has it::

    {"label": "sports", "score": 0.98}
    [{"label": "sports", "score": 0.98}, {"label": "politics", "score": 0.01}]        with top_k

A text that is too long is cut, of a pair the longer one first. ``/explanations`` tells what each token added to a
label's logit (``tasks/text/token_attributions.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from pydantic import Field

from tsbatch.errors import Unprocessable
from tsbatch.protocol.request import Item
from tsbatch.tasks.shared.attributions import ExplainingParameters
from tsbatch.tasks.shared.class_names import class_names
from tsbatch.tasks.shared.classification import (
    LABEL_SCHEMA,
    LABELS_SCHEMA,
    ClassifyingParameters,
    Function,
    classify,
    usual_function,
)
from tsbatch.tasks.text.sequence_classification import SequenceClassificationHandler
from tsbatch.tasks.text.token_attributions import EXPLANATION_SCHEMA, explain_tokens
from tsbatch.tasks.text.token_features import Tokens

PAIR = frozenset({"text", "text_pair"})


class TextClassificationParameters(ClassifyingParameters, ExplainingParameters):
    """What a request may ask for.

    Attributes:
        truncate: false to get a 422 for a text that is too long, instead of the labels of its beginning.
    """

    truncate: bool = Field(default=True, description="cut what is too long; false: a 422 for it")


class TextClassificationHandler(SequenceClassificationHandler):
    """Classifies texts and pairs of texts. See the module for input, output and parameters."""

    task: ClassVar[str] = "text-classification"
    item_keys: ClassVar[frozenset[str]] = PAIR
    input_schema: ClassVar[Any] = {
        "oneOf": [
            {"type": "string"},
            {
                "type": "object",
                "required": ["text"],
                "properties": {"text": {"type": "string"}, "text_pair": {"type": "string"}},
                "additionalProperties": False,
            },
        ]
    }
    output_schema: ClassVar[Any] = {"oneOf": [LABEL_SCHEMA, LABELS_SCHEMA]}
    parameters_class: ClassVar[Any] = TextClassificationParameters
    names: list[str]
    usual: Function

    def prepare(self) -> None:
        """Find the names of the classes, and what makes scores of their logits."""
        super().prepare()
        config = self.model.config
        self.names = class_names(config.num_labels, folder=self.model_dir, aux=self.aux, config=config)
        self.usual = usual_function(config, config.num_labels)

    def labels(self) -> list[str]:
        """The names of the classes."""
        return self.names

    def decode_item(self, value: Any) -> str | tuple[str, str]:
        """A text, or a text and its pair.

        Raises:
            Unprocessable: an object of other things than these two texts.
            PayloadTooLarge: more characters than ``tsbatch.limits.characters``.
        """
        if isinstance(value, str):
            return str(super().decode_item(value))
        text, pair = value.get("text"), value.get("text_pair")
        if not isinstance(text, str) or not isinstance(pair, str):
            expected = '{"text": "...", "text_pair": "..."}, two strings'
            raise Unprocessable("text and text_pair are not both texts", expected=expected)
        return super().decode_item(text), super().decode_item(pair)

    def preprocess(self, items: Sequence[Item]) -> list[Any]:
        """Texts to token ids: tokens an item, or its error."""
        features: list[Any] = [None] * len(items)
        for paired in (False, True):
            places = [place for place, item in enumerate(items) if isinstance(item.value, tuple) is paired]
            texts = [items[place].value for place in places]
            if texts:
                fitted, counts = self.fit(*zip(*texts, strict=True)) if paired else self.fit(texts)
                for place, feature, count in zip(places, fitted, counts, strict=True):
                    features[place] = self._checked(feature, count, items[place])
        return features

    def postprocess(self, outputs: torch.Tensor, items: Sequence[Item]) -> list[Any]:
        """Logits (n, classes) to labels, as each request asked."""
        return classify(outputs, [item.parameters for item in items], self.names, self.usual)

    def explain_items(self, items: Sequence[Item]) -> list[Any]:
        """What each token added to the logit of a label; see ``tasks/text/token_attributions.py``.

        Raises:
            NotSupported: this engine or model cannot, or Captum is missing.
        """
        return explain_tokens(self, self.names, items, self.preprocess(items))

    def describe_handle(self) -> dict[str, Any]:
        """What the task takes and gives, explanations among it, and how this model is set."""
        return {**super().describe_handle(), "explanation": dict(EXPLANATION_SCHEMA)}

    def _checked(self, feature: Tokens | Unprocessable, count: int, item: Item) -> Tokens | Unprocessable:
        if count == 0:
            return Unprocessable("the text has no token", expected="a text with at least one word")
        if count > self.token_limit() and not item.parameters.truncate:
            return Unprocessable(
                f"the text has {count} tokens, over the model's {self.token_limit()}",
                expected='a shorter text, or {"parameters": {"truncate": true}}',
            )
        return feature
