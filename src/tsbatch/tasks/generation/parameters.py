"""What a request may ask of a generating model, and the plan that its defaults and limits make of it.

What a request leaves out comes from the model folder's generation_config.json, as in transformers' pipelines, and then
from the pipelines' own defaults.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from tsbatch.errors import Unprocessable
from tsbatch.settings import Section
from tsbatch.tasks.generation.token_selection import Plan

NEW_TOKENS: Final = 256
"""New tokens where neither the request nor the model folder says, as in transformers' pipelines."""
TOP_K: Final = 50
"""As in transformers' generate."""
MAX_SEED: Final = 2**63 - 1
COLDEST: Final = 1e-4
"""A lower temperature is taken as 0: scores over it would be infinite."""

StopString = Annotated[str, Field(min_length=1, max_length=200)]


class GenerationOptions(Section):
    """The section ``handler:`` of model-config.yaml."""

    max_new_tokens: int = Field(default=1024, ge=1, description="the most new tokens that a request may ask for")
    max_input_tokens: int | None = Field(
        default=None, ge=1, description="the longest input; by default what the model has positions for"
    )


class GenerationParameters(Section):
    """What a request may ask for, named as in transformers; what it leaves out is the model's own default.

    Attributes:
        max_new_tokens: new tokens at most.
        max_length: the same, input included (of an encoder-decoder: the token it starts with); older clients send it.
        min_new_tokens: new tokens before the text may end.
        min_length: the same, input included as for ``max_length``.
        num_beams: beams of beam search; 1: none.
        length_penalty: of beam search: over 0 favours long texts.
        early_stopping: of beam search: when to end it.
        no_repeat_ngram_size: no sequence of so many tokens comes twice.
        repetition_penalty: over 1.0: what was said before is less likely.
        do_sample: draw each token; on too where one of the next four is given.
        temperature: how freely; 0: the likeliest token always.
        top_k: draw from so many likeliest tokens; 0: from all.
        top_p: draw from the likeliest tokens that have this probability together.
        min_p: draw from tokens that have this part of the likeliest one's probability.
        seed: the same seed makes the same text, alone and in any batch.
        stop: a string, or several, that ends the text and is cut off.
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


def samples(wish: GenerationParameters, usual: Mapping[str, Any]) -> bool:
    """Whether tokens are drawn.

    Args:
        wish: the request's parameters.
        usual: the model's own.
    """
    if wish.do_sample is False or (wish.temperature is not None and wish.temperature < COLDEST):
        return False
    asked = (wish.do_sample, wish.temperature, wish.top_k, wish.top_p, wish.min_p)
    return any(value is not None for value in asked) or bool(usual.get("do_sample"))


def make_plan(
    wish: GenerationParameters,
    usual: Mapping[str, Any],
    *,
    prompt: int,
    room: int,
    cap: int,
    first: int | None = None,
) -> Plan:
    """How the text of a request is made.

    Args:
        wish: the request's parameters.
        usual: the model's own, by the names of transformers' GenerationConfig.
        prompt: tokens that ``max_length`` counts beside the new ones.
        room: new tokens that the model has positions for.
        cap: new tokens that the operator allows.
        first: the token to begin with.

    Raises:
        Unprocessable: it asks for more new tokens than there may be, or for what excludes each other.
    """
    most = _most(wish, usual, prompt, room, cap)
    stop = wish.stop or ()
    shape: dict[str, Any] = {
        "most": most,
        "least": _least(wish, usual, prompt, most),
        "no_repeat_ngram_size": _chosen(wish, usual, "no_repeat_ngram_size", 0),
        "repetition_penalty": _chosen(wish, usual, "repetition_penalty", 1.0),
        "stops": (stop,) if isinstance(stop, str) else tuple(stop),
        "first": first,
    }
    if not samples(wish, usual):
        return Plan(
            **shape,
            beams=_chosen(wish, usual, "num_beams", 1),
            length_penalty=_chosen(wish, usual, "length_penalty", 1.0),
            early_stopping=_chosen(wish, usual, "early_stopping", False),
        )
    if wish.num_beams is not None and wish.num_beams > 1:
        expected = "num_beams without do_sample, temperature, top_k, top_p and min_p, or these without num_beams"
        raise Unprocessable("parameters: beam search and sampling exclude each other", expected=expected)
    return Plan(
        **shape,
        temperature=_chosen(wish, usual, "temperature", 1.0),
        top_k=_chosen(wish, usual, "top_k", TOP_K),
        top_p=_chosen(wish, usual, "top_p", 1.0),
        min_p=_chosen(wish, usual, "min_p", 0.0),
        seed=(wish.seed or 0, 0),
    )


def _chosen(wish: GenerationParameters, usual: Mapping[str, Any], name: str, default: Any) -> Any:
    for value in (getattr(wish, name), usual.get(name)):
        if value is not None:
            return value
    return default


def _most(wish: GenerationParameters, usual: Mapping[str, Any], prompt: int, room: int, cap: int) -> int:
    name, asked = "max_new_tokens", wish.max_new_tokens
    if asked is None and wish.max_length is not None:
        name, asked = "max_length", wish.max_length - prompt
    if asked is None:
        own = usual.get("max_new_tokens") or (usual.get("max_length") or 0) - prompt
        return min(own if own > 0 else NEW_TOKENS, cap, room)
    if asked < 1:
        message = f"parameters.{name}: {wish.max_length} is no more than the {prompt} tokens of the input"
        raise Unprocessable(message, expected="max_new_tokens, which does not count the input")
    for limit, reason in ((cap, "handler.max_new_tokens of this model"), (room, "what the model has positions for")):
        if asked > limit:
            message = f"parameters.{name}: {asked} new tokens are over {reason}, {limit}"
            raise Unprocessable(message, expected=f"{limit} new tokens or fewer, or a shorter input")
    return asked


def _least(wish: GenerationParameters, usual: Mapping[str, Any], prompt: int, most: int) -> int:
    asked = wish.min_new_tokens
    if asked is None and wish.min_length is not None:
        asked = max(0, wish.min_length - prompt)
    if asked is None:
        own = usual.get("min_new_tokens") or (usual.get("min_length") or 0) - prompt
        return int(min(max(0, own), most))
    if asked > most:
        raise Unprocessable(f"parameters: at least {asked} new tokens and at most {most} exclude each other")
    return asked
