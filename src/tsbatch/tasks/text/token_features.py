"""Token ids as features of one text or a pair of texts, and their padding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

Ids = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True, eq=False)
class Tokens:
    """The tokens of a text, or of a pair of texts.

    Attributes:
        ids: token ids, shape (length,), int64.
        types: which text each token belongs to, shape (length,), int64; None for a model without token types.
    """

    ids: Ids
    types: Ids | None = None

    def __len__(self) -> int:
        return len(self.ids)


def pad(
    features: Sequence[Tokens], *, padding: int = 0, type_padding: int = 0, left: bool = False
) -> dict[str, torch.Tensor]:
    """Stack features to tensors of shape (n, longest), padded on the right.

    Args:
        features: the tokens of each row.
        padding: the id to pad with.
        type_padding: the token type to pad with.
        left: pad on the left, for a model that continues after the last token.

    Returns:
        ``input_ids`` and ``attention_mask``, and ``token_type_ids`` if the features have types.
    """
    counts = np.fromiter((len(tokens.ids) for tokens in features), dtype=np.int64, count=len(features))
    columns = np.arange(int(counts.max()))
    mask = (columns[::-1] if left else columns) < counts[:, None]
    padded = {
        "input_ids": _fill([tokens.ids for tokens in features], mask, padding),
        "attention_mask": torch.from_numpy(mask.astype(np.int64)),
    }
    types = [tokens.types for tokens in features if tokens.types is not None]
    if len(types) == len(features):
        padded["token_type_ids"] = _fill(types, mask, type_padding)
    return padded


def _fill(rows: Sequence[Ids], mask: np.ndarray[Any, Any], padding: int) -> torch.Tensor:
    table = np.full(mask.shape, padding, dtype=np.int64)
    table[mask] = np.concatenate(rows)  # both go row by row
    return torch.from_numpy(table)


def lower_case(tokenizer: Any) -> None:
    """Have a tokenizer convert texts to lower case first, but no special tokens in them (``do_lower_case``)."""
    from tokenizers.normalizers import Lowercase, Sequence

    if not tokenizer.is_fast:
        tokenizer.do_lower_case = True
        return
    inner = tokenizer.backend_tokenizer
    present = "" if inner.normalizer is None else inner.normalizer.__getstate__().decode().replace(" ", "")
    if '"type":"Lowercase"' not in present and '"lowercase":true' not in present:
        inner.normalizer = Sequence([Lowercase(), *([inner.normalizer] if inner.normalizer else [])])
