"""Score spans of tokens as answers, for extractive question answering.

A span's score is the probability that an answer starts at its first token times the probability that it ends at its
last (Chen et al., Reading Wikipedia to Answer Open-Domain Questions, ACL 2017, section 3.2; transformers 4.57,
pipelines/question_answering.py).
"""

from __future__ import annotations

import torch
from torch.nn.functional import pad

CELLS = 4_000_000
"""Spans that are scored at once; their float32 scores take 16 MB."""


def position_probabilities(logits: torch.Tensor, allowed: torch.Tensor) -> torch.Tensor:
    """Probabilities over each row's allowed tokens, 0 for the others, from logits (n, tokens)."""
    return torch.softmax(logits.float().masked_fill(~allowed, -torch.inf), dim=-1)


def best_spans(
    starts: torch.Tensor, ends: torch.Tensor, context: torch.Tensor, widths: torch.Tensor, count: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The best spans of each row.

    Args:
        starts: the probability that an answer starts at a token, shape (n, tokens).
        ends: the probability that an answer ends at a token, shape (n, tokens).
        context: whether an answer may start and end at a token, shape (n, tokens).
        widths: the largest number of tokens of an answer, shape (n,).
        count: the number of spans to return.

    Returns:
        Scores, shape (n, count, or fewer if there cannot be so many), best first, -1 where a row has no more; and
        the first and last token of each, shape (n, count, 2).
    """
    longest = starts.shape[1]
    widest = min(int(widths.max()), longest)
    step = max(1, CELLS // (longest * widest))
    parts = []
    for begin in range(0, len(starts), step):
        rows = slice(begin, begin + step)
        parts.append(_best(starts[rows], ends[rows], context[rows], widths[rows], widest, min(count, longest * widest)))
    return torch.cat([scores for scores, _ in parts]), torch.cat([spans for _, spans in parts])


def _best(
    starts: torch.Tensor, ends: torch.Tensor, context: torch.Tensor, widths: torch.Tensor, widest: int, count: int
) -> tuple[torch.Tensor, torch.Tensor]:
    # Entry (row, token, more) is the span from a token to the one ``more`` positions later.
    ends, ended = (pad(tensor, (0, widest - 1)).unfold(1, widest, 1) for tensor in (ends, context))
    short = torch.arange(widest, device=widths.device) < widths[:, None, None]
    scores = (starts[..., None] * ends).masked_fill(~(context[..., None] & ended & short), -1)
    best, positions = scores.flatten(1).topk(count)
    first = positions // widest
    return best, torch.stack([first, first + positions % widest], dim=-1)
