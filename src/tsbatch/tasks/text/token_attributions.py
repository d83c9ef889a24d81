"""Explain a label by the contribution of each token: integrated gradients over token embeddings.

::

    {"label": "sports", "logit": 4.1, "baseline": 0.3, "delta": 0.001,
     "tokens": [{"token": "goal", "start": 10, "end": 14, "attribution": 2.2}, …]}

The attributions add up to ``logit - baseline + delta``. The baseline is the same text with padding in place of every
token except the special ones. ``start`` and ``end`` count characters; for a pair, ``part`` names the text that a token
belongs to.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, Final

import torch

from tsbatch.errors import NotSupported, Unprocessable
from tsbatch.protocol.request import Item
from tsbatch.tasks.shared.attributions import (
    Array,
    check_explains,
    explain_in_passes,
    explain_inputs,
    explanation_schema,
)
from tsbatch.tasks.shared.grouping import map_groups
from tsbatch.tasks.shared.schemas import INTEGER, NUMBER, STRING, Schema, array_of, object_of
from tsbatch.tasks.text.handler import TextHandler
from tsbatch.tasks.text.token_features import Tokens
from tsbatch.worker.resources import to_device

PARTS: Final = ("text", "text_pair")
_TOKEN: Final[Schema] = object_of(
    {"token": STRING, "start": INTEGER, "end": INTEGER, "attribution": NUMBER}, {"part": {"enum": list(PARTS)}}
)
EXPLANATION_SCHEMA: Final[Mapping[str, Any]] = explanation_schema({"tokens": array_of(_TOKEN)}, {})
"""JSON Schema of one item's explanation."""


def explain_tokens(
    handler: TextHandler, items: Sequence[Item], features: Sequence[Tokens | Unprocessable]
) -> list[Any]:
    """Explain each item.

    Args:
        handler: a loaded handler of a classifier.
        items: what to explain; ``value`` is a text, or a tuple of a text and its pair.
        features: the tokens of each item, or an error, which is passed through.

    Returns:
        For each item its explanation or error.

    Raises:
        NotSupported: the engine, tokenizer or model does not support it, or Captum is missing.
    """
    check_explains(handler)
    if not handler.tokenizer.is_fast:
        message = "this tokenizer does not know the character offsets of its tokens"
        raise NotSupported(message, expected="a fast tokenizer")
    unpacked = nullcontext() if handler.encoder is None else handler.encoder.switched_on(False)
    with unpacked:
        return explain_in_passes(
            items,
            features,
            lambda items, features: _explain_unpadded(handler, items, features),
            length=len,  # little padding
        )


def _explain_unpadded(handler: TextHandler, items: Sequence[Item], features: Sequence[Tokens]) -> list[Any]:
    """Explanations of items; padding only if it does not change the model's answers."""
    keys = {"equal": [len(tokens) for tokens in features], "single": range(len(items))}
    return map_groups(
        list(zip(items, features, strict=True)),
        keys.get(handler.choice.mode, [0] * len(items)),
        lambda part: _explain(handler, *zip(*part, strict=True)),
    )


def _explain(handler: TextHandler, items: Sequence[Item], features: Sequence[Tokens]) -> list[Any]:
    """Explanations of items that share their passes."""
    batch = to_device(TextHandler.collate(handler, features), handler.device)
    ids = batch["input_ids"]
    table = _embedding_table(handler)
    texts = [_TextTokens(handler, item) for item in items]
    blank = ids.clone()
    for row, text in zip(blank, texts, strict=True):
        row[text.indices] = handler.tokenizer.pad_token_id

    def forward(embeddings: torch.Tensor, *context: torch.Tensor) -> torch.Tensor:
        with _replaced_output(table, embeddings):
            logits: torch.Tensor = handler.model(**dict(zip(batch, context, strict=True))).logits
        return logits

    return explain_inputs(
        forward,
        table(ids),
        table(blank),
        items,
        handler.names,
        context=tuple(batch.values()),
        sum_over=-1,
        details=lambda index, attributions: {"tokens": texts[index].describe(attributions)},
    )


class _TextTokens:
    """The tokens of an item that stand for characters of its texts: all but the special ones.

    Attributes:
        indices: their positions among all tokens.
    """

    def __init__(self, handler: TextHandler, item: Item) -> None:
        text, pair = item.value if isinstance(item.value, tuple) else (item.value, None)
        encoded = handler.tokenizer(
            text, pair, truncation=True, max_length=handler.token_limit(), return_offsets_mapping=True, verbose=False
        )
        self.paired = pair is not None
        self.parts = encoded.sequence_ids(0)
        self.indices = [index for index, part in enumerate(self.parts) if part is not None]
        self.tokens, self.offsets = encoded.tokens(0), encoded["offset_mapping"]

    def describe(self, attributions: Array) -> list[dict[str, Any]]:
        """The tokens with the attribution of each; ``attributions`` has one for each token, special ones included."""
        return [
            {
                "token": self.tokens[index],
                "start": self.offsets[index][0],
                "end": self.offsets[index][1],
                "attribution": float(attributions[index]),
                **({"part": PARTS[self.parts[index]]} if self.paired else {}),
            }
            for index in self.indices
        ]


def _embedding_table(handler: TextHandler) -> torch.nn.Module:
    try:
        table: torch.nn.Module = handler.model.get_input_embeddings()
    except NotImplementedError:
        raise NotSupported(f"{type(handler.model).__name__} does not give access to its embeddings") from None
    return table


@contextmanager
def _replaced_output(table: torch.nn.Module, embeddings: torch.Tensor) -> Iterator[None]:
    """Have the model continue with ``embeddings`` instead of the output of its embedding table.

    The model still gets its token ids, in which decoders look for padding.

    Raises:
        NotSupported: the model does not read the table exactly once, as encoder-decoders do not.
    """
    calls: list[None] = []

    def replace(_module: torch.nn.Module, _args: Any, _output: torch.Tensor) -> torch.Tensor:
        calls.append(None)
        return embeddings

    hook = table.register_forward_hook(replace)
    try:
        yield
    finally:
        hook.remove()
    if len(calls) != 1:
        raise NotSupported(f"this model reads its embedding table {len(calls)} times", expected="once")
