"""Typed events, blocks and deltas of a message, with the fields that the decoder uses.

A value of the wrong type fails the conversion, and the event becomes a `raw` part before any state has changed.
"""

from typing import Any

from msgspec import Struct


class MessageStart(Struct, kw_only=True):
    message: dict[str, Any]


class BlockStart(Struct, kw_only=True):
    index: int
    content_block: dict[str, Any]


class BlockDelta(Struct, kw_only=True):
    index: int
    delta: dict[str, Any]


class BlockStop(Struct, kw_only=True):
    index: int


class MessageDelta(Struct, kw_only=True):
    delta: dict[str, Any] | None = None
    usage: dict[str, Any] | None = None


class MessageStop(Struct):
    """The event message_stop, which has no fields."""


class MessagesError(Struct, kw_only=True):
    error: dict[str, Any] | None = None


class BlockTextDelta(Struct, kw_only=True):
    text: str


class InputDelta(Struct, kw_only=True):
    partial_json: str


class CitationDelta(Struct, kw_only=True):
    citation: dict[str, Any]


class ThinkingDelta(Struct, kw_only=True):
    thinking: str


class BlockSignatureDelta(Struct, kw_only=True):
    signature: str


class CompactionDelta(Struct, kw_only=True):
    content: str | None = None
    encrypted_content: str | None = None


class ContentBlock(Struct, kw_only=True):
    """Base of all content blocks."""


class TextBlock(ContentBlock, kw_only=True):
    text: str | None = None
    citations: list[dict[str, Any]] | None = None


class ThinkingBlock(ContentBlock, kw_only=True):
    thinking: str | None = None
    signature: str | None = None


class RedactedBlock(ContentBlock, kw_only=True):
    data: str | None = None


class CallBlock(ContentBlock, kw_only=True):
    """The blocks tool_use, server_tool_use and mcp_tool_use."""

    name: str
    id: str | None = None
    input: Any = None
    caller: dict[str, Any] | None = None
    toolset_name: str | None = None
    server_name: str | None = None


class ResultBlock(ContentBlock, kw_only=True):
    """The result of a server-side tool. It is complete when it starts."""

    tool_use_id: str
    content: Any = None
    is_error: bool | None = None


class UploadBlock(ContentBlock, kw_only=True):
    file_id: str


class ListingBlock(ContentBlock, kw_only=True):
    mcp_server_name: str | None = None
    tools: list[Any] | None = None


class CompactionBlock(ContentBlock, kw_only=True):
    content: str | None = None
    encrypted_content: str | None = None
