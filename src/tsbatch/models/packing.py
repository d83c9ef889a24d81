"""Run a transformers encoder without padding: all tokens of a micro-batch in one row.

::

    ids (n, longest) ─ pack ─ ids (1, tokens) ─ encoder ─ states (1, tokens, h) ─ unpack ─ (n, longest, h)
                              positions restarted                                           pooler, heads

Attention is kept inside each sequence by an attention function registered through transformers' public interface.
Sequences are sorted by length, so that those of equal length share a kernel call on views, without a copy.
Heads and poolers receive states of shape (n, longest, h) as usual, so those that use ``states[:, 0]`` stay correct.

Some architectures never call a registered function and would silently give wrong answers (MPNet, DeBERTa-v2, XLM). So
packing is used only if it passes a check on examples when the worker loads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

from tsbatch.errors import first_line

if TYPE_CHECKING:
    from collections.abc import Iterator

NAME: Final = "tsbatch_packed"
KEPT: Final = frozenset({"return_dict", "use_cache"})
"""Options of a call that a packed pass may ignore; with any other that is set (hidden states of each layer,
embeddings in place of ids) the call is not packed."""
TOLERANCE: Final = 1e-5
"""Least agreement with the one-by-one states, as 1 - cosine; float32 rounding leaves 1e-7."""


@dataclass(slots=True)
class Layout:
    """Where each sequence lies in the packed row.

    Attributes:
        tokens: for each token of the row, its index in the flattened padded batch.
        positions: for each token of the row, its position in its sequence.
        groups: for each distinct length, the number of sequences and the length.
        calls: how often attention was computed with this layout.
    """

    tokens: torch.Tensor
    positions: torch.Tensor
    groups: Sequence[tuple[int, int]]
    calls: int = 0
    bands: dict[tuple[int, int], torch.Tensor] = field(default_factory=dict)

    @classmethod
    def of(cls, mask: torch.Tensor) -> Layout:
        """Return the layout of a padded batch, from its attention mask (n, longest); padding on the right."""
        lengths = mask.sum(1).cpu().numpy()
        order = np.argsort(-lengths, kind="stable")
        ordered = lengths[order]
        positions = np.concatenate([np.arange(length) for length in ordered])
        tokens = np.repeat(order * mask.shape[1], ordered) + positions
        values, counts = np.unique(lengths, return_counts=True)
        groups = list(zip(counts[::-1].tolist(), values[::-1].tolist(), strict=True))
        return cls(torch.from_numpy(tokens).to(mask.device), torch.from_numpy(positions).to(mask.device), groups)

    def parts(self, row: torch.Tensor) -> list[torch.Tensor]:
        """Split ``row`` (1, heads, tokens, width) into one view (number, heads, length, width) for each group."""
        # Few calls on a single split of the row: with short texts, they cost as much as the attention itself.
        sizes = [count * length for count, length in self.groups]
        pieces: tuple[torch.Tensor, ...] = row.split(sizes, dim=2)  # type: ignore[no-untyped-call]
        return [
            piece if count == 1 else torch.unflatten(piece[0], 1, (count, length)).transpose(0, 1)
            for piece, (count, length) in zip(pieces, self.groups, strict=True)
        ]

    def band(self, length: int, window: int, device: torch.device) -> torch.Tensor:
        """Return the mask of attention to tokens less than ``window`` away, shape (length, length)."""
        key = (length, window)
        if key not in self.bands:
            positions = torch.arange(length, device=device)
            self.bands[key] = (positions[:, None] - positions[None, :]).abs() < window
        return self.bands[key]


class _State:
    """The layout of the current forward pass; a worker runs one pass at a time."""

    layout: Layout | None = None


def attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """Compute attention within each sequence of the packed row; outside a packed pass, as transformers does with SDPA.

    Args:
        module: the attention layer.
        query: shape (1, heads, tokens, width); ``key`` and ``value`` alike, perhaps with fewer heads.
        key: see ``query``.
        value: see ``query``.
        attention_mask: used only outside a packed pass.
        scaling: factor on the scores; None for 1/sqrt(width).
        sliding_window: attend only to tokens less than this many positions away.
        options: passed on outside a packed pass; inside one, options that would change the result are refused.

    Returns:
        Shape (1, tokens, heads, width), and None for the weights.
    """
    layout = _State.layout
    if layout is None:
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        output: tuple[torch.Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, **options
        )
        return output
    _refuse_what_is_not_kept(module, options)
    layout.calls += 1
    packed = query.new_empty(1, query.shape[2], query.shape[1], value.shape[3])
    grouped = {"enable_gqa": True} if key.shape[1] != query.shape[1] else {}
    parts = (layout.parts(tensor) for tensor in (query, key, value, packed.transpose(1, 2)))
    for (_, length), q, k, v, part in zip(layout.groups, *parts, strict=True):
        far = sliding_window is not None and length > sliding_window
        band = layout.band(length, int(sliding_window or 0), query.device) if far else None
        part.copy_(scaled_dot_product_attention(q, k, v, attn_mask=band, scale=scaling, **grouped))
    return packed, None


def _refuse_what_is_not_kept(module: torch.nn.Module, options: dict[str, Any]) -> None:
    causal = options.get("is_causal")
    if (getattr(module, "is_causal", False) if causal is None else causal) or options.get("position_bias") is not None:
        raise NotImplementedError("causal attention and position biases cannot be packed")


def _no_mask(*args: Any, **options: Any) -> torch.Tensor | None:
    """Return no mask in a packed pass, and the SDPA mask in any other."""
    if _State.layout is not None:
        return None
    from transformers.masking_utils import sdpa_mask

    mask: torch.Tensor | None = sdpa_mask(*args, **options)
    return mask


class PackedEncoder:
    """A transformers model whose encoder runs packed while :attr:`on` is true.

    The model is called as usual, with padded ``input_ids`` and ``attention_mask``; its base model packs the inputs
    and unpacks the outputs.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        self.base: Any = model.base_model
        self.on = False
        self.last: Layout | None = None
        self._forward: Callable[..., Any] = self.base.forward
        self._padding = _uncounted(self.base)
        _register()
        self._before = model.config._attn_implementation  # noqa: SLF001  transformers has no other way to ask
        model.set_attn_implementation(NAME)
        self.base.forward = self._packed_forward

    def remove(self) -> None:
        """Restore the original model."""
        self.on = False
        self.base.forward = self._forward
        self.model.set_attn_implementation(self._before)

    @contextmanager
    def switched_on(self, on: bool) -> Iterator[None]:
        """Turn packing on or off temporarily."""
        before, self.on = self.on, on
        try:
            yield
        finally:
            self.on = before

    def _packed_forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        **options: Any,
    ) -> Any:
        types = {} if token_type_ids is None else {"token_type_ids": token_type_ids}
        asked = {name for name, value in options.items() if value is not None and value is not False}
        if not self.on or input_ids is None or attention_mask is None or asked - KEPT:
            return self._forward(input_ids=input_ids, attention_mask=attention_mask, **types, **options)
        layout = self.last = Layout.of(attention_mask)
        packed = {name: tensor.reshape(1, -1)[:, layout.tokens] for name, tensor in types.items()}
        _State.layout = layout
        try:
            output = self._forward(
                input_ids=input_ids.reshape(1, -1)[:, layout.tokens],
                position_ids=self._positions(input_ids, attention_mask, layout).unsqueeze(0),
                **packed,
                return_dict=True,
            )
        finally:
            _State.layout = None
        return self._unpacked(output, layout, input_ids.shape)

    def _positions(self, ids: torch.Tensor, mask: torch.Tensor, layout: Layout) -> torch.Tensor:
        """Return the position of each token of the row, shape (tokens,)."""
        if self._padding is None:
            return layout.positions
        # The RoBERTa family does not count padding tokens, not even those inside a text.
        counted = ids.ne(self._padding) & mask.bool()
        positions = counted.cumsum(1) * counted + self._padding
        return positions.reshape(-1)[layout.tokens]

    def _unpacked(self, output: Any, layout: Layout, shape: torch.Size) -> Any:
        packed = output.last_hidden_state[0]
        states = packed.new_zeros(shape[0] * shape[1], packed.shape[1])
        states[layout.tokens] = packed
        output.last_hidden_state = states.view(shape[0], shape[1], -1)
        if output.get("pooler_output") is not None:
            output.pooler_output = self._pooled(output.last_hidden_state)
        return output

    def _pooled(self, states: torch.Tensor) -> torch.Tensor:
        pooler = self.base.pooler
        if hasattr(self.base, "pooler_activation"):  # ALBERT selects the first token outside its pooler
            pooled: torch.Tensor = self.base.pooler_activation(pooler(states[:, 0]))
        else:
            pooled = pooler(states)
        return pooled


