"""reranking: how well passages answer a query, from any cross-encoder with one class.

Input, in the words of Hugging Face's text-embeddings-inference and of Cohere's API, or a list of these::

    {"query": "…", "texts": ["…", "…"]}        or "passages", or "documents"

Parameters, beside them or under ``parameters``: ``raw_scores``, ``return_text`` (``return_documents``), ``top_n``,
``truncate``. Output, best passage first, with its place in the request::

    [{"index": 1, "score": 0.98}, {"index": 0, "score": 0.02}]

Each passage makes a pair for the model; the pairs of all requests share forward passes. A pair that is too long is cut,
the longer text first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field

from tsbatch.errors import LoadError, PayloadTooLarge, Unprocessable
from tsbatch.protocol.fields import list_names
from tsbatch.protocol.request import Item, Request
from tsbatch.settings import Section
from tsbatch.tasks.shared.classification import Array, sigmoid
from tsbatch.tasks.text.handler import EXAMPLES
from tsbatch.tasks.text.sequence_classification import SequenceClassificationHandler, check_pairs, spans
from tsbatch.tasks.text.token_features import Tokens

PASSAGES = ("texts", "passages", "documents")
EXPECTED = '{"query": "...", "texts": ["...", "..."]}'


class RerankingOptions(Section):
    """The section ``handler:`` of model-config.yaml."""

    max_passages: int = Field(default=512, ge=1, description="passages of one query; each is a forward pass's row")


class RerankingParameters(Section):
    """What a request may ask for.

    Attributes:
        raw_scores: the model's logits, instead of numbers from 0 to 1 (sigmoid).
        return_text: answer with the passages too.
        return_documents: the same, by Cohere's name.
        top_n: the best so many alone.
        truncate: false to get a 422 when a pair is too long, instead of the score of its beginning.
    """

    raw_scores: bool = False
    return_text: bool = False
    return_documents: bool = False
    top_n: int | None = Field(default=None, ge=1)
    truncate: bool = True


class RerankingHandler(SequenceClassificationHandler):
    """Ranks passages by a query. See the module for input, output and parameters."""

    task: ClassVar[str] = "reranking"
    wants: ClassVar[Literal["text", "bytes", "json"]] = "json"
    item_keys: ClassVar[frozenset[str]] = frozenset({"query", *PASSAGES, *RerankingParameters.model_fields})
    input_schema: ClassVar[Any] = {
        "type": "object",
        "required": ["query", "texts"],
        "properties": {"query": {"type": "string"}, "texts": {"type": "array", "items": {"type": "string"}}},
    }
    output_schema: ClassVar[Any] = {
        "type": "array",
        "items": {
            "type": "object",
            "required": ["index", "score"],
            "properties": {"index": {"type": "integer"}, "score": {"type": "number"}, "text": {"type": "string"}},
        },
    }
    parameters_class: ClassVar[Any] = RerankingParameters
    settings_class: ClassVar[Any] = RerankingOptions

    def prepare(self) -> None:
        """Refuse a model that does not give one number.

        Raises:
            LoadError: it has several classes.
        """
        super().prepare()
        count = self.model.config.num_labels
        if count != 1:
            raise LoadError(f"config.json: the model has {count} classes; reranking needs a cross-encoder with one")

    def examples(self) -> Sequence[Any]:
        """A query with passages of the lengths that clients send."""
        return [{"query": EXAMPLES[0], "texts": list(EXAMPLES[: self.options.max_passages])}]

    def decode_request(self, request: Request) -> list[Item]:
        """The items of one request; parameters beside the query are taken as if they stood where they belong."""
        items = super().decode_request(request)
        for item in items:
            beside = {key: item.value.pop(key) for key in list(item.value) if key in RerankingParameters.model_fields}
            if beside:
                item.parameters = self._parameters({**item.parameters.model_dump(exclude_unset=True), **beside})
        check_pairs(sum(len(item.value["query"]) + len(text) for item in items for text in item.value["texts"]))
        return items

    def decode_item(self, value: Any) -> dict[str, Any]:
        """The query and its passages, under ``query`` and ``texts``, beside the parameters that stood there.

        Raises:
            Unprocessable: one of the two is missing or no text, or there is a key that is not known.
            PayloadTooLarge: too many passages, or characters in one text.
        """
        given = value if isinstance(value, dict) else {}
        unknown = given.keys() - self.item_keys - {"parameters"}
        if unknown:
            raise Unprocessable(f"the item has unknown keys: {list_names(sorted(unknown))}", expected=EXPECTED)
        found = [key for key in PASSAGES if key in given]
        if len(found) != 1 or not isinstance(given.get("query"), str):
            raise Unprocessable("the item is not one query with its passages", expected=EXPECTED)
        texts = given[found[0]]
        if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
            raise Unprocessable(f"{found[0]} is not a list of one or more texts", expected=EXPECTED)
        most = self.options.max_passages
        if len(texts) > most:
            raise PayloadTooLarge(
                f"{found[0]} has {len(texts)} passages, over the limit of {most}",
                expected="fewer passages, or a larger handler.max_passages in model-config.yaml",
            )
        for text in (given["query"], *texts):
            super().decode_item(text)
        return {**{key: part for key, part in given.items() if key not in PASSAGES}, "texts": texts}

    def preprocess(self, items: Sequence[Item]) -> list[Any]:
        """Queries and passages to pairs of tokens: a list of one feature a passage for each item, or its error."""
        passages = [text for item in items for text in item.value["texts"]]
        queries = [item.value["query"] for item in items for _ in item.value["texts"]]
        pairs, counts = self.fit(queries, passages)
        all_spans = spans([len(item.value["texts"]) for item in items])
        return [self._checked(item, pairs[span], counts[span]) for item, span in zip(items, all_spans, strict=True)]

    def postprocess(self, outputs: Sequence[Sequence[torch.Tensor]], items: Sequence[Item]) -> list[Any]:
        """Logits (1,) of every pair to the ranking of each item."""
        logits = torch.cat([row for own in outputs for row in own]).numpy()
        scores = sigmoid(logits)
        all_spans = spans([len(own) for own in outputs])
        return [_ranking(item, logits[span], scores[span]) for item, span in zip(items, all_spans, strict=True)]

    def _checked(
        self, item: Item, pairs: list[Tokens | Unprocessable], counts: Sequence[int]
    ) -> list[Tokens | Unprocessable] | Unprocessable:
        """The item's pairs, or what is wrong with one of them."""
        most = self.token_limit()
        for place, (pair, count) in enumerate(zip(pairs, counts, strict=True)):
            if count > most and not item.parameters.truncate:
                return Unprocessable(
                    f"the query and passage {place} have {count} tokens, over the model's {most}",
                    expected='shorter ones, or "truncate": true',
                )
            if isinstance(pair, Unprocessable):
                return pair
        return pairs


def _ranking(item: Item, logits: Array, scores: Array) -> list[dict[str, Any]]:
    wish: RerankingParameters = item.parameters
    order = np.argsort(-logits, kind="stable")[: wish.top_n]  # logits tell apart what sigmoid rounds to 1
    told = logits if wish.raw_scores else scores
    texts = item.value["texts"] if wish.return_text or wish.return_documents else None
    return [{"index": int(place), **({"text": texts[place]} if texts else {}), "score": told[place]} for place in order]
