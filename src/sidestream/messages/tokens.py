"""An estimate of the tokens in messages, cheap, without a tokenizer, and accurate to about 25 %."""

from collections.abc import Iterable
from typing import assert_never

from sidestream import jsontext
from sidestream.messages.message import (
    ApprovalPart,
    ChatMessage,
    DataPart,
    LinkPart,
    MessagePart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultPart,
    file_note,
    shown_of_result,
)

BYTES_PER_TOKEN = 4
"""Bytes of UTF-8 text per token: about right for English prose, and for scripts of three bytes a character."""
PER_MESSAGE = 4
"""Tokens of the frame around a message, and around a call or result in it."""
PER_IMAGE = 1500
"""Tokens of an image. Providers count between 250 and 1,600 at common sizes."""
BYTES_PER_FILE_TOKEN = 100
"""Bytes of a PDF or an audio file per token. A PDF page has about 100 kB and 1,000 tokens."""


def text_tokens(text: str) -> int:
    """Estimate the tokens of a string, rounded up."""
    return -(-len(text.encode("utf-8", "surrogatepass")) // BYTES_PER_TOKEN)


def message_tokens(messages: Iterable[ChatMessage]) -> int:
    """Estimate the tokens of messages."""
    return sum(PER_MESSAGE + sum(map(_part_tokens, message.parts)) for message in messages)


def _part_tokens(part: MessagePart) -> int:
    match part:
        case TextPart():
            return text_tokens(part.text)
        case ThinkingPart():
            return 0  # For display only; it is not sent back.
        case DataPart():
            return _data_tokens(part) if part.to == "model" else text_tokens(file_note(part))
        case LinkPart():
            return PER_IMAGE
        case ToolCallPart():
            given = part.input_text if part.input_text is not None else _json(part.input)
            return PER_MESSAGE + text_tokens(part.name) + text_tokens(given)
        case ToolResultPart():
            shown = shown_of_result(part.result)
            return PER_MESSAGE + (sum(map(_part_tokens, shown)) if shown else text_tokens(_json(part.result)))
        case ApprovalPart():
            return PER_MESSAGE
        case _:
            assert_never(part)


def _data_tokens(part: DataPart) -> int:
    if part.mime_type.startswith("image/"):
        return PER_IMAGE
    return len(part.data) // (BYTES_PER_TOKEN if part.mime_type.startswith("text/") else BYTES_PER_FILE_TOKEN) + 1


def _json(value: object) -> str:
    return value if isinstance(value, str) else jsontext.dumps(value).decode("utf-8", "replace")
