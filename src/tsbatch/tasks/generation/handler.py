"""The base class of the generating tasks: requests with different parameters share one ``generate``.

A feature is a prompt with its plan (``token_selection.py``). Greedy and sampled ones share forward passes whatever
their other parameters; beam search shares them among requests with the same beams and lengths.
"""

from __future__ import annotations

import copy
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, ClassVar, Final

import torch

from tsbatch.batching.strategy import Mode
from tsbatch.protocol.request import Item
from tsbatch.tasks.generation import generation_config as saved
from tsbatch.tasks.generation.generation_proof import GenerationProof
from tsbatch.tasks.generation.parameters import GenerationOptions, GenerationParameters, samples
from tsbatch.tasks.generation.recurrent_state import reset_state
from tsbatch.tasks.generation.token_selection import Plan, RowEnds, RowScores
from tsbatch.tasks.shared.grouping import Groups, group_equal, run_groups
from tsbatch.tasks.shared.task_handler import read_json
from tsbatch.tasks.text.batch_proof import Proof
from tsbatch.tasks.text.handler import TextHandler
from tsbatch.tasks.text.token_features import Tokens, pad
from tsbatch.worker.resources import to_device

MAX_INPUT: Final = 4096
"""Tokens of an input to a model without a limit of positions, as T5; ``handler.max_input_tokens`` allows more."""
EXAMPLE_PARAMETERS: Final = MappingProxyType({"max_new_tokens": 2, "do_sample": False})
"""Parameters of the warm-up, which should be short and deterministic."""
DRAWN_SEEDS: Final = 2**53
"""Range of random seeds: JSON readers without 64-bit integers keep them exactly too, to ask for the text again."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Prompt(Tokens):
    """The tokens that a text is generated from.

    Attributes:
        plan: how to generate it.
    """

    plan: Plan

    def __len__(self) -> int:
        """Tokens that it occupies in memory at the end."""
        return (len(self.ids) + self.plan.max_new_tokens) * self.plan.num_beams


class GeneratingHandler(TextHandler):
    """Base of the tasks that make text token by token."""

    takes_engines: ClassVar[bool] = False
    parameters_class: ClassVar[Any] = GenerationParameters
    settings_class: ClassVar[Any] = GenerationOptions
    modes: ClassVar[Sequence[Mode]] = ("bucketed", "equal", "single")
    pads_left: ClassVar[bool]
    """The new tokens follow the prompt, so padding goes before it; otherwise an encoder reads the prompt."""
    pipeline_defaults: ClassVar[Mapping[str, Any]]
    """Defaults of transformers' pipeline for this task, for what the model folder does not set."""
    defaults: Mapping[str, Any]

    def prepare(self) -> None:
        """Move the model's defaults out of its generation_config, since each request may override them."""
        read_json(self.model_dir / "generation_config.json")  # transformers ignores a broken file
        own = copy.deepcopy(self.model.generation_config)
        # Per task, as in T5's config.json; with its prefixes.
        self.task_params = getattr(self.model.config, "task_specific_params", None) or {}
        own_task = self.task_params.get(self.task) or {}
        self.defaults = {**self.pipeline_defaults, **own.to_diff_dict(), **own_task}
        own.update(**own_task)
        saved.check_supported(own)
        self.neutral = saved.neutral(own)
        self.stop_strings = self._stop_strings(own.stop_strings)
        ends = own.eos_token_id
        self.ends = [ends] if isinstance(ends, int) else list(ends or ())
        known = (own.pad_token_id, self.tokenizer.pad_token_id, *self.ends, 0)
        self.padding = self.neutral.pad_token_id = next(token for token in known if token is not None)
        # generate also reads this one, for what its own configuration does not set.
        self.model.generation_config = self.neutral
        positions = getattr(self.model.config, "max_position_embeddings", None)
        # None for a model with relative positions, as T5.
        self.positions = positions if isinstance(positions, int) and positions > 0 else None
        self.max_input = min(filter(None, (self.options.max_input_tokens, self.positions)), default=MAX_INPUT)

    def _stop_strings(self, given: Any) -> Any:
        """The stopping criterion of transformers for the model's own stop strings; None if it has none."""
        if not given:
            return None
        from transformers import StopStringCriteria

        return StopStringCriteria(self.tokenizer, [given] if isinstance(given, str) else list(given))

    def check_item(self, item: Item) -> None:
        """Draw a seed for sampling without one, so that equal items are not computed once."""
        if item.parameters.seed is None and samples(item.parameters, self.defaults):
            item.parameters = item.parameters.model_copy(update={"seed": secrets.randbelow(DRAWN_SEEDS)})

    def collate(self, features: Sequence[Any]) -> Groups:
        """Divide a micro-batch of prompts into groups, each padded to its own longest."""
        indices = list(self._groups(features))
        prompts = [[features[index] for index in group] for group in indices]
        tensors = [pad(group, padding=self.padding, left=self.pads_left) for group in prompts]
        return Groups(indices, tensors, [[prompt.plan for prompt in group] for group in prompts])

    def inference(self, tensors: Groups) -> Any:
        """The new tokens of each prompt, with the token that ended it."""
        return run_groups(tensors, self._generate)

    def texts(self, outputs: Sequence[torch.Tensor], plans: Sequence[Plan], **options: Any) -> list[str]:
        """Decode new tokens, without the stop strings that are to be cut off.

        Args:
            outputs: new tokens of each text.
            plans: the plan of each text.
            options: for the tokenizer's ``batch_decode``.
        """
        rows = [tokens.tolist() for tokens in outputs]
        texts = self.tokenizer.batch_decode(rows, skip_special_tokens=True, **options)
        return [text if plan.keep_stop else _before(text, plan.stops) for text, plan in zip(texts, plans, strict=True)]

    def example(self, text: str) -> Any:
        """Return an item with this text, and parameters for few new tokens."""
        return {"text": text, "parameters": {**EXAMPLE_PARAMETERS, **self.example_parameters()}}

    def examples(self) -> Sequence[Any]:
        """Texts of typical lengths, with few new tokens."""
        return [self.example(text) for text in super().examples()]

    def example_parameters(self) -> Mapping[str, Any]:
        """Further parameters of the examples."""
        return {}

    def lengths(self, features: Sequence[Prompt]) -> Sequence[int]:
        """Tokens of each prompt and its text; if only prompts of equal length share a pass, as if texts were equal."""
        if self.choice.mode != "equal":
            return [len(feature) for feature in features]
        new = max((feature.plan.max_new_tokens for feature in features), default=0)
        beams = max((feature.plan.num_beams for feature in features), default=1)
        return [(len(feature.ids) + new) * beams for feature in features]

    def _proof(self) -> Proof:
        return GenerationProof(self)

    def _failure(self, mode: Mode, proof: Proof) -> tuple[str | None, float]:
        """Return why a mode cannot be used, or None, and the largest difference seen."""
        field = saved.padding_matters(self.neutral, self.padding)
        if field is not None and mode in ("bucketed", "padded"):
            return f"{field} of generation_config.json would count it", 0.0
        return super()._failure(mode, proof)

    def _pack(self, *, proven: bool = True) -> str | None:
        del proven
        return "a generating model needs each text in its own row"

    def _generate(self, batch: Mapping[str, torch.Tensor], plans: Sequence[Plan]) -> list[torch.Tensor]:
        """The new tokens of prompts that share a ``generate``."""
        plan = plans[0]
        inputs = to_device(batch, self.device)
        start = inputs["input_ids"].shape[1] if self.pads_left else 1
        rows = {"start": start, "ends": self.ends, "device": self.device}
        scores = RowScores(
            plans,
            mask=inputs["attention_mask"] if self.pads_left else None,
            forced_end=self.defaults.get("forced_eos_token_id"),
            **rows,
        )
        decode = partial(self.tokenizer.decode, skip_special_tokens=True)
        ends = RowEnds(plans, decode=decode, stop_strings=self.stop_strings, **rows)
        config = copy.copy(self.neutral)
        config.do_sample, config.num_beams, config.num_return_sequences = False, plan.num_beams, 1
        config.max_new_tokens = max(each.max_new_tokens for each in plans)
        if plan.num_beams > 1:
            config.length_penalty, config.early_stopping = plan.length_penalty, plan.early_stopping
        criteria = [ends] if plan.num_beams == 1 else [self.stop_strings] if self.stop_strings else None
        reset_state(self.model, len(plans) * plan.num_beams)
        generated = self.model.generate(
            **inputs, generation_config=config, logits_processor=[scores], stopping_criteria=criteria
        )
        new = generated[:, start:].cpu()
        beams = plan.num_beams > 1
        counts = [self._count(row, start) for row in generated.cpu()] if beams else ends.made.tolist()
        return [row[:count] for row, count in zip(new, counts, strict=True)]

    def _count(self, row: torch.Tensor, start: int) -> int:
        """The new tokens of a row (tokens,) of beam search, with the one that ended it, without padding after it."""
        for end in range(start + 1, len(row) + 1):
            if int(row[end - 1]) in self.ends or (self.stop_strings and bool(self.stop_strings(row[None, :end], None))):
                return end - start
        return len(row) - start

    def _groups(self, features: Sequence[Prompt]) -> Iterator[list[int]]:
        """Positions of prompts that may share a ``generate``.

        If prompt and new tokens form one row, that row must fit the model's positions also when its text has ended and
        the row waits for the others.
        """
        equal = self.choice.mode == "equal"
        groups = group_equal([(feature.plan.share_key, equal and len(feature.ids)) for feature in features])
        if not self.pads_left or self.positions is None:
            yield from groups
            return
        for indices in groups:
            group: list[int] = []
            horizon = 0
            for index in sorted(indices, key=lambda index: features[index].plan.max_new_tokens, reverse=True):
                horizon = horizon or features[index].plan.max_new_tokens
                if group and len(features[index].ids) + horizon > self.positions:
                    yield group
                    group, horizon = [], features[index].plan.max_new_tokens
                group.append(index)
            yield group


def _before(text: str, stops: Sequence[str]) -> str:
    """The text before the first stop string in it."""
    return text[: min((index for index in map(text.find, stops) if index >= 0), default=len(text))]
