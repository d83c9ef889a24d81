"""Prove at load time that prompts of different lengths that share a ``generate`` get the tokens they get alone.

The prompts are those that reveal what goes wrong in batches: a single word, clauses, the model's special tokens inside
a text (the padding token among them), random tokens, and neighbours that are much longer and much shorter. Each runs
alone first. In the batch it is led along the same tokens, so that two equally good ones do not count as a difference,
and the logits of each step are compared.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Final, NamedTuple, Protocol

import numpy as np
import torch

from tsbatch.batching.strategy import Mode
from tsbatch.errors import LoadError, first_line
from tsbatch.tasks.generation.recurrent_state import reset_state
from tsbatch.tasks.shared.grouping import Groups, group_equal, run_groups
from tsbatch.tasks.text.batch_proof import (
    TEXTS,
    TOLERANCES,
    WORK,
    Provable,
    features_of,
    long_text,
    marked_text,
    number_format,
    random_copy,
)
from tsbatch.worker.resources import to_device

STEPS: Final = 2
"""New tokens: the one after the prompt, and one from the cache."""
LONG: Final = 64
"""Tokens of the long prompt that even the largest model can afford."""
NEVER: Final = 2**31 - 1
"""A token that no model has, so that no text ends."""


class Generating(Provable, Protocol):
    """The part of a generating handler that the proof uses; ``GeneratingHandler`` documents each member."""

    pads_left: ClassVar[bool]
    neutral: Any


class Steps(NamedTuple):
    """The steps of one text.

    Attributes:
        logits: shape (steps, words), float32, around their mean.
        tokens: shape (steps,).
    """

    logits: torch.Tensor
    tokens: torch.Tensor


class GenerationProof:
    """What a loaded model makes of each prompt alone, and comparisons with batches.

    Attributes:
        tolerance: the largest relative difference that counts as equal.
    """

    def __init__(self, handler: Generating) -> None:
        """Run each prompt alone.

        Raises:
            LoadError: the model can continue no prompt, or not twice in the same way.
        """
        self._handler = handler
        self.tolerance = TOLERANCES[number_format(handler)]
        self._prompts: list[Any] = []
        self._alone: list[Steps] = []
        error: Exception | None = None
        for prompt in _prompts(handler):
            try:
                [steps] = self._run([prompt])
            except Exception as raised:  # each architecture fails in its own way
                error = raised
                continue
            self._prompts.append(prompt)
            self._alone.append(steps)
        if not self._prompts:
            reason = first_line(error) if error else "no example text was accepted"
            raise LoadError(f"the model cannot generate: {reason}") from error
        self._scale = float(torch.stack([steps.logits.norm(dim=-1).mean() for steps in self._alone]).mean())
        # The shortest too: a model with a state may take a prompt of one token for the continuation of the last text.
        found = max(self._compare([place]) for place in {0, len(self._prompts) - 1})
        if not found <= self.tolerance:
            raise LoadError(
                f"the model continues the same text alone differently the second time (by {found:.1e}): random "
                "numbers or earlier texts take part in its answers; package a model whose answers are repeatable"
            )

    def difference(self, mode: Mode) -> float:
        """Return the largest difference between logits in batches of this mode and alone, relative to their size.

        Raises:
            Exception: whatever the model raises.
        """
        places = list(range(len(self._prompts)))
        if mode == "single":
            return 0.0
        if mode == "equal":
            groups = group_equal([len(prompt.ids) for prompt in self._prompts])
            return max(self._compare([*group, group[0]]) for group in groups)
        return self._compare([*places, 1 % len(places)])

    def _compare(self, places: Sequence[int]) -> float:
        steps = self._run([self._prompts[place] for place in places], [self._alone[place].tokens for place in places])
        apart = [
            (self._alone[place].logits - own.logits).norm(dim=-1).max()
            for place, own in zip(places, steps, strict=True)
        ]
        return float(torch.stack(apart).max()) / max(self._scale, 1e-12)

    def _run(self, prompts: Sequence[Any], led: Sequence[torch.Tensor] | None = None) -> list[Steps]:
        """The steps of prompts that share a ``generate``, along given tokens if there are any."""
        groups: Groups = self._handler.collate(prompts)
        chosen = [None if led is None else torch.stack([led[place] for place in group]) for group in groups.indices]
        with torch.inference_mode():
            made: list[Steps] = run_groups(Groups(groups.indices, groups.batches, chosen), self._generate)
        return made

    def _generate(self, batch: Mapping[str, torch.Tensor], led: torch.Tensor | None) -> list[Steps]:
        handler = self._handler
        inputs = to_device(batch, handler.device)
        start = inputs["input_ids"].shape[1] if handler.pads_left else 1
        config = copy.copy(handler.neutral)
        config.do_sample, config.num_beams, config.num_return_sequences = False, 1, 1
        config.max_new_tokens, config.eos_token_id = STEPS, NEVER
        config.output_logits = config.return_dict_in_generate = True
        leading = [] if led is None else [_Leading(led.to(handler.device), start)]
        reset_state(handler.model, len(inputs["input_ids"]))
        made = handler.model.generate(**inputs, generation_config=config, logits_processor=leading)
        logits = torch.nan_to_num(torch.stack(made.logits, dim=1).float().cpu())
        logits -= logits.mean(dim=-1, keepdim=True)
        return [Steps(*row) for row in zip(logits, made.sequences[:, start:].cpu(), strict=True)]


class _Leading:
    """A logits processor that leaves each row only its given token of the step.

    Args:
        tokens: shape (rows, steps).
        start: tokens of a row before the first new one, padding included.
    """

    def __init__(self, tokens: torch.Tensor, start: int) -> None:
        self._tokens, self._start = tokens, start

    def __call__(self, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        token = self._tokens[:, ids.shape[1] - self._start, None]
        return torch.full_like(scores, -torch.inf).scatter(1, token, 0.0)


def _prompts(handler: Generating) -> list[Any]:
    """The prompts to compare."""
    weights = sum(parameter.numel() for parameter in handler.model.parameters())
    long = long_text(handler, most=max(LONG, WORK // max(1, weights)))
    texts = (TEXTS[0], TEXTS[1], marked_text(handler), long)
    found = [feature for text in texts for feature in features_of(handler, text)[:1]]
    rng = np.random.default_rng(0)
    found += [random_copy(handler, feature, rng) for feature in found[1:3]]
    if len({len(prompt.ids) for prompt in found}) == 1:  # a long prefix, as XLNet's, fills all to the limit
        found += [replace(prompt, ids=prompt.ids[len(prompt.ids) // 2 :]) for prompt in found[:2]]
    return found
