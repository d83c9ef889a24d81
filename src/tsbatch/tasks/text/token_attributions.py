"""What each token of a text added to the logit of a label: integrated gradients over token embeddings.

::

    {"label": "sports", "logit": 4.1, "baseline": 0.3, "delta": 0.001,
     "tokens": [{"token": "goal", "start": 10, "end": 14, "attribution": 2.2}, …]}

The attributions add up to ``logit - baseline + delta``. The baseline is the same text with padding in place of every
token but the special ones. ``start`` and ``end`` are characters; tokens of a pair say in ``part`` which text they are
of.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, Final

import torch

from tsbatch.errors import NotSupported, Unprocessable
from tsbatch.protocol.request import Item
from tsbatch.tasks.shared.attributions import (
    check_explains,
    check_steps,
    find_class,
    integrated_gradients,
    share_passes,
)
from tsbatch.tasks.text.handler import TextHandler
from tsbatch.tasks.text.token_features import Tokens
from tsbatch.worker.resources import to_device

PARTS: Final = ("text", "text_pair")
_TOKEN: Final[Mapping[str, Any]] = {
    "type": "object",
    "required": ["token", "start", "end", "attribution"],
    "properties": {
        "token": {"type": "string"},
        "start": {"type": "integer"},
        "end": {"type": "integer"},
        "attribution": {"type": "number"},
        "part": {"enum": list(PARTS)},
    },
}
EXPLANATION_SCHEMA: Final[Mapping[str, Any]] = {
    "type": "object",
    "required": ["label", "logit", "baseline", "delta", "tokens"],
    "properties": {
        "label": {"type": "string"},
        **{name: {"type": "number"} for name in ("logit", "baseline", "delta")},
        "tokens": {"type": "array", "items": _TOKEN},
    },
}
"""JSON Schema of one item's explanation."""


def explain_tokens(
    handler: TextHandler, names: Sequence[str], items: Sequence[Item], features: Sequence[Tokens | Unprocessable]
) -> list[Any]:
    """The explanation of each item, or the error in its place.

    Args:
        handler: a loaded handler of a classifier.
        names: the names of its classes.
        items: what to explain; ``value`` is a text, or a tuple of a text and its pair.
        features: their tokens, or errors, which are passed through.

    Raises:
        NotSupported: engine, tokenizer or model cannot, or Captum is missing.
    """
    check_explains(handler)
    if not handler.tokenizer.is_fast:
        raise NotSupported("this tokenizer does not know which characters a token is of", expected="a fast tokenizer")
    results: list[Any] = [error or own for error, own in zip(check_steps(items), features, strict=True)]
    ready = [place for place, feature in enumerate(results) if isinstance(feature, Tokens)]
    ready.sort(key=lambda place: len(results[place]))  # little padding
    unpacked = nullcontext() if handler.encoder is None else handler.encoder.switched_on(False)
    with unpacked:
        for group in share_passes([items[place].parameters.n_steps for place in ready]):
            places = [ready[member] for member in group]
            told = _explain(handler, names, [items[place] for place in places], [results[place] for place in places])
            for place, answer in zip(places, told, strict=True):
                results[place] = answer
    return results


def _explain(
    handler: TextHandler, names: Sequence[str], items: Sequence[Item], features: Sequence[Tokens]
) -> list[Any]:
    """Explanations of items that share their passes."""
    batch = to_device(TextHandler.collate(handler, features), handler.device)
    ids = batch["input_ids"]
    table = _embedding_table(handler)
    written = [_Written(handler, item) for item in items]
    blank = ids.clone()
    for row, text in zip(blank, written, strict=True):
        row[text.places] = handler.tokenizer.pad_token_id

    def forward(embeddings: torch.Tensor, *context: torch.Tensor) -> torch.Tensor:
        with _in_place_of_output(table, embeddings):
            logits: torch.Tensor = handler.model(**dict(zip(batch, context, strict=True))).logits
        return logits

    embeddings, context = table(ids), tuple(batch.values())
    with torch.no_grad():
        logits = forward(embeddings, *context)
    classes = [find_class(item.parameters.target, names, row) for item, row in zip(items, logits, strict=True)]
    told = integrated_gradients(
        forward,
        embeddings,
        table(blank),
        [0 if isinstance(found, Unprocessable) else found for found in classes],
        context=context,
        n_steps=items[0].parameters.n_steps,
    )
    shares = told.attributions.float().sum(-1).cpu()
    numbers = zip(told.values.tolist(), told.baselines.tolist(), told.deltas.tolist(), strict=True)
    return [
        found
        if isinstance(found, Unprocessable)
        else {
            "label": names[found],
            "logit": logit,
            "baseline": baseline,
            "delta": delta,
            "tokens": text.told(share[text.places].tolist()),
        }
        for found, text, share, (logit, baseline, delta) in zip(classes, written, shares, numbers, strict=True)
    ]


class _Written:
    """The tokens of an item that stand for characters of its texts: all but the special ones.

    Attributes:
        places: where they are among the tokens.
    """

    def __init__(self, handler: TextHandler, item: Item) -> None:
        text, pair = item.value if isinstance(item.value, tuple) else (item.value, None)
        encoded = handler.tokenizer(
            text, pair, truncation=True, max_length=handler.token_limit(), return_offsets_mapping=True, verbose=False
        )
        self.paired = pair is not None
        self.parts = encoded.sequence_ids(0)
        self.places = [place for place, part in enumerate(self.parts) if part is not None]
        self.tokens, self.offsets = encoded.tokens(0), encoded["offset_mapping"]

    def told(self, attributions: Sequence[float]) -> list[dict[str, Any]]:
        """The tokens with the attribution of each."""
        return [
            {
                "token": self.tokens[place],
                "start": self.offsets[place][0],
                "end": self.offsets[place][1],
                "attribution": attribution,
                **({"part": PARTS[self.parts[place]]} if self.paired else {}),
            }
            for place, attribution in zip(self.places, attributions, strict=True)
        ]


def _embedding_table(handler: TextHandler) -> torch.nn.Module:
    try:
        table: torch.nn.Module = handler.model.get_input_embeddings()
    except NotImplementedError:
        raise NotSupported(f"{type(handler.model).__name__} does not say where its embeddings are") from None
    return table


@contextmanager
def _in_place_of_output(table: torch.nn.Module, embeddings: torch.Tensor) -> Iterator[None]:
    """Have the model go on with ``embeddings``, whatever its table of them gives.

    So it still gets its token ids, where decoders look for padding.

    Raises:
        NotSupported: the model reads the table not at all or several times (encoder-decoders).
    """
    calls: list[None] = []

    def put(_module: torch.nn.Module, _args: Any, _output: torch.Tensor) -> torch.Tensor:
        calls.append(None)
        return embeddings

    hook = table.register_forward_hook(put)
    try:
        yield
    finally:
        hook.remove()
    if len(calls) != 1:
        raise NotSupported(f"this model reads its table of embeddings {len(calls)} times", expected="once")
