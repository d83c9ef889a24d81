"""The parameters of a generation request, and how they become a plan with the model's defaults and limits.

Missing parameters come from the model folder's generation_config.json, as in transformers' pipelines, and then from the
pipelines' own defaults.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from tsbatch.errors import Unprocessable
from tsbatch.settings import Section
from tsbatch.tasks.generation.token_selection import Plan

NEW_TOKENS: Final = 256
"""New tokens if neither the request nor the model folder sets them, as in transformers' pipelines."""
ANY_DEFAULTS: Final = {"no_repeat_ngram_size": 0, "repetition_penalty": 1.0}
BEAM_DEFAULTS: Final = {"num_beams": 1, "length_penalty": 1.0, "early_stopping": False}
SAMPLING_DEFAULTS: Final = {"temperature": 1.0, "top_k": 50, "top_p": 1.0, "min_p": 0.0}
"""Settings of a plan if neither the request nor the model folder sets them, as in transformers' generate."""
MAX_SEED: Final = 2**63 - 1
MIN_TEMPERATURE: Final = 1e-4
"""A lower temperature counts as 0: scores divided by it would be infinite."""

StopString = Annotated[str, Field(min_length=1, max_length=200)]


class GenerationOptions(Section):
    """The section ``handler:`` of model-config.yaml."""

    max_new_tokens: int = Field(default=1024, ge=1, description="the limit for the new tokens of a request")
    max_input_tokens: int | None = Field(
        default=None, ge=1, description="the longest input; by default the number of the model's positions"
    )


class GenerationParameters(Section):
    """Parameters of a request, named as in transformers; the defaults are the model's own.

    Attributes:
        max_new_tokens: the largest number of new tokens.
        max_length: the same with the input (of an encoder-decoder: with its start token); older clients send it.
        min_new_tokens: new tokens before the text may end.
        min_length: the same with the input, as for ``max_length``.
        num_beams: beams of beam search; 1: no beam search.
        length_penalty: for beam search: values over 0 favour long texts.
        early_stopping: for beam search: when to end it.
        no_repeat_ngram_size: no sequence of this many tokens occurs twice.
        repetition_penalty: values over 1.0 make tokens that occurred before less likely.
        do_sample: sample each token; also on if one of the next four is given.
        temperature: randomness of the sampling; 0: always the likeliest token.
        top_k: sample from this many likeliest tokens; 0: from all.
        top_p: sample from the likeliest tokens that have this probability together.
        min_p: sample from tokens with at least this fraction of the likeliest one's probability.
        seed: the same seed gives the same text, alone and in any batch.
        stop: one or several strings that end the text and are cut off.
    """

    max_new_tokens: int | None = Field(default=None, ge=1)
    max_length: int | None = Field(default=None, ge=1)
    min_new_tokens: int | None = Field(default=None, ge=0)
    min_length: int | None = Field(default=None, ge=0)
    num_beams: int | None = Field(default=None, ge=1, le=16)
    length_penalty: float | None = Field(default=None, ge=-10.0, le=10.0)
    early_stopping: bool | Literal["never"] | None = None
    no_repeat_ngram_size: int | None = Field(default=None, ge=0, le=1000)
    repetition_penalty: float | None = Field(default=None, ge=0.01, le=100.0)
    do_sample: bool | None = None
    temperature: float | None = Field(default=None, ge=0.0, le=100.0)
    top_k: int | None = Field(default=None, ge=0, le=1_000_000)
    top_p: float | None = Field(default=None, gt=0.0, le=1.0)
    min_p: float | None = Field(default=None, ge=0.0, le=1.0)
    seed: int | None = Field(default=None, ge=0, le=MAX_SEED)
    stop: StopString | Annotated[list[StopString], Field(max_length=16)] | None = None


def samples(asked: GenerationParameters, defaults: Mapping[str, Any]) -> bool:
    """Whether tokens are sampled.

    Args:
        asked: the request's parameters.
        defaults: the model's own.
    """
    if asked.do_sample is False or (asked.temperature is not None and asked.temperature < MIN_TEMPERATURE):
        return False
    given = (asked.do_sample, asked.temperature, asked.top_k, asked.top_p, asked.min_p)
    return any(value is not None for value in given) or bool(defaults.get("do_sample"))


def make_plan(
    asked: GenerationParameters,
    defaults: Mapping[str, Any],
    *,
    prompt: int,
    room: int,
    cap: int,
    first: int | None = None,
) -> Plan:
    """Plan how to generate the text of a request.

    Args:
        asked: the request's parameters.
        defaults: the model's own, by the names of transformers' GenerationConfig.
        prompt: tokens that ``max_length`` counts besides the new ones.
        room: new tokens for which the model has positions.
        cap: new tokens that the operator allows.
        first: the token to begin with.

    Raises:
        Unprocessable: it asks for more new tokens than allowed, or for things that exclude each other.
    """
    max_new_tokens = _max_new_tokens(asked, defaults, prompt, room, cap)
    stop = asked.stop or ()
    common: dict[str, Any] = {
        "max_new_tokens": max_new_tokens,
        "min_new_tokens": _min_new_tokens(asked, defaults, prompt, max_new_tokens),
        "stops": (stop,) if isinstance(stop, str) else tuple(stop),
        "first": first,
    }
    sampled = samples(asked, defaults)
    if sampled and asked.num_beams is not None and asked.num_beams > 1:
        expected = "num_beams without do_sample, temperature, top_k, top_p and min_p, or these without num_beams"
        raise Unprocessable("parameters: beam search and sampling exclude each other", expected=expected)
    for name, default in {**ANY_DEFAULTS, **(SAMPLING_DEFAULTS if sampled else BEAM_DEFAULTS)}.items():
        given = (getattr(asked, name), defaults.get(name))
        common[name] = next((value for value in given if value is not None), default)
    return Plan(**common, seed=(asked.seed or 0, 0)) if sampled else Plan(**common)


def _max_new_tokens(asked: GenerationParameters, defaults: Mapping[str, Any], prompt: int, room: int, cap: int) -> int:
    name, count = "max_new_tokens", asked.max_new_tokens
    if count is None and asked.max_length is not None:
        name, count = "max_length", asked.max_length - prompt
    if count is None:
        own = defaults.get("max_new_tokens") or (defaults.get("max_length") or 0) - prompt
        return min(own if own > 0 else NEW_TOKENS, cap, room)
    if count < 1:
        message = f"parameters.{name}: {asked.max_length} does not exceed the {prompt} tokens of the input"
        raise Unprocessable(message, expected="max_new_tokens, which does not count the input")
    for limit, reason in ((cap, "handler.max_new_tokens of this model"), (room, "the positions of the model")):
        if count > limit:
            message = f"parameters.{name}: {count} new tokens are over {reason}, {limit}"
            raise Unprocessable(message, expected=f"{limit} new tokens or fewer, or a shorter input")
    return count


def _min_new_tokens(asked: GenerationParameters, defaults: Mapping[str, Any], prompt: int, limit: int) -> int:
    count = asked.min_new_tokens
    if count is None and asked.min_length is not None:
        count = max(0, asked.min_length - prompt)
    if count is None:
        own = defaults.get("min_new_tokens") or (defaults.get("min_length") or 0) - prompt
        return int(min(max(0, own), limit))
    if count > limit:
        raise Unprocessable(f"parameters: at least {count} new tokens and at most {limit} exclude each other")
    return count