def _register() -> None:
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface

    AttentionInterface.register(NAME, attention)
    AttentionMaskInterface.register(NAME, _no_mask)


def _uncounted(base: Any) -> int | None:
    """Return the padding token if positions start after its id and skip it, as in the RoBERTa family; else None."""
    embeddings = getattr(base, "embeddings", None)
    shifted = hasattr(embeddings, "create_position_ids_from_input_ids")
    padding = getattr(embeddings, "padding_idx", None)
    return padding if shifted and isinstance(padding, int) else None


def prove(encoder: PackedEncoder, batch: dict[str, torch.Tensor]) -> str | None:
    """Return why packing must not be used with this model, or None if it gives the same states.

    Args:
        encoder: the model.
        batch: padded examples of mixed lengths, including the longest that clients may send.
    """
    with torch.inference_mode():
        with encoder.switched_on(False):
            alone = [_states(encoder, _row(batch, index)) for index in range(len(batch["input_ids"]))]
        try:
            with encoder.switched_on(True):
                together = _states(encoder, batch)
        except Exception as error:  # an architecture that cannot be packed fails in its own way
            return f"the packed pass raised {first_line(error)}"
    calls = encoder.last.calls if encoder.last else 0
    layers = encoder.base.config.num_hidden_layers
    if calls != layers:
        return f"its attention called the registered function {calls} times in {layers} layers"
    worst = max(_distance(states, row[: len(states)]) for states, row in zip(alone, together, strict=True))
    return f"its states differ from the one-by-one run by {worst:.1e}" if not worst <= TOLERANCE else None


def _states(encoder: PackedEncoder, batch: dict[str, torch.Tensor]) -> Any:
    states = encoder.base(**batch).last_hidden_state
    return states if len(states) > 1 else states[0]


def _row(batch: dict[str, torch.Tensor], index: int) -> dict[str, torch.Tensor]:
    length = int(batch["attention_mask"][index].sum())
    return {name: tensor[index : index + 1, :length] for name, tensor in batch.items()}


def _distance(one: torch.Tensor, other: torch.Tensor) -> float:
    """Return the largest 1 - cosine of any token; NaN if any is NaN."""
    cosine = torch.nn.functional.cosine_similarity(one.double(), other.double(), dim=-1)
    return float((1 - cosine).max())
