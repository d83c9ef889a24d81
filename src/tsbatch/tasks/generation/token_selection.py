"""What each row of one ``generate`` does on its own: how its next token is chosen, and when it ends.

``transformers``' ``generate`` takes one configuration for the whole batch. Here each row has a :class:`Plan`, and two
callables that ``generate`` takes as a logits processor and a stopping criterion apply it, vectorised over the rows. So
greedy and sampled texts, of any length, share one call. A row that ended keeps its place until the last one ends; what
it makes meanwhile is cut off.

The formulas are those of transformers (generation/logits_process.py); tests/unit/tasks/generation/test_decoding.py
compares.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch

Decode = Callable[[Sequence[int]], str]
"""Token ids to their text."""
SPARE = 4
"""Tokens looked at beyond those that a stop string can have: some have no text of their own."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How one text is made.

    Attributes:
        most: new tokens at most.
        least: new tokens before the text may end.
        beams: beams of beam search; 1: none.
        length_penalty: of beam search.
        early_stopping: of beam search.
        no_repeat_ngram_size: no sequence of so many tokens comes twice; 0: any may.
        repetition_penalty: what tokens that were there before are divided by; 1.0: nothing.
        temperature: 0.0: the likeliest token always; otherwise one is drawn.
        top_k: drawn from so many likeliest tokens; 0: from all.
        top_p: drawn from the likeliest tokens that have this probability together.
        min_p: drawn from tokens that have this part of the likeliest one's probability.
        seed: of what is drawn, and which of several texts of this seed it is.
        stops: strings that end the text.
        keep_stop: the string that ended it stays in the text.
        first: the token to begin with, the target language for example.
    """

    most: int
    least: int = 0
    beams: int = 1
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
    def shares(self) -> Hashable:
        """Rows with one value of this may share a ``generate``."""
        if self.beams == 1:
            return 1, self.no_repeat_ngram_size
        # Beam search scores a text by its length and compares those that ended with those that go on.
        return self.beams, self.no_repeat_ngram_size, self.length_penalty, self.early_stopping, self.most


class RowScores:
    """The scores of each row's next token, by its plan; the logits processor of ``generate``.

    Where a row draws its token, all others get minus infinity. Its random numbers come from its own seed, one a step,
    so that the same seed makes the same text alone and in any batch.

    Args:
        plans: one a row; with beams, rows follow each other as ``generate`` lays them out.
        start: tokens of a row before the first new one, padding included.
        ends: the tokens that end a text.
        forced_end: the token that a text has at its last place, or None.
        mask: attention mask (n, start) of the prompt, which then counts as said before; None: there is none.
        device: of the scores.
    """

    def __init__(
        self,
        plans: Sequence[Plan],
        *,
        start: int,
        ends: Sequence[int],
        forced_end: int | None = None,
        mask: torch.Tensor | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        rows = [plan for plan in plans for _ in range(plan.beams)]
        self._rows, self._start, self._device = rows, start, device
        self._ends = torch.tensor(list(ends), dtype=torch.long, device=device)
        self._forced_end = forced_end
        self._mask = None if mask is None else mask.repeat_interleave(plans[0].beams, dim=0).bool()
        self._most = self._column([row.most for row in rows])
        self._least = self._column([row.least for row in rows])
        self._penalty = self._column([row.repetition_penalty for row in rows])
        self._firsts = [(place, row.first) for place, row in enumerate(rows) if row.first is not None]
        self._drawn = torch.tensor([place for place, row in enumerate(rows) if row.temperature], device=device)
        self._draw = Draw([row for row in rows if row.temperature], device) if len(self._drawn) else None

    def _column(self, values: Sequence[float]) -> torch.Tensor:
        return torch.tensor(values, device=self._device)[:, None]

    def __call__(self, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Scores (rows, words) for the token after ``ids`` (rows, tokens), changed in place where that is cheaper."""
        step = ids.shape[1] - self._start
        if any(row.repetition_penalty != 1.0 for row in self._rows):
            scores = self._penalised(ids, scores)
        if step < int(self._least.max()):
            scores[(self._least[:, 0] > step).nonzero(), self._ends] = -torch.inf
        if step == 0:
            for place, first in self._firsts:
                _only(scores, [place], first)
        if self._forced_end is not None:
            _only(scores, (self._most[:, 0] == step + 1).nonzero()[:, 0], self._forced_end)
        if self._draw is not None:
            scores[self._drawn] = self._draw(scores[self._drawn], step)
        return scores

    def _penalised(self, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Keskar et al. 2019 (CTRL), section 4.1: what was said before is less likely. Padding was not said."""
        if self._mask is not None:
            prompt, start = ids[:, : self._start], self._start
            ids = torch.cat([torch.where(self._mask, prompt, prompt[:, -1:]), ids[:, start:]], dim=1)
        said = scores.gather(1, ids)
        said = torch.where(said < 0, said * self._penalty, said / self._penalty)
        return scores.scatter(1, ids, said)


def _only(scores: torch.Tensor, places: Any, token: int) -> None:
    scores[places] = -torch.inf
    scores[places, token] = 0.0


class Draw:
    """Draws one token a row by inverse transform sampling, each row with its own temperature, filters and seed.

    Args:
        plans: one a row, all with a temperature.
        device: of the scores.
    """

    def __init__(self, plans: Sequence[Plan], device: torch.device | str = "cpu") -> None:
        self._temperature, self._top_p, self._min_p = (
            torch.tensor([getattr(plan, name) for plan in plans], device=device)[:, None]
            for name in ("temperature", "top_p", "min_p")
        )
        self._top_k = torch.tensor([plan.top_k for plan in plans], device=device)[:, None]
        chances = np.zeros((len(plans), max(plan.most for plan in plans)))
        for row, plan in zip(chances, plans, strict=True):
            row[: plan.most] = np.random.default_rng(plan.seed).random(plan.most)
        self._chances = torch.from_numpy(chances).to(device)

    def __call__(self, scores: torch.Tensor, step: int) -> torch.Tensor:
        """Scores (n, words) to 0 for the token that was drawn at this step, and minus infinity for the others."""
        # Sums over the words in double, so that a rounding error of the batch hardly ever makes another token of it.
        likely = self.filtered(scores).double().softmax(dim=-1).cumsum(dim=-1)
        # A row that ended before its batch draws nothing any more.
        chance = self._chances[:, min(step, self._chances.shape[1] - 1), None] * likely[:, -1:]
        token = torch.searchsorted(likely, chance, right=True).clamp(max=scores.shape[1] - 1)
        return torch.full_like(scores, -torch.inf).scatter(1, token, 0.0)

    def filtered(self, scores: torch.Tensor) -> torch.Tensor:
        """Scores by temperature, and minus infinity for what ``top_k``, ``top_p`` and ``min_p`` leave out."""
        scores = scores / self._temperature.to(scores.dtype)
        for asked, leave_out in (
            (self._top_k > 0, self._beyond_top_k),
            (self._top_p < 1.0, self._beyond_top_p),
            (self._min_p > 0.0, self._below_min_p),
        ):
            if bool(asked.any()):
                scores = scores.masked_fill(leave_out(scores) & asked, -torch.inf)
        return scores

    def _beyond_top_k(self, scores: torch.Tensor) -> torch.Tensor:
        top_k = self._top_k.clamp(max=scores.shape[1])
        best = scores.topk(int(top_k.max()), dim=-1).values
        return scores < best.gather(1, (top_k - 1).clamp(min=0))

    def _beyond_top_p(self, scores: torch.Tensor) -> torch.Tensor:
        """Holtzman et al. 2020: words whose better ones have ``top_p`` together."""
        ordered, order = scores.sort(dim=-1, descending=True)
        shares = ordered.softmax(dim=-1)
        beyond = shares.cumsum(dim=-1) - shares >= self._top_p
        beyond[:, 0] = False
        return torch.zeros_like(beyond).scatter(1, order, beyond)

    def _below_min_p(self, scores: torch.Tensor) -> torch.Tensor:
        shares = scores.softmax(dim=-1)
        return shares < self._min_p * shares.amax(dim=-1, keepdim=True)


class RowEnds:
    """When each row ends; the stopping criterion of ``generate``.

    Args:
        plans: one a row.
        start: tokens of a row before the first new one, padding included.
        ends: the tokens that end a text.
        decode: token ids to their text, for stop strings.
        device: of the ids.

    Attributes:
        made: new tokens of each row until it ended, the ending one included; 0 while it goes on. Shape (n,).
    """

    def __init__(
        self,
        plans: Sequence[Plan],
        *,
        start: int,
        ends: Sequence[int],
        decode: Decode,
        device: torch.device | str = "cpu",
    ) -> None:
        self._start, self._decode = start, decode
        self._ends = torch.tensor(list(ends), dtype=torch.long, device=device)
        self._most = torch.tensor([plan.most for plan in plans], device=device)
        # A token has a byte at least, so a stop string that is just complete is in so many last tokens.
        self._stops = [
            (row, plan.stops, max(len(stop.encode()) for stop in plan.stops) + SPARE)
            for row, plan in enumerate(plans)
            if plan.stops
        ]
        self.made = torch.zeros_like(self._most)

    def __call__(self, ids: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        """Which rows of ``ids`` (n, tokens) have ended, shape (n,)."""
        made = ids.shape[1] - self._start
        ended = (self._most <= made) | torch.isin(ids[:, -1], self._ends)
        for row, stops, last in self._stops:
            if not self.made[row] and self._has(ids[row, self._start :].tolist(), stops, last):
                ended[row] = True
        self.made = torch.where((self.made == 0) & ended, made, self.made)
        return self.made > 0

    def _has(self, new: list[int], stops: Sequence[str], last: int) -> bool:
        # The last tokens alone may decode a little differently, so they only say when it is worth to look at all.
        for tokens in (new[-last:], new):
            text = self._decode(tokens)
            if not any(stop in text for stop in stops):
                return False
        return True
