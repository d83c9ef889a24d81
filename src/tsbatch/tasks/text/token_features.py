"""Token ids as features: one text or a pair of texts for the model, and their padding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

Ids = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True, eq=False)
class Tokens:
    """What a text, or a pair of texts, is for the model.

    Attributes:
        ids: token ids, shape (length,), int64.
        types: which text each token is of, shape (length,), int64; None for a model without token types.
    """

    ids: Ids
    types: Ids | None = None

    def __len__(self) -> int:
        return len(self.ids)


def pad(
    features: Sequence[Tokens | Ids], *, padding: int = 0, type_padding: int = 0, left: bool = False
) -> dict[str, torch.Tensor]:
    """Features to tensors of shape (n, longest), padded on the right.

    Args:
        features: tokens, or bare arrays of ids.
        padding: the id that fills up.
        type_padding: the token type that fills up.
        left: pad on the left, for a model that goes on after the last token.

    Returns:
        ``input_ids`` and ``attention_mask``, and ``token_type_ids`` where the features have types.
    """
    counts = np.fromiter((len(feature) for feature in features), dtype=np.int64, count=len(features))
    tokens = [feature if isinstance(feature, Tokens) else Tokens(feature) for feature in features]
    longest = int(counts.max())
    places = np.arange(longest)
    mask = (places[::-1] if left else places) < counts[:, None]
    padded = {
        "input_ids": _filled([entry.ids for entry in tokens], mask, padding),
        "attention_mask": torch.from_numpy(mask.astype(np.int64)),
    }
    types = [entry.types for entry in tokens if entry.types is not None]
    if len(types) == len(tokens):
        padded["token_type_ids"] = _filled(types, mask, type_padding)
    return padded


def _filled(rows: Sequence[Ids], mask: np.ndarray[Any, Any], filler: int) -> torch.Tensor:
    table = np.full(mask.shape, filler, dtype=np.int64)
    table[mask] = np.concatenate(rows)  # both go row by row
    return torch.from_numpy(table)
