"""What the generating tasks share: one ``generate`` for texts that are asked for with different parameters.

A feature is a prompt with its plan (``decoding.py``). Greedy and sampled ones share forward passes whatever else they
ask for; beam search shares them among requests with the same beams and lengths.
"""

from __future__ import annotations

import copy
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, ClassVar, Final

import torch

from tsbatch.protocol.request import Item, Request
from tsbatch.tasks.generation.parameters import GenerationOptions, GenerationParameters, samples
from tsbatch.tasks.generation.token_selection import Plan, RowEnds, RowScores
from tsbatch.tasks.shared.task_handler import read_json
from tsbatch.tasks.text.handler import TextHandler
from tsbatch.tasks.text.token_features import Ids, pad
from tsbatch.worker.resources import to_device

MAX_INPUT: Final = 4096
"""Tokens of an input to a model that has no positions to count, as T5; ``handler.max_input_tokens`` allows more."""
EXAMPLE_PARAMETERS: Final = MappingProxyType({"max_new_tokens": 2, "do_sample": False})
"""Of the warm-up: it should be short, and examples should have one answer."""
DRAWN_SEEDS: Final = 2**53
"""So many: JSON readers that have no whole numbers of 64 bits keep these too, to ask for the text again."""
PER_ROW: Final = (
    "max_length",
    "max_new_tokens",
    "min_length",
    "min_new_tokens",
    "do_sample",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repetition_penalty",
    "no_repeat_ngram_size",
    "num_beams",
    "num_return_sequences",
    "length_penalty",
    "early_stopping",
    "stop_strings",
    "forced_bos_token_id",
    "forced_eos_token_id",
)
"""What a plan says of its row, and the configuration of a whole ``generate`` must not."""


@dataclass(frozen=True, slots=True, eq=False)
class Prompt:
    """One text to make.

    Attributes:
        ids: the input's token ids, shape (length,), int64.
        plan: how to go on.
    """

    ids: Ids
    plan: Plan

    def __len__(self) -> int:
        """Tokens that it will have in memory at the end."""
        return (len(self.ids) + self.plan.most) * self.plan.beams


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """Prompts of a micro-batch that share a ``generate``.

    Attributes:
        places: their places in the micro-batch.
        plans: their plans.
        tensors: ``input_ids`` and ``attention_mask``, shape (n, longest).
    """

    places: Sequence[int]
    plans: Sequence[Plan]
    tensors: Mapping[str, torch.Tensor]


