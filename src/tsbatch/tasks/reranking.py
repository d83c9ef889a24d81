"""reranking: how well passages answer a query, from any cross-encoder with one class.

Input, named as in Hugging Face's text-embeddings-inference and in Cohere's API, or a list of these::

    {"query": "…", "texts": ["…", "…"]}        or "passages", or "documents"

Parameters, next to them or under ``parameters``: ``raw_scores``, ``return_text`` (``return_documents``), ``top_n``,
``truncate``. Output, best passage first, with its index in the request::

    [{"index": 1, "score": 0.98}, {"index": 0, "score": 0.02}]

Scores are those of sentence-transformers' ``CrossEncoder.predict``: a folder that it saved may have an activation of
its own, and a prompt before the query (``tasks/text/cross_encoder.py``).

Each passage makes a pair for the model; the pairs of all requests share forward passes. In a pair that is too long
the longer text is cut first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field

from tsbatch.errors import LoadError, Unprocessable
from tsbatch.protocol.fields import list_names
from tsbatch.protocol.request import Item, Request
from tsbatch.settings import Section
from tsbatch.tasks.shared.classification import Array
from tsbatch.tasks.shared.schemas import INTEGER, NUMBER, STRING, array_of, object_of
from tsbatch.tasks.shared.task_handler import check_count
from tsbatch.tasks.text.cross_encoder import CrossEncoderSettings, read_cross_encoder
from tsbatch.tasks.text.handler import EXAMPLES
from tsbatch.tasks.text.sequence_classification import SequenceClassificationHandler, check_pairs, spans
from tsbatch.tasks.text.token_features import Tokens, lower_case

PASSAGES = ("texts", "passages", "documents")
EXPECTED = '{"query": "...", "texts": ["...", "..."]}'


class RerankingOptions(Section):
    """The section ``handler:`` of model-config.yaml."""

    max_passages: int = Field(default=512, ge=1, description="passages of one query; each is a row of a forward pass")


class RerankingParameters(Section):
    """Parameters of a request.

    Attributes:
        raw_scores: answer with the model's logits, instead of scores (sigmoid, or the folder's activation).
        return_text: include the passages in the answer.
        return_documents: the same, under Cohere's name.
        top_n: answer with only this many passages.
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
    input_schema: ClassVar[Any] = object_of({"query": STRING, "texts": array_of(STRING)})
    output_schema: ClassVar[Any] = array_of(object_of({"index": INTEGER, "score": NUMBER}, {"text": STRING}))
    parameters_class: ClassVar[Any] = RerankingParameters
    settings_class: ClassVar[Any] = RerankingOptions
    cross_encoder: CrossEncoderSettings

    def prepare(self) -> None:
        """Refuse a model that has not exactly one class, and read what CrossEncoder saved beside it.

        Raises:
            LoadError: the model has several classes, or a setting that tsbatch does not know.
        """
        super().prepare()
        count = self.model.config.num_labels
        if count != 1:
            raise LoadError(f"config.json: the model has {count} classes; reranking needs a cross-encoder with one")
        self.cross_encoder = read_cross_encoder(self.model_dir)
        if self.cross_encoder.max_length:
            self.tokenizer.model_max_length = self.cross_encoder.max_length
        if self.cross_encoder.lower:
            lower_case(self.tokenizer)

    def examples(self) -> Sequence[Any]:
        """A query with passages of typical lengths."""
        return [{"query": EXAMPLES[0], "texts": list(EXAMPLES[: self.options.max_passages])}]

    def example(self, text: str) -> dict[str, Any]:
        """Return a query with this passage."""
        return {"query": EXAMPLES[0], "texts": [text]}

    def check_item(self, item: Item) -> None:
        """Move parameters that were given next to the query to where they belong."""
        found = {key: item.value.pop(key) for key in list(item.value) if key in RerankingParameters.model_fields}
        if found:
            item.parameters = self._parameters({**item.parameters.model_dump(exclude_unset=True), **found})

    def decode_request(self, request: Request) -> list[Item]:
        """Decode the items of one request, if their texts are not too long together."""
        items = super().decode_request(request)
        check_pairs(sum(len(item.value["query"]) + len(text) for item in items for text in item.value["texts"]))
        return items

    def decode_item(self, value: Any) -> dict[str, Any]:
        """Check a query and its passages; they come back as ``query`` and ``texts``, with the parameters next to them.

        Raises:
            Unprocessable: the query or the passages are missing or not texts, or there is an unknown key.
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
        check_count(found[0], "passages", len(texts), self.options.max_passages, "handler.max_passages")
        for text in (given["query"], *texts):
            super().decode_item(text)
        return {**{key: part for key, part in given.items() if key not in PASSAGES}, "texts": texts}

    def preprocess(self, items: Sequence[Item]) -> list[Any]:
        """Tokenize queries and passages as pairs: for each item a list with one feature a passage, or its error."""
        passages = [text for item in items for text in item.value["texts"]]
        queries = [self.cross_encoder.prompt + item.value["query"] for item in items for _ in item.value["texts"]]
        pairs, counts = self.fit(queries, passages)
        all_spans = spans([len(item.value["texts"]) for item in items])
        return [self._checked(item, pairs[span], counts[span]) for item, span in zip(items, all_spans, strict=True)]

    def postprocess(self, outputs: Sequence[Sequence[torch.Tensor]], items: Sequence[Item]) -> list[Any]:
        """Rank each item's passages by the logits (1,) of its pairs."""
        joined = torch.cat([row for own in outputs for row in own])
        logits, scores = joined.numpy(), self.cross_encoder.activation(joined[:, None])[:, 0].numpy()
        all_spans = spans([len(own) for own in outputs])
        return [_ranking(item, logits[span], scores[span]) for item, span in zip(items, all_spans, strict=True)]

    def _checked(
        self, item: Item, pairs: list[Tokens | Unprocessable], counts: Sequence[int]
    ) -> list[Tokens | Unprocessable] | Unprocessable:
        """The item's pairs, or the error of one of them."""
        limit = self.token_limit()
        for index, (pair, count) in enumerate(zip(pairs, counts, strict=True)):
            if count > limit and not item.parameters.truncate:
                return Unprocessable(
                    f"the query and passage {index} have {count} tokens, over the model's {limit}",
                    expected='shorter ones, or "truncate": true',
                )
            if isinstance(pair, Unprocessable):
                return pair
        return pairs


def _ranking(item: Item, logits: Array, scores: Array) -> list[dict[str, Any]]:
    asked: RerankingParameters = item.parameters
    order = np.lexsort((-logits, -scores))[: asked.top_n]  # logits differ where the sigmoid rounds to 1
    chosen = logits if asked.raw_scores else scores
    texts = item.value["texts"] if asked.return_text or asked.return_documents else None
    return [{"index": int(row), **({"text": texts[row]} if texts else {}), "score": chosen[row]} for row in order]
