"""Compute the logits of selected tokens alone with a masked language model, which would compute those of all.

The last layer makes a row of the vocabulary's size for each token: with XLM-RoBERTa's 250,000 words that is three times
the work of the whole encoder, and a megabyte a token. If it is one layer that the model calls, as
``get_output_embeddings`` returns it, a hook removes the other rows from that layer's input.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

TOLERANCE = 1e-4
"""The largest difference of a logit, relative to the largest logit, that counts as equal."""

Positions = tuple[torch.Tensor, torch.Tensor]
"""Row and token of each wanted position, two tensors of shape (positions,)."""


class MaskHead:
    """Calls the model for the logits of some positions.

    Attributes:
        sparse: the last layer computes those positions alone; only after :meth:`prove`.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        self.sparse = False
        self._wanted: Positions | None = None

    def prove(self, batch: Mapping[str, torch.Tensor]) -> None:
        """Turn :attr:`sparse` on if the model gives the same logits with it.

        Args:
            batch: an example input of the model.
        """
        layer = self.model.get_output_embeddings()
        if not isinstance(layer, torch.nn.Module):
            return
        hook = layer.register_forward_pre_hook(self._pick)
        rows, tokens = batch["attention_mask"].nonzero(as_tuple=True)
        wanted = (rows[::2], tokens[::2])
        with torch.inference_mode():
            whole = self.logits(batch, wanted)
            self.sparse = True
            try:
                some = self.logits(batch, wanted)
            except Exception:  # an architecture that needs all rows after its last layer may raise anything
                some = whole[:0]
        self.sparse = some.shape == whole.shape and _close(some, whole)
        if not self.sparse:
            hook.remove()

    def logits(self, inputs: Mapping[str, torch.Tensor], wanted: Positions) -> torch.Tensor:
        """The logits of the wanted positions, shape (positions, vocabulary).

        Args:
            inputs: the model's inputs, token ids (n, longest) and so on.
            wanted: the positions.
        """
        if not self.sparse:
            logits: torch.Tensor = self.model(**inputs).logits[wanted]
            return logits
        self._wanted = wanted
        try:
            picked: torch.Tensor = self.model(**inputs).logits
        finally:
            self._wanted = None
        return picked

    def _pick(self, layer: torch.nn.Module, arguments: tuple[Any, ...]) -> tuple[Any, ...] | None:
        del layer  # there is only one
        return None if self._wanted is None else (arguments[0][self._wanted], *arguments[1:])


def _close(some: torch.Tensor, whole: torch.Tensor) -> bool:
    tolerance = max(TOLERANCE, 4 * torch.finfo(whole.dtype).eps)  # half precision rounds more than that
    return float((some - whole).abs().max()) <= tolerance * float(whole.abs().max())
