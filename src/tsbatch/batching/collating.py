"""Default collation: stack the features of a micro-batch, which must have the same shape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from tsbatch.batching.rows import stack
from tsbatch.errors import ContractBroken


def collate(features: Sequence[Any]) -> Any:
    """Stack features: tensors, arrays and numbers into one tensor with n rows; mappings and tuples entry by entry.

    Raises:
        ContractBroken: the features differ in shape, or their type cannot be stacked.
    """
    first = features[0]
    if isinstance(first, (torch.Tensor, np.ndarray)):
        return torch.as_tensor(stack(features, stage="collate"))
    if isinstance(first, Mapping):
        return {key: collate([feature[key] for feature in features]) for key in first}
    if isinstance(first, tuple):
        return tuple(collate(column) for column in zip(*features, strict=True))
    if isinstance(first, (bool, int, float, np.number)):
        return torch.as_tensor(features)
    raise ContractBroken(
        f"collate cannot stack features of type {type(first).__name__}",
        expected="tensors, arrays or numbers from preprocess, or your own collate",
        stage="collate",
    )