class GeneratingHandler(TextHandler):
    """Base of the tasks that make text token by token."""

    takes_engines: ClassVar[bool] = False
    parameters_class: ClassVar[Any] = GenerationParameters
    settings_class: ClassVar[Any] = GenerationOptions
    pads_left: ClassVar[bool]
    """The prompt is what the new tokens follow, so padding goes before it; otherwise it is the encoder's."""
    pipeline_defaults: ClassVar[Mapping[str, Any]]
    """What transformers' pipeline of this task takes where the model folder says nothing."""
    usual: Mapping[str, Any]

    def prepare(self) -> None:
        """Take the model's own defaults out of its generation_config, since each request may have others."""
        read_json(self.model_dir / "generation_config.json")  # transformers passes over one that is broken
        own = self.model.generation_config
        self.usual = {**self.pipeline_defaults, **own.to_diff_dict(), **self.task_defaults(self.task)}
        self.neutral = copy.deepcopy(own)
        fresh = type(own)()
        for name in PER_ROW:
            setattr(self.neutral, name, getattr(fresh, name, None))
        ends = own.eos_token_id
        self.ends = [ends] if isinstance(ends, int) else list(ends or ())
        known = (own.pad_token_id, self.tokenizer.pad_token_id, *self.ends, 0)
        self.padding = self.neutral.pad_token_id = next(token for token in known if token is not None)
        # generate looks here too, for what its own configuration does not say.
        self.model.generation_config = self.neutral
        self.positions = _positions(self.model.config)
        self.most_input = _least(self.options.max_input_tokens, self.positions) or MAX_INPUT

    def task_defaults(self, task: str) -> Mapping[str, Any]:
        """What config.json says of a task under ``task_specific_params``, as T5's has it; prefixes too."""
        known = getattr(self.model.config, "task_specific_params", None) or {}
        defaults: Mapping[str, Any] = known.get(task) or {}
        return defaults

    def decode_request(self, request: Request) -> list[Item]:
        """The items of one request. What is drawn without a seed gets one here, so that no two are taken for one."""
        items = super().decode_request(request)
        for item in items:
            if item.parameters.seed is None and samples(item.parameters, self.usual):
                item.parameters = item.parameters.model_copy(update={"seed": secrets.randbelow(DRAWN_SEEDS)})
        return items

    def collate(self, features: Sequence[Any]) -> Any:
        """A micro-batch of prompts to a list of groups, each padded to its own longest."""
        groups = []
        for places in self._sharing(features):
            prompts = [features[place] for place in places]
            tensors = pad([prompt.ids for prompt in prompts], padding=self.padding, left=self.pads_left)
            groups.append(Group(places, [prompt.plan for prompt in prompts], tensors))
        return groups

    def inference(self, tensors: Sequence[Group]) -> list[torch.Tensor]:
        """Groups of prompts to the new tokens of each prompt, the one that ended it included."""
        made: dict[int, torch.Tensor] = {}
        for group in tensors:
            made.update(zip(group.places, self._generate(group), strict=True))
        return [made[place] for place in range(len(made))]

    def texts(self, outputs: Sequence[torch.Tensor], plans: Sequence[Plan], **options: Any) -> list[str]:
        """New tokens to texts, without the stop strings that were to be cut off.

        Args:
            outputs: new tokens of each text.
            plans: the plan of each text.
            options: of the tokenizer's ``batch_decode``.
        """
        texts = self.tokenizer.batch_decode(
            [tokens.tolist() for tokens in outputs], skip_special_tokens=True, **options
        )
        return [text if plan.keep_stop else _before(text, plan.stops) for text, plan in zip(texts, plans, strict=True)]

    def _pack(self) -> str:
        return "a generating model needs each text in a row of its own"

    def _generate(self, group: Group) -> list[torch.Tensor]:
        plans, plan = group.plans, group.plans[0]
        inputs = to_device(group.tensors, self.device)
        start = inputs["input_ids"].shape[1] if self.pads_left else 1
        rows = {"start": start, "ends": self.ends, "device": self.device}
        scores = RowScores(
            plans,
            mask=inputs["attention_mask"] if self.pads_left else None,
            forced_end=self.usual.get("forced_eos_token_id"),
            **rows,
        )
        ends = RowEnds(plans, decode=self._text, **rows)
        config = copy.copy(self.neutral)
        config.do_sample, config.num_beams, config.num_return_sequences = False, plan.beams, 1
        config.max_new_tokens = max(plan.most for plan in plans)
        config.no_repeat_ngram_size = plan.no_repeat_ngram_size
        if plan.beams > 1:
            config.length_penalty, config.early_stopping = plan.length_penalty, plan.early_stopping
        made = self.model.generate(
            **inputs,
            generation_config=config,
            logits_processor=[scores],
            stopping_criteria=[ends] if plan.beams == 1 else None,
        )
        new = made[:, start:].cpu()
        counts = ends.made.tolist() if plan.beams == 1 else [self._until_end(row) for row in new.tolist()]
        return [row[:count] for row, count in zip(new, counts, strict=True)]

    def _text(self, tokens: Sequence[int]) -> str:
        text: str = self.tokenizer.decode(list(tokens), skip_special_tokens=True)
        return text

    def _until_end(self, tokens: Sequence[int]) -> int:
        """New tokens of a beam's row, up to the one that ended it."""
        return next((place + 1 for place, token in enumerate(tokens) if token in self.ends), len(tokens))

    def _sharing(self, features: Sequence[Prompt]) -> Iterator[list[int]]:
        """Places of prompts that may share a ``generate``.

        Where prompt and new tokens are one row, that row must fit the model's positions also for the row that ended
        early and waits for the others.
        """
        alike: dict[Any, list[int]] = {}
        for place, feature in enumerate(features):
            alike.setdefault(feature.plan.shares, []).append(place)
        if not self.pads_left or self.positions is None:
            yield from alike.values()
            return
        for places in alike.values():
            group: list[int] = []
            horizon = 0
            for place in sorted(places, key=lambda place: features[place].plan.most, reverse=True):
                horizon = horizon or features[place].plan.most
                if group and len(features[place].ids) + horizon > self.positions:
                    yield group
                    group, horizon = [], features[place].plan.most
                group.append(place)
            yield group


def again(plan: Plan, number: int) -> Plan:
    """The plan of the next text of the same seed."""
    return replace(plan, seed=(plan.seed[0], number))


def _positions(config: Any) -> int | None:
    """Positions of the model; None where it counts them from token to token, as T5 does."""
    found = getattr(config, "max_position_embeddings", None)
    return found if isinstance(found, int) and found > 0 else None


def _least(*limits: int | None) -> int | None:
    return min((limit for limit in limits if limit is not None), default=None)


def _before(text: str, stops: Sequence[str]) -> str:
    """The text before the first stop string in it."""
    found = [place for place in (text.find(stop) for stop in stops) if place >= 0]
    return text[: min(found)] if found else text
