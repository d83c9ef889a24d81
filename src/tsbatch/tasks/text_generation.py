"""text-generation: goes on after a text or a chat, with any decoder of transformers.

Input: a text, a chat as ``{"messages": [{"role": "user", "content": "…"}]}``, or a list of these; one chat may also
come as a list of its messages alone. Parameters: those of ``generation/parameters.py``, and ``num_return_sequences``,
``return_full_text``, ``stop_sequence``, ``handle_long_generation``, ``details``. Output for each item, as transformers'
pipeline has it::

    [{"generated_text": "Once upon a time there was"}]                                  one for each text asked for
    [{"generated_text": [{"role": "user", …}, {"role": "assistant", "content": "…"}]}]  for a chat

Greedy unless the model folder's generation_config.json or the request says otherwise. A prompt that leaves no room
for the new tokens gets a 422, or with ``"handle_long_generation": "hole"`` loses its beginning. Beam search makes one
text, and no sampling.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field

from tsbatch.errors import Unprocessable
from tsbatch.protocol.request import Item, Request
from tsbatch.tasks.generation.chat import MESSAGE_SCHEMA, check_chat, is_message, render_chat
from tsbatch.tasks.generation.handler import EXAMPLE_PARAMETERS, GeneratingHandler, Prompt, again
from tsbatch.tasks.generation.parameters import GenerationParameters, StopString, make_plan
from tsbatch.tasks.generation.token_selection import Plan
from tsbatch.tasks.text.token_features import Ids


class TextGenerationParameters(GenerationParameters):
    """What a request may ask for.

    Attributes:
        num_return_sequences: so many texts, each drawn anew; with sampling alone.
        return_full_text: false: the new text without the prompt.
        stop_sequence: a string, or several, that ends the text and stays in it; ``stop`` cuts it off.
        handle_long_generation: ``hole``: a prompt that leaves no room for the new tokens loses its beginning.
        details: also tell why the text ended, its new tokens and the seed it was drawn with.
    """

    num_return_sequences: int = Field(default=1, ge=1, le=16)
    return_full_text: bool = True
    stop_sequence: StopString | Annotated[list[StopString], Field(max_length=16)] | None = None
    handle_long_generation: Literal["hole"] | None = None
    details: bool = False


class TextGenerationHandler(GeneratingHandler):
    """Goes on after texts and chats. See the module for input, output and parameters."""

    task: ClassVar[str] = "text-generation"
    item_keys: ClassVar[frozenset[str]] = frozenset({"messages", "role", "content"})
    input_schema: ClassVar[Any] = {
        "oneOf": [
            {"type": "string"},
            {
                "type": "object",
                "required": ["messages"],
                "properties": {"messages": {"type": "array", "minItems": 1, "items": MESSAGE_SCHEMA}},
                "additionalProperties": False,
            },
        ]
    }
    output_schema: ClassVar[Any] = {
        "type": "array",
        "items": {
            "type": "object",
            "required": ["generated_text"],
            "properties": {
                "generated_text": {"oneOf": [{"type": "string"}, {"type": "array", "items": MESSAGE_SCHEMA}]},
                "details": {
                    "type": "object",
                    "properties": {
                        "finish_reason": {"enum": ["length", "eos_token", "stop_sequence"]},
                        "generated_tokens": {"type": "integer"},
                        "seed": {"type": ["integer", "null"]},
                    },
                },
            },
        },
    }
    parameters_class: ClassVar[Any] = TextGenerationParameters
    pads_left: ClassVar[bool] = True
    pipeline_defaults: ClassVar[Any] = {"temperature": 0.7}

    def load_model(self) -> Any:
        """The decoder."""
        from transformers import AutoModelForCausalLM

        return self.load_pretrained(AutoModelForCausalLM, complete=True)

    def prepare(self) -> None:
        """Find the model's defaults, what begins each text, and how long one may be, prompt and new tokens together."""
        super().prepare()
        self.total = self.positions or self.most_input + self.options.max_new_tokens
        self.prefix = getattr(self.model.config, "prefix", None) or ""
        self.begin = self.neutral.bos_token_id

    def examples(self) -> Sequence[Any]:
        """Texts of the lengths that clients send, with few tokens to make."""
        parameters = {**EXAMPLE_PARAMETERS, "handle_long_generation": "hole"}
        return [{"text": text, "parameters": parameters} for text in super().examples()]

    def decode_request(self, request: Request) -> list[Item]:
        """The items of one request; a list of messages alone is one chat."""
        items = super().decode_request(request)
        messages = [is_message(item.value) for item in items]
        if not any(messages):
            return items
        if not all(messages):
            raise Unprocessable("a list of messages and other items", expected='chats as {"messages": [...]}')
        request.single = True
        return [Item(self._chat([item.value for item in items]), items[0].parameters, request)]

    def decode_item(self, value: Any) -> Any:
        """A text or a chat within the limit; a message alone is left to :meth:`decode_request`.

        Raises:
            Unprocessable: no chat, or this model has no template for one.
            PayloadTooLarge: more characters than ``tsbatch.limits.characters``.
        """
        if isinstance(value, str):
            return super().decode_item(value)
        return value if is_message(value) else self._chat(value.get("messages"))

    def preprocess(self, items: Sequence[Item]) -> list[Any]:
        """Texts and chats to prompts, one or several an item, or its error."""
        prompts: list[Any] = [None] * len(items)
        for chats in (False, True):
            places = [place for place, item in enumerate(items) if isinstance(item.value, list) is chats]
            read = [self._read(items[place].value) for place in places]
            texts = [text if isinstance(text, str) else "" for text in read]
            # A template writes the special tokens itself.
            ids = self._ids(texts, add_special_tokens=False) if chats and texts else self._ids(texts) if texts else []
            for place, text, row in zip(places, read, ids, strict=True):
                prompts[place] = text if isinstance(text, Unprocessable) else self._prompts(row, items[place])
        return prompts

    def postprocess(self, outputs: Sequence[Any], items: Sequence[Item]) -> list[list[dict[str, Any]]]:
        """New tokens to texts, all of them in one call of the tokenizer."""
        rows = [row if isinstance(row, list) else [row] for row in outputs]
        plans = [plan for item in items for plan in item.state]
        tokens = [one for row in rows for one in row]
        made = iter(zip(self.texts(tokens, plans), tokens, plans, strict=True))
        return [[self._record(item, *next(made)) for _ in row] for row, item in zip(rows, items, strict=True)]

    def _chat(self, messages: Any) -> list[dict[str, str]]:
        return check_chat(messages, self.tokenizer, self.settings.limits.characters)

    def _read(self, value: str | list[dict[str, str]]) -> str | Unprocessable:
        return self.prefix + value if isinstance(value, str) else render_chat(value, self.tokenizer)

    def _prompts(self, row: Sequence[int], item: Item) -> list[Prompt] | Unprocessable:
        try:
            ids, plan = self._fit(np.asarray(row, dtype=np.int64), item.parameters)
        except Unprocessable as error:
            return error
        item.state = [again(plan, number) for number in range(item.parameters.num_return_sequences)]
        return [Prompt(ids, each) for each in item.state]

    def _fit(self, ids: Ids, wish: TextGenerationParameters) -> tuple[Ids, Plan]:
        """The prompt, as much of it as there is room for, and its plan."""
        if len(ids) == 0:
            if self.begin is None:
                raise Unprocessable("the text has no token", expected="a text with at least one word")
            ids = np.array([self.begin], dtype=np.int64)
        hole = wish.handle_long_generation == "hole"
        total = min(self.total, self.token_limit()) if hole else self.total
        longest = min(self.most_input, total - 1)
        room = total - len(ids)
        if hole:
            asked = wish.max_new_tokens is not None or wish.max_length is not None
            room = total - 1 if asked else max(room, total // 2)
        elif len(ids) > longest:
            message = f"the prompt has {len(ids)} tokens, and this model takes {longest}"
            raise Unprocessable(message, expected='a shorter text, or "handle_long_generation": "hole"')
        plan = make_plan(wish, self.usual, prompt=len(ids), room=room, cap=self.options.max_new_tokens)
        if wish.num_return_sequences > 1 and not plan.temperature:
            raise Unprocessable("parameters.num_return_sequences: greedy texts are all alike", expected="do_sample")
        if wish.stop_sequence:
            plan = _keeping(plan, wish.stop_sequence)
        return ids[-min(longest, total - plan.most) :], plan

    def _record(self, item: Item, text: str, tokens: torch.Tensor, plan: Plan) -> dict[str, Any]:
        wish: TextGenerationParameters = item.parameters
        chat = isinstance(item.value, list)
        whole: Any = text
        if wish.return_full_text:
            whole = _answered(item.value, text) if chat else item.value + text
        if not wish.details:
            return {"generated_text": whole}
        ended = len(tokens) > 0 and int(tokens[-1]) in self.ends
        reason = "eos_token" if ended else "length" if len(tokens) == plan.most else "stop_sequence"
        seed = plan.seed[0] if plan.temperature else None
        details = {"finish_reason": reason, "generated_tokens": len(tokens), "seed": seed}
        return {"generated_text": whole, "details": details}


def _keeping(plan: Plan, stop: str | list[str]) -> Plan:
    if plan.stops or plan.beams > 1:
        other = "stop" if plan.stops else "beam search"
        raise Unprocessable(f"parameters: stop_sequence and {other} exclude each other", expected="one of them")
    return replace(plan, stops=(stop,) if isinstance(stop, str) else tuple(stop), keep_stop=True)


def _answered(chat: list[dict[str, str]], text: str) -> list[dict[str, str]]:
    """The chat with the new message, or with its last one gone on with where that was the assistant's."""
    last = chat[-1]
    if last["role"] == "assistant":
        return [*chat[:-1], {"role": "assistant", "content": last["content"] + text}]
    return [*chat, {"role": "assistant", "content": text}]
