"""text-generation: the continuation of a text or a chat, with any decoder of transformers.

Input: a text, a chat as ``{"messages": [{"role": "user", "content": "…"}]}``, or a list of these; a single chat may
also be just the list of its messages. Parameters: those of ``generation/parameters.py``, and ``num_return_sequences``,
``return_full_text``, ``stop_sequence``, ``handle_long_generation``, ``details``. Output for each item, as in
transformers' pipeline::

    [{"generated_text": "Once upon a time there was"}]                                  one for each requested text
    [{"generated_text": [{"role": "user", …}, {"role": "assistant", "content": "…"}]}]  for a chat

Decoding is greedy unless the model folder's generation_config.json or the request says otherwise. A prompt that leaves
no room for the new tokens gets a 422, or with ``"handle_long_generation": "hole"`` loses its beginning. Beam search
makes one text, and excludes sampling.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Final, Literal

import numpy as np
import torch
from pydantic import Field

from tsbatch.errors import PayloadTooLarge, Unprocessable, first_line
from tsbatch.protocol.request import Item, Request
from tsbatch.tasks.generation.handler import GeneratingHandler, Prompt
from tsbatch.tasks.generation.parameters import GenerationParameters, StopString, make_plan
from tsbatch.tasks.generation.token_selection import Plan
from tsbatch.tasks.shared.grouping import map_groups
from tsbatch.tasks.shared.schemas import INTEGER, STRING, array_of, object_of
from tsbatch.tasks.text.token_features import Ids

Chat = list[dict[str, str]]

MESSAGE_SCHEMA: Final = object_of({"role": STRING, "content": STRING}, additionalProperties=False)
"""JSON Schema of one message."""
_EXPECTED: Final = '{"messages": [{"role": "user", "content": "..."}, ...]}'
DETAILS_SCHEMA: Final = object_of(
    {},
    {
        "finish_reason": {"enum": ["length", "eos_token", "stop_sequence"]},
        "generated_tokens": INTEGER,
        "seed": {"type": ["integer", "null"]},
    },
)


class TextGenerationParameters(GenerationParameters):
    """Parameters of a request.

    Attributes:
        num_return_sequences: the number of texts, each sampled anew; needs sampling.
        return_full_text: false: the new text without the prompt.
        stop_sequence: one or several strings that end the text and stay in it; ``stop`` cuts them off.
        handle_long_generation: ``hole``: a prompt that leaves no room for the new tokens loses its beginning.
        details: include why the text ended, its number of new tokens and its seed.
    """

    num_return_sequences: int = Field(default=1, ge=1, le=16)
    return_full_text: bool = True
    stop_sequence: StopString | Annotated[list[StopString], Field(max_length=16)] | None = None
    handle_long_generation: Literal["hole"] | None = None
    details: bool = False


class TextGenerationHandler(GeneratingHandler):
    """Continues texts and chats. See the module for input, output and parameters."""

    task: ClassVar[str] = "text-generation"
    item_keys: ClassVar[frozenset[str]] = frozenset({"messages", "role", "content"})
    input_schema: ClassVar[Any] = {
        "oneOf": [
            STRING,
            object_of({"messages": array_of(MESSAGE_SCHEMA, minItems=1)}, additionalProperties=False),
        ]
    }
    output_schema: ClassVar[Any] = array_of(
        object_of({"generated_text": {"oneOf": [STRING, array_of(MESSAGE_SCHEMA)]}}, {"details": DETAILS_SCHEMA})
    )
    auto_class: ClassVar[str] = "AutoModelForCausalLM"
    parameters_class: ClassVar[Any] = TextGenerationParameters
    pads_left: ClassVar[bool] = True
    pipeline_defaults: ClassVar[Any] = {"temperature": 0.7}

    def prepare(self) -> None:
        """Read the model's defaults, the first token of a text, and the limit for prompt and new tokens together."""
        super().prepare()
        self.total = self.positions or self.max_input + self.options.max_new_tokens
        self.prefix = self._default_prefix()
        self.begin = self.neutral.bos_token_id

    def _default_prefix(self) -> str:
        """What goes before each text, as in transformers' pipeline: config.json's prefix, or XLNet's article."""
        given = getattr(self.model.config, "prefix", None)
        if given is None and type(self.model).__name__ == "XLNetLMHeadModel":
            from transformers import TextGenerationPipeline

            given = TextGenerationPipeline.XL_PREFIX
        return given or ""

    def example_parameters(self) -> Mapping[str, Any]:
        """Examples that are too long lose their beginning."""
        return {"handle_long_generation": "hole"}

    def decode_request(self, request: Request) -> list[Item]:
        """Decode the items of one request; a list of messages alone is one chat."""
        items = super().decode_request(request)
        messages = [is_message(item.value) for item in items]
        if not any(messages):
            return items
        if not all(messages):
            raise Unprocessable("the list has messages and other items", expected='chats as {"messages": [...]}')
        request.single = True
        return [Item(self._chat([item.value for item in items]), items[0].parameters, request)]

    def decode_item(self, value: Any) -> Any:
        """Check a text or a chat; a single message is left to :meth:`decode_request`.

        Raises:
            Unprocessable: not a chat, or this model has no chat template.
            PayloadTooLarge: more characters than ``tsbatch.limits.characters``.
        """
        if isinstance(value, str):
            return super().decode_item(value)
        return value if is_message(value) else self._chat(value.get("messages"))

    def preprocess(self, items: Sequence[Item]) -> list[Any]:
        """Turn texts and chats into prompts: for each item one or several, or its error."""
        return map_groups(items, [isinstance(item.value, list) for item in items], self._tokenize)

    def postprocess(self, outputs: Sequence[Any], items: Sequence[Item]) -> list[list[dict[str, Any]]]:
        """Decode the new tokens of all texts in one call of the tokenizer."""
        rows = [row if isinstance(row, list) else [row] for row in outputs]
        plans = [plan for item in items for plan in item.state]
        tokens = [one for row in rows for one in row]
        made = iter(zip(self.texts(tokens, plans), tokens, plans, strict=True))
        return [[self._record(item, *next(made)) for _ in row] for row, item in zip(rows, items, strict=True)]

    def _chat(self, messages: Any) -> list[dict[str, str]]:
        return check_chat(messages, self.tokenizer, self.settings.limits.characters)

    def _tokenize(self, items: Sequence[Item]) -> list[list[Prompt] | Unprocessable]:
        """The prompts of items that are all texts, or all chats."""
        chats = isinstance(items[0].value, list)
        texts = [render_chat(item.value, self.tokenizer) if chats else self.prefix + item.value for item in items]
        # A template writes the special tokens itself.
        known = [text if isinstance(text, str) else "" for text in texts]
        tokens = self.encode(known, add_special_tokens=not chats)
        return [
            text if isinstance(text, Unprocessable) else self._prompts(row.ids, item)
            for text, row, item in zip(texts, tokens, items, strict=True)
        ]

    def _prompts(self, ids: Ids, item: Item) -> list[Prompt] | Unprocessable:
        try:
            ids, plan = self._plan(ids, item.parameters)
        except Unprocessable as error:
            return error
        seed, count = plan.seed[0], item.parameters.num_return_sequences
        item.state = [replace(plan, seed=(seed, number)) for number in range(count)]
        return [Prompt(ids, plan=each) for each in item.state]

    def _plan(self, ids: Ids, asked: TextGenerationParameters) -> tuple[Ids, Plan]:
        """The prompt, cut to the room that there is, and its plan."""
        if len(ids) == 0:
            if self.begin is None:
                raise Unprocessable("the text has no token", expected="a text with at least one word")
            ids = np.array([self.begin], dtype=np.int64)
        hole = asked.handle_long_generation == "hole"
        total = min(self.total, self.token_limit()) if hole else self.total
        longest = min(self.max_input, total - 1)
        room = total - len(ids)
        if hole:
            given = asked.max_new_tokens is not None or asked.max_length is not None
            room = total - 1 if given else max(room, total // 2)
        elif len(ids) > longest:
            message = f"the prompt has {len(ids)} tokens, over this model's limit of {longest}"
            raise Unprocessable(message, expected='a shorter text, or "handle_long_generation": "hole"')
        first = self.defaults.get("forced_bos_token_id") if len(ids) == 1 else None  # as in transformers
        cap = self.options.max_new_tokens
        plan = make_plan(asked, self.defaults, prompt=len(ids), room=room, cap=cap, first=first)
        if asked.num_return_sequences > 1 and not plan.temperature:
            raise Unprocessable(
                "parameters.num_return_sequences: greedy decoding always gives the same text", expected="do_sample"
            )
        if asked.stop_sequence:
            plan = _with_stop_sequence(plan, asked.stop_sequence)
        return ids[-min(longest, total - plan.max_new_tokens) :], plan

    def _record(self, item: Item, text: str, tokens: torch.Tensor, plan: Plan) -> dict[str, Any]:
        asked: TextGenerationParameters = item.parameters
        chat = isinstance(item.value, list)
        whole: Any = text
        if asked.return_full_text:
            whole = _with_answer(item.value, text) if chat else item.value + text
        if not asked.details:
            return {"generated_text": whole}
        ended = len(tokens) > 0 and int(tokens[-1]) in self.ends
        reason = "eos_token" if ended else "length" if len(tokens) == plan.max_new_tokens else "stop_sequence"
        seed = plan.seed[0] if plan.temperature else None
        details = {"finish_reason": reason, "generated_tokens": len(tokens), "seed": seed}
        return {"generated_text": whole, "details": details}


def _with_stop_sequence(plan: Plan, stop: str | list[str]) -> Plan:
    if plan.stops or plan.num_beams > 1:
        other = "stop" if plan.stops else "beam search"
        raise Unprocessable(f"parameters: stop_sequence and {other} exclude each other", expected="one of them")
    return replace(plan, stops=(stop,) if isinstance(stop, str) else tuple(stop), keep_stop=True)


def _with_answer(chat: list[dict[str, str]], text: str) -> list[dict[str, str]]:
    """The chat with the new message; if its last message is the assistant's, with that one continued."""
    last = chat[-1]
    if last["role"] == "assistant":
        return [*chat[:-1], {"role": "assistant", "content": last["content"] + text}]
    return [*chat, {"role": "assistant", "content": text}]


def is_message(value: Any) -> bool:
    """Whether a value is a single message, not a text or a whole chat."""
    return isinstance(value, dict) and value.keys() == {"role", "content"}


def check_chat(messages: Any, tokenizer: Any, limit: int) -> Chat:
    """Check the messages of a chat.

    Args:
        messages: what the client sent.
        tokenizer: the tokenizer, whose template renders them.
        limit: the limit for their characters together.

    Raises:
        Unprocessable: they are not messages, or the tokenizer has no template.
        PayloadTooLarge: too many characters.
    """
    if not getattr(tokenizer, "chat_template", None):
        raise Unprocessable("this model's tokenizer has no chat template", expected="a text")
    if not isinstance(messages, list) or not messages or not all(is_message(message) for message in messages):
        raise Unprocessable("the chat is not a list of messages with role and content", expected=_EXPECTED)
    parts = [message[key] for message in messages for key in ("role", "content")]
    if not all(isinstance(part, str) for part in parts):
        raise Unprocessable("role and content of a message are not both texts", expected=_EXPECTED)
    count = sum(len(part) for part in parts)
    if count > limit:
        raise PayloadTooLarge(f"the chat has {count:,} characters, over the limit of {limit:,}")
    try:
        "".join(parts).encode()
    except UnicodeEncodeError:
        message = "the chat is not valid Unicode text: it has half of a surrogate pair"
        raise Unprocessable(message, expected="whole characters") from None
    return list(messages)


def render_chat(chat: Chat, tokenizer: Any) -> str | Unprocessable:
    """Render the chat up to where the assistant continues; or return the error of the model's template."""
    continues = chat[-1]["role"] == "assistant"
    try:
        text: str = tokenizer.apply_chat_template(
            chat, tokenize=False, add_generation_prompt=not continues, continue_final_message=continues
        )
    except Exception as error:  # a template may raise anything, about roles that do not alternate for example
        return Unprocessable(f"the model's chat template refuses the messages: {first_line(error)[:200]}")
    return text
