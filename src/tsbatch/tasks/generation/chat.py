"""Check chats, and render them as prompts with the tokenizer's template."""

from __future__ import annotations

from typing import Any, Final

from tsbatch.errors import PayloadTooLarge, Unprocessable
from tsbatch.tasks.shared.schemas import STRING, object_of
from tsbatch.tasks.shared.task_handler import first_line

Chat = list[dict[str, str]]

MESSAGE_SCHEMA: Final = object_of({"role": STRING, "content": STRING}, additionalProperties=False)
"""JSON Schema of one message."""
_EXPECTED: Final = '{"messages": [{"role": "user", "content": "..."}, ...]}'


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
