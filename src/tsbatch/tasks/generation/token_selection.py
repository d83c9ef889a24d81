"""Select the next token of each row of a ``generate``, and decide when each row ends.

``transformers``' ``generate`` takes one configuration for the whole batch. Here each row has a :class:`Plan`; a logits
processor and a stopping criterion apply the plans, vectorised over the rows. So greedy and sampled texts of any length
share one call. A row that has ended stays in the batch until the last one ends; its further tokens are cut off.

The formulas are those of transformers (generation/logits_process.py); tests/unit/tasks/generation/
test_token_selection.py compares them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch

Decode = Callable[[Sequence[int]], str]
"""Turns token ids into text."""
SPARE = 4
"""Tokens to decode beyond those that a stop string can have: some have no text."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How to generate one text.

    Attributes:
        max_new_tokens: the largest number of new tokens.
        min_new_tokens: new tokens before the text may end.
        num_beams: beams of beam search; 1: no beam search.
        length_penalty: for beam search.
        early_stopping: for beam search.
        no_repeat_ngram_size: no sequence of this many tokens occurs twice; 0: any may.
        repetition_penalty: divisor for the scores of tokens that occurred before; 1.0: no penalty.
        temperature: 0.0: always the likeliest token; otherwise sampling.
        top_k: sample from this many likeliest tokens; 0: from all.
        top_p: sample from the likeliest tokens that have this probability together.
        min_p: sample from tokens with at least this fraction of the likeliest one's probability.
        seed: the seed, and the number of this text among several with the same seed.
        stops: strings that end the text.
        keep_stop: whether the stop string stays in the text.
        first: the token to begin with, the target language for example.
    """

    max_new_tokens: int
    min_new_tokens: int = 0
    num_beams: int = 1
    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False
    no_repeat_ngram_size: int = 0
    repetition_penalty: float = 1.0
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: tuple[int, int] = (0, 0)
    stops: tuple[str, ...] = ()
    keep_stop: bool = False
    first: int | None = None

    @property
    def share_key(self) -> Hashable:
        """Rows with equal keys may share a ``generate``."""
        if self.num_beams == 1:
            return 1, self.no_repeat_ngram_size
        # Beam search scores a text by its length, and compares texts that have ended with those that continue.
        return self.num_beams, self.no_repeat_ngram_size, self.length_penalty, self.early_stopping, self.max_new_tokens


class RowScores:
    """The logits processor of ``generate``: adjusts the scores of each row's next token by its plan.

    If a row samples its token, all others get minus infinity. Its random numbers come from its own seed, one a step,
    so that the same seed gives the same text alone and in any batch.

    Args:
        plans: the plan of each row; with beams, each plan has as many consecutive rows, as in ``generate``.
        start: tokens of a row before the first new one, padding included.
        ends: the tokens that end a text.
        forced_end: the token, or one of the tokens, at the last position of a text; None: any.
        mask: attention mask (n, start) of the prompt, whose tokens then count as repeated; None: there is no prompt.
        device: the device of the scores.
    """

    def __init__(
        self,
        plans: Sequence[Plan],
        *,
        start: int,
        ends: Sequence[int],
        forced_end: int | Sequence[int] | None = None,
        mask: torch.Tensor | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        rows = [plan for plan in plans for _ in range(plan.num_beams)]
        self._rows, self._start = rows, start
        self._ends = torch.tensor(list(ends), dtype=torch.long, device=device)
        self._forced_end = [forced_end] if isinstance(forced_end, int) else list(forced_end or ())
        self._mask = None if mask is None else mask.repeat_interleave(plans[0].num_beams, dim=0).bool()
        names = ("max_new_tokens", "min_new_tokens", "repetition_penalty")
        self._max_new, self._min_new, self._penalty = (_column(rows, name, device) for name in names)
        self._no_repeat, self._padding = _no_repeat(plans[0].no_repeat_ngram_size), self._padded_counts()
        self._firsts = [(index, row.first) for index, row in enumerate(rows) if row.first is not None]
        self._sampled = torch.tensor([index for index, row in enumerate(rows) if row.temperature], device=device)
        self._sampler = Sampler([row for row in rows if row.temperature], device) if len(self._sampled) else None

    def __call__(self, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Adjust the scores (rows, words) of the token after ``ids`` (rows, tokens), in place if that is cheaper."""
        step = ids.shape[1] - self._start
        if any(row.repetition_penalty != 1.0 for row in self._rows):
            scores = self._penalise(ids, scores)
        if self._no_repeat is not None:
            scores = self._without_repeated_ngrams(ids, scores)
        if step < int(self._min_new.max()):
            scores[(self._min_new[:, 0] > step).nonzero(), self._ends] = -torch.inf
        if step == 0:
            for index, first in self._firsts:
                _force(scores, [index], [first])
        if self._forced_end:
            _force(scores, (self._max_new[:, 0] == step + 1).nonzero()[:, 0], self._forced_end)
        if self._sampler is not None:
            scores[self._sampled] = self._sampler(scores[self._sampled], step)
        return scores

    def _penalise(self, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Make repeated tokens less likely (Keskar et al. 2019, CTRL, section 4.1). Padding does not count."""
        if self._mask is not None:
            prompt, start = ids[:, : self._start], self._start
            ids = torch.cat([torch.where(self._mask, prompt, prompt[:, -1:]), ids[:, start:]], dim=1)
        repeated = scores.gather(1, ids)
        repeated = torch.where(repeated < 0, repeated * self._penalty, repeated / self._penalty)
        return scores.scatter(1, ids, repeated)

    def _padded_counts(self) -> list[int]:
        """The number of padding tokens before each row's prompt; empty if there are none."""
        counts = [] if self._mask is None else (~self._mask).sum(dim=1).tolist()
        return counts if any(counts) else []

    def _without_repeated_ngrams(self, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Exclude tokens that would repeat a sequence. Padding does not count: it is often the token of the end."""
        if not self._padding:
            return self._no_repeat(ids, scores)  # type: ignore[no-any-return]  # of transformers
        parts = [
            self._no_repeat(ids[row : row + 1, count:], scores[row : row + 1])
            for row, count in enumerate(self._padding)
        ]
        return torch.cat(parts)


def _column(plans: Sequence[Plan], name: str, device: torch.device | str) -> torch.Tensor:
    """One setting of all plans, shape (n, 1)."""
    return torch.tensor([getattr(plan, name) for plan in plans], device=device)[:, None]


def _force(scores: torch.Tensor, rows: Any, tokens: Sequence[int]) -> None:
    """Leave these rows only these tokens to choose."""
    scores[rows] = -torch.inf
    for token in tokens:
        scores[rows, token] = 0.0


def _no_repeat(size: int) -> Any:
    """The logits processor of transformers that excludes repeated sequences of ``size`` tokens; None for 0."""
    if not size:
        return None
    from transformers import NoRepeatNGramLogitsProcessor

    return NoRepeatNGramLogitsProcessor(size)


class Sampler:
    """Samples one token a row by inverse transform sampling, each row with its own temperature, filters and seed.

    Args:
        plans: the plan of each row, all with a temperature.
        device: the device of the scores.
    """

    def __init__(self, plans: Sequence[Plan], device: torch.device | str = "cpu") -> None:
        names = ("temperature", "top_k", "top_p", "min_p")
        self._temperature, self._top_k, self._top_p, self._min_p = (_column(plans, name, device) for name in names)
        randoms = np.zeros((len(plans), max(plan.max_new_tokens for plan in plans)))
        for row, plan in zip(randoms, plans, strict=True):
            row[: plan.max_new_tokens] = np.random.default_rng(plan.seed).random(plan.max_new_tokens)
        self._randoms = torch.from_numpy(randoms).to(device)

    def __call__(self, scores: torch.Tensor, step: int) -> torch.Tensor:
        """Replace scores (n, words) by 0 for the token sampled at this step, and minus infinity for the others."""
        # Sums over the words in double, so that a rounding error of the batch hardly ever leads to another token.
        cumulative = self.filtered(scores).double().softmax(dim=-1).cumsum(dim=-1)
        # A row that ended before its batch needs no further random numbers.
        target = self._randoms[:, min(step, self._randoms.shape[1] - 1), None] * cumulative[:, -1:]
        token = torch.searchsorted(cumulative, target, right=True).clamp(max=scores.shape[1] - 1)
        return torch.full_like(scores, -torch.inf).scatter(1, token, 0.0)

    def filtered(self, scores: torch.Tensor) -> torch.Tensor:
        """Scores divided by the temperature; minus infinity for what ``top_k``, ``top_p`` and ``min_p`` exclude."""
        scores = scores / self._temperature.to(scores.dtype)
        for active, excluded in (
            (self._top_k > 0, self._beyond_top_k),
            (self._top_p < 1.0, self._beyond_top_p),
            (self._min_p > 0.0, self._below_min_p),
        ):
            if bool(active.any()):
                scores = scores.masked_fill(excluded(scores) & active, -torch.inf)
        return scores

    def _beyond_top_k(self, scores: torch.Tensor) -> torch.Tensor:
        top_k = self._top_k.clamp(max=scores.shape[1])
        best = scores.topk(int(top_k.max()), dim=-1).values
        return scores < best.gather(1, (top_k - 1).clamp(min=0))

    def _beyond_top_p(self, scores: torch.Tensor) -> torch.Tensor:
        """Words that are not needed to reach the probability ``top_p`` (Holtzman et al. 2020)."""
        ordered, order = scores.sort(dim=-1, descending=True)
        shares = ordered.softmax(dim=-1)
        beyond = shares.cumsum(dim=-1) - shares >= self._top_p
        beyond[:, 0] = False
        return torch.zeros_like(beyond).scatter(1, order, beyond)

    def _below_min_p(self, scores: torch.Tensor) -> torch.Tensor:
        shares = scores.softmax(dim=-1)
        return shares < self._min_p * shares.amax(dim=-1, keepdim=True)


class RowEnds:
    """The stopping criterion of ``generate``: decides when each row ends.

    Args:
        plans: the plan of each row.
        start: tokens of a row before the first new one, padding included.
        ends: the tokens that end a text.
        decode: turns token ids into text, to find stop strings.
        stop_strings: transformers' criterion for strings that end all texts and stay in them, or None.
        device: the device of the ids.

    Attributes:
        made: new tokens of each row until it ended, with the last one; 0 while it continues. Shape (n,).
    """

    def __init__(
        self,
        plans: Sequence[Plan],
        *,
        start: int,
        ends: Sequence[int],
        decode: Decode,
        stop_strings: Callable[[torch.Tensor, Any], torch.Tensor] | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        self._start, self._decode, self._stop_strings = start, decode, stop_strings
        self._ends = torch.tensor(list(ends), dtype=torch.long, device=device)
        self._max_new = torch.tensor([plan.max_new_tokens for plan in plans], device=device)
        # A token has at least one byte, so this many last tokens contain a stop string that has just become complete.
        self._stops = [
            (row, plan.stops, max(len(stop.encode()) for stop in plan.stops) + SPARE)
            for row, plan in enumerate(plans)
            if plan.stops
        ]
        self.made = torch.zeros_like(self._max_new)

    def __call__(self, ids: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        """Which rows of ``ids`` (n, tokens) have ended, shape (n,)."""
        made = ids.shape[1] - self._start
        ended = (self._max_new <= made) | torch.isin(ids[:, -1], self._ends)
        if self._stop_strings is not None:
            ended |= self._stop_strings(ids, None)
        for row, stops, last in self._stops:
            if not self.made[row] and self._has(ids[row, self._start :].tolist(), stops, last):
                ended[row] = True
        self.made = torch.where((self.made == 0) & ended, made, self.made)
        return self.made > 0

    def _has(self, new: list[int], stops: Sequence[str], last: int) -> bool:
        # The last tokens alone may decode a little differently, so they only tell when to decode all.
        for tokens in (new[-last:], new):
            text = self._decode(tokens)
            if not any(stop in text for stop in stops):
                return False
        return True
