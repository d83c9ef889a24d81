"""text-classification: labels for a text or a pair of texts, from any transformers sequence classifier.

Input: a text, ``{"text": "…", "text_pair": "…"}``, or a list of these. Parameters: ``top_k``, ``function_to_apply``,
``truncate``; for explanations ``target``, ``n_steps``. Output for each item, as transformers' pipeline has it::

    {"label": "sports", "score": 0.98}
    [{"label": "sports", "score": 0.98}, {"label": "politics", "score": 0.01}]        with top_k

A text that is too long is cut; of a pair the longer text first. ``/explanations`` shows how much each token contributed
to a label's logit (``tasks/text/token_attributions.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from pydantic import Field

from tsbatch.errors import Unprocessable
from tsbatch.protocol.request import Item
from tsbatch.tasks.shared.attributions import ExplainingParameters
from tsbatch.tasks.shared.classification import (
    LABEL_SCHEMA,
    LABELS_SCHEMA,
    Classifier,
    ClassifyingParameters,
    default_function,
)
from tsbatch.tasks.shared.grouping import map_groups
from tsbatch.tasks.shared.schemas import STRING, object_of
from tsbatch.tasks.text.handler import length_error
from tsbatch.tasks.text.sequence_classification import SequenceClassificationHandler
from tsbatch.tasks.text.token_attributions import EXPLANATION_SCHEMA, explain_tokens
from tsbatch.tasks.text.token_features import Tokens


class TextClassificationParameters(ClassifyingParameters, ExplainingParameters):
    """Parameters of a request.

    Attributes:
        truncate: false to get a 422 for a text that is too long, instead of the labels of its beginning.
    """

    truncate: bool = Field(default=True, description="cut a text that is too long; false: answer it with a 422")


class TextClassificationHandler(Classifier, SequenceClassificationHandler):
    """Classifies texts and pairs of texts. See the module for input, output and parameters."""

    task: ClassVar[str] = "text-classification"
    item_keys: ClassVar[frozenset[str]] = frozenset({"text", "text_pair"})
    input_schema: ClassVar[Any] = {
        "oneOf": [STRING, object_of({"text": STRING}, {"text_pair": STRING}, additionalProperties=False)]
    }
    output_schema: ClassVar[Any] = {"oneOf": [LABEL_SCHEMA, LABELS_SCHEMA]}
    explanation_schema: ClassVar[Any] = EXPLANATION_SCHEMA
    parameters_class: ClassVar[Any] = TextClassificationParameters

    def prepare(self) -> None:
        """Read the names of the classes, and choose the function that turns logits into scores."""
        super().prepare()
        self.names = self.read_class_names()
        self.default_function = default_function(self.model.config, len(self.names))

    def decode_item(self, value: Any) -> str | tuple[str, str]:
        """Check a text, or a text and its pair.

        Raises:
            Unprocessable: an object that is not these two texts.
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
        """Tokenize the texts: for each item its tokens, or its error."""
        return map_groups(items, [isinstance(item.value, tuple) for item in items], self._tokens)

    def explain_items(self, items: Sequence[Item]) -> list[Any]:
        """Show how much each token contributed to a label's logit; see ``tasks/text/token_attributions.py``.

        Raises:
            NotSupported: this engine or model does not support it, or Captum is missing.
        """
        return explain_tokens(self, items, self.preprocess(items))

    def _tokens(self, items: Sequence[Item]) -> list[Tokens | Unprocessable]:
        """The tokens of items that are all texts, or all pairs."""
        values, limit = [item.value for item in items], self.token_limit()
        tokens, counts = self.fit(*zip(*values, strict=True)) if isinstance(values[0], tuple) else self.fit(values)
        return [
            length_error(count, limit, cut=item.parameters.truncate) or own
            for own, count, item in zip(tokens, counts, items, strict=True)
        ]
