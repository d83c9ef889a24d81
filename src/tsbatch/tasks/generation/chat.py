"""A chat as a prompt, through the template that the tokenizer brings."""

from __future__ import annotations

from typing import Any, Final

from tsbatch.errors import PayloadTooLarge, Unprocessable
from tsbatch.tasks.shared.task_handler import first_line

Chat = list[dict[str, str]]

MESSAGE_SCHEMA: Final = {
    "type": "object",
    "required": ["role", "content"],
    "properties": {"role": {"type": "string"}, "content": {"type": "string"}},
    "additionalProperties": False,
}
"""JSON Schema of one message."""
_EXPECTED: Final = '{"messages": [{"role": "user", "content": "..."}, ...]}'


def is_message(value: Any) -> bool:
    """Whether a value is one message, and not a text or a whole chat."""
    return isinstance(value, dict) and value.keys() == {"role", "content"}


def check_chat(messages: Any, tokenizer: Any, limit: int) -> Chat:
    """The messages of a chat.

    Args:
        messages: what the client sent.
        tokenizer: whose template it is for.
        limit: characters that they may have together.

    Raises:
        Unprocessable: they are no messages, or the tokenizer has no template.
        PayloadTooLarge: too many characters.
    """
    if not getattr(tokenizer, "chat_template", None):
        raise Unprocessable("this model's tokenizer has no chat template", expected="a text")
    if not isinstance(messages, list) or not messages or not all(is_message(message) for message in messages):
        raise Unprocessable("the chat is no list of messages with role and content", expected=_EXPECTED)
    parts = [message[key] for message in messages for key in ("role", "content")]
    if not all(isinstance(part, str) for part in parts):
        raise Unprocessable("role and content of a message are not both texts", expected=_EXPECTED)
    count = sum(len(part) for part in parts)
    if count > limit:
        raise PayloadTooLarge(f"the chat has {count:,} characters, over the limit of {limit:,}")
    try:
        "".join(parts).encode()
    except UnicodeEncodeError:
        message = "the chat is not Unicode text: it has half of a surrogate pair"
        raise Unprocessable(message, expected="whole characters") from None
    return list(messages)


def render_chat(chat: Chat, tokenizer: Any) -> str | Unprocessable:
    """The chat as the model wants to read it, up to where the assistant's words go on; or what its template refuses."""
    goes_on = chat[-1]["role"] == "assistant"
    try:
        text: str = tokenizer.apply_chat_template(
            chat, tokenize=False, add_generation_prompt=not goes_on, continue_final_message=goes_on
        )
    except Exception as error:  # a template raises what it likes: about roles that do not take turns, for example
        return Unprocessable(f"the model's chat template refuses the messages: {first_line(error)[:200]}")
    return text
