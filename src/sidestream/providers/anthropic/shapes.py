"""The provider's events, blocks and deltas as far as they are read: typed, what may be missing has a default.

A value of the wrong type fails the conversion, and the event becomes a `raw` part before any state has changed.
"""

from typing import Any

from msgspec import Struct


class Event(Struct):
    """Base of all events."""


class MessageStart(Event, kw_only=True):
    message: dict[str, Any]


class BlockStart(Event, kw_only=True):
    index: int
    content_block: dict[str, Any]


class BlockDelta(Event, kw_only=True):
    index: int
    delta: dict[str, Any]


class BlockStop(Event, kw_only=True):
    index: int


class MessageDelta(Event, kw_only=True):
    delta: dict[str, Any] | None = None
    usage: dict[str, Any] | None = None


class ErrorEvent(Event, kw_only=True):
    error: dict[str, Any] | None = None


class TextDelta(Struct, kw_only=True):
    text: str


class InputDelta(Struct, kw_only=True):
    partial_json: str


class CitationDelta(Struct, kw_only=True):
    citation: dict[str, Any]


class ThinkingDelta(Struct, kw_only=True):
    thinking: str


class SignatureDelta(Struct, kw_only=True):
    signature: str


class CompactionDelta(Struct, kw_only=True):
    content: str | None = None
    encrypted_content: str | None = None


class Block(Struct, kw_only=True):
    """Base of all content blocks."""


class TextBlock(Block, kw_only=True):
    text: str | None = None
    citations: list[dict[str, Any]] | None = None


class ThinkingBlock(Block, kw_only=True):
    thinking: str | None = None
    signature: str | None = None


class RedactedBlock(Block, kw_only=True):
    data: str | None = None


class CallBlock(Block, kw_only=True):
    """tool_use, server_tool_use, mcp_tool_use."""

    name: str
    id: str | None = None
    input: Any = None
    caller: dict[str, Any] | None = None
    toolset_name: str | None = None
    server_name: str | None = None


class ResultBlock(Block, kw_only=True):
    """What a server-side tool gave back; complete when it starts."""

    tool_use_id: str
    content: Any = None
    is_error: bool | None = None


class UploadBlock(Block, kw_only=True):
    file_id: str


class ListingBlock(Block, kw_only=True):
    mcp_server_name: str | None = None
    tools: list[Any] | None = None


class CompactionBlock(Block, kw_only=True):
    content: str | None = None
    encrypted_content: str | None = None
