"""Conversion of messages to the API's messages, with files, links and tool results as content.

Answers of this provider are resent as the blocks they arrived as, unless their parts were edited. All others are
encoded from their parts. Every call gets exactly one result, right after it. Metadata and thinking of other providers
are never sent.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from sidestream import jsontext
from sidestream.files import media_types
from sidestream.jsontext import JsonObject, is_array, is_object
from sidestream.messages.message import (
    BROWSER_STATE,
    NOT_EXECUTED,
    ChatMessage,
    DataPart,
    LinkPart,
    MessagePart,
    Role,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultPart,
    shown_of_result,
)
from sidestream.messages.references import Replays
from sidestream.providers.anthropic.encode.replay import (
    SERVER_CALLS,
    BlockLayout,
    BlockParts,
    addition_blocks,
    layout_of,
    replayable,
)
from sidestream.providers.anthropic.files import FILE_SCHEME
from sidestream.providers.shared.attachments import as_base64, link_text, link_type, stored_id, text_of
from sidestream.providers.shared.histories import ILLEGAL_IN_NAME, HistoryWriter, hashed_id, input_object, legal_name

IMAGES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
PDF = "application/pdf"
_RESULT_BLOCKS = frozenset({"text", "image", "document", "search_result", "tool_reference", BROWSER_STATE})


def content_of(part: DataPart | LinkPart, *, citations: bool) -> JsonObject:
    """Encode a file or link as a block of a user message."""
    return _data(part, citations) if isinstance(part, DataPart) else _link(part, citations)


def can_show(part: DataPart | LinkPart) -> bool:
    """Return whether the API accepts a file. Otherwise only its name is sent."""
    return isinstance(part, LinkPart) or part.mime_type in (*IMAGES, PDF) or _text_of(part) is not None


def _data(part: DataPart, citations: bool) -> JsonObject:
    if part.mime_type in IMAGES:
        return {"type": "image", "source": _base64(part)}
    if part.mime_type == PDF:
        return _document(_base64(part), part.name, citations)
    text = _text_of(part)
    if text is not None:
        return _document({"type": "text", "media_type": "text/plain", "data": text}, part.name, citations)
    return {"type": "text", "text": f"[A file that cannot be shown: {part.name or 'unnamed'}, {part.mime_type}]"}


def _text_of(part: DataPart) -> str | None:
    return text_of(part, part.mime_type.partition(";")[0].strip()) or None


def _base64(part: DataPart) -> JsonObject:
    return {"type": "base64", "media_type": part.mime_type, "data": as_base64(part)}


def _document(source: JsonObject, title: str | None, citations: bool) -> JsonObject:
    named = {"title": title} if title else {}
    return {"type": "document", "source": source, **named, **({"citations": {"enabled": True}} if citations else {})}


def _link(part: LinkPart, citations: bool) -> JsonObject:
    scheme = part.url.partition(":")[0]
    kind = link_type(part)
    if scheme in ("http", "https"):
        source = {"type": "url", "url": part.url}
        if kind in IMAGES:
            return {"type": "image", "source": source}
        if kind == PDF:
            return _document(source, part.name, citations)
    if file_id := stored_id(part, FILE_SCHEME):
        stored = {"type": "file", "file_id": file_id}
        is_image = (kind or "").startswith("image/")
        return {"type": "image", "source": stored} if is_image else _document(stored, part.name, citations)
    return {"type": "text", "text": link_text(part)}


def result_content(result: Any) -> str | list[JsonObject]:
    """Convert a tool result to content. Text and the API's own blocks stay unchanged, other values become JSON."""
    if isinstance(result, str):
        return result
    if shown := shown_of_result(result):
        blocks = [
            {"type": "text", "text": part.text} if isinstance(part, TextPart) else content_of(part, citations=False)
            for part in shown
        ]
        return [*blocks, *(entry for entry in result if is_object(entry) and entry.get("type") == BROWSER_STATE)]
    entries: list[Any] = result if is_array(result) else [result]
    blocks = [entry for entry in entries if is_object(entry) and entry.get("type") in _RESULT_BLOCKS]
    if blocks and len(blocks) == len(entries):
        return blocks
    picture = result.get("image_url") if is_object(result) else None
    if isinstance(picture, str):
        return [_picture(picture)]
    return jsontext.dumps(result).decode()


def _picture(url: str) -> JsonObject:
    """Encode a screenshot by its URL, or inline from a `data:` URL."""
    if inline := media_types.split_data_url(url):
        mime_type, _, data = inline
        return {"type": "image", "source": {"type": "base64", "media_type": mime_type or "image/png", "data": data}}
    return {"type": "image", "source": {"type": "url", "url": url}}


def tool_result(call: JsonObject, result: ToolResultPart | None) -> JsonObject:
    """Encode the result block of a call, or an error block if there is no result."""
    toolset = {"toolset_name": call["toolset_name"]} if call.get("toolset_name") else {}
    content: str | list[JsonObject] = NOT_EXECUTED if result is None else result_content(result.result)
    failed = {"is_error": True} if result is None or result.is_error else {}
    return {"type": "tool_result", "tool_use_id": call["id"], "content": content, **failed, **toolset}


class MessagesTarget(Struct, frozen=True, kw_only=True):
    """The model and server that the messages are for, and how to encode them."""

    model: str
    base_url: str
    provider: str
    replays: Replays
    citations: bool = False
    has_session: bool = True
    """Whether answers may be resent as blocks. If false, they are encoded from their parts only."""
    has_thinking: bool = True
    """Whether thinking is sent."""
    first: int = 0
    """Index of the first message to send. The server holds the earlier ones, which only show which calls are
    pending."""
    servers: frozenset[str] = frozenset()
    """MCP servers of the request. The API refuses listings of others."""
    added_tools: Mapping[int, list[JsonObject]] = {}
    """Tools added just before a message, by its index."""


class EncodedMessages(Struct, frozen=True):
    """Encoded messages, the system prompt, and warnings about omissions."""

    messages: list[JsonObject]
    system: list[str]
    warnings: list[str]
    waiting: dict[str, JsonObject]
    """Server-side calls that are still in progress, by id."""


def encode_messages(messages: Sequence[ChatMessage], target: MessagesTarget) -> EncodedMessages:
    """Encode the history."""
    writer = _MessagesWriter(messages, target)
    held = 0
    for place, message in enumerate(messages):
        if place == target.first:
            held = len(writer.messages)
        if place in target.added_tools:
            writer.add_tools(target.added_tools[place])
        writer.write(message)
    if target.first >= len(messages):
        held = len(writer.messages)
    writer.flush()
    waiting = _drop_unpaired(writer.messages)
    kept = [message for message in writer.messages[held:] if message["content"]]
    return EncodedMessages(_merged(kept), writer.system, writer.warnings, waiting)


class _MessagesWriter(HistoryWriter):
    """A writer of messages."""

    def __init__(self, messages: Sequence[ChatMessage], target: MessagesTarget) -> None:
        super().__init__(messages)
        self.messages: list[JsonObject] = []
        self.system: list[str] = []
        self._target = target

    def add_tools(self, tools: Sequence[JsonObject]) -> None:
        """Append the system message that adds tools, after the results of pending calls."""
        self.flush()
        self.append("system", addition_blocks(tools))

    def append(self, role: Role, entries: list[JsonObject]) -> None:
        self.messages.append({"role": _ROLES[role], "content": entries})

    def instruct(self, text: str) -> None:
        """Add leading instructions to the system prompt, and later ones in their position."""
        if not self.messages:
            self.system.append(text)
        elif text.strip():
            self.flush()
            self.append("system", [{"type": "text", "text": text}])

    def text(self, text: str, role: Role) -> JsonObject | None:
        return {"type": "text", "text": text} if text.strip() else None

    def thinking(self, part: ThinkingPart) -> JsonObject | None:
        if part.provider != self._target.provider or not self._target.has_thinking:
            return None
        if part.signature:
            return {"type": "thinking", "thinking": part.text, "signature": part.signature}
        return {"type": "redacted_thinking", "data": part.encrypted_content} if part.encrypted_content else None

    def file(self, part: DataPart | LinkPart) -> JsonObject:
        if not can_show(part):
            kind = part.mime_type or "a file"
            self.warnings.append(f"the API does not accept {part.name or 'a file'} ({kind}); only its name is sent")
        return content_of(part, citations=self._target.citations)

    def result(self, call: JsonObject, result: ToolResultPart | None) -> JsonObject:
        return tool_result(call, result)

    def replay(self, message: ChatMessage) -> tuple[list[JsonObject], Sequence[MessagePart]]:
        target = self._target
        layout = layout_of(message, target.model, target.base_url, target.replays) if target.has_session else None
        if layout is None:
            return [], message.parts
        parts = BlockParts(message.parts)
        content = self._replayed(layout, parts)
        # The resent blocks already include files and links.
        return content, [part for part in parts.rest if not isinstance(part, DataPart | LinkPart)]

    def _replayed(self, layout: BlockLayout, parts: BlockParts) -> list[JsonObject]:
        content: list[JsonObject] = []
        for block in layout.blocks:
            body = self._replayed_block(block, layout, parts)
            if body is None:
                continue
            content.append(self._expected(str(block["id"]), body) if body["type"] == "tool_use" else body)
        return content

    def _replayed_block(self, block: JsonObject, layout: BlockLayout, parts: BlockParts) -> JsonObject | None:
        kind = block.get("type")
        if kind == "mcp_tool_listing" and block.get("mcp_server_name") not in self._target.servers:
            return None
        if kind == "text":
            return parts.text(block, keeps_citations=layout.is_unchanged)
        filled: JsonObject | None = block
        if kind == "tool_use":
            filled = parts.call(block)
        elif kind in ("web_fetch_tool_result", "text_editor_code_execution_tool_result"):
            filled = parts.document(block)
        if filled is None:
            return None
        body = replayable(filled, same_family=layout.same_family and self._target.has_thinking)
        if body is not None and "id" in body:
            body["id"] = legal_id(body["id"])
        if body is not None and "tool_use_id" in body:
            body["tool_use_id"] = legal_id(body["tool_use_id"])
        if body is not None and is_object(caller := body.get("caller")) and "tool_id" in caller:
            body["caller"] = {**caller, "tool_id": legal_id(caller["tool_id"])}
        return body

    def call(self, part: ToolCallPart) -> JsonObject:
        name = legal_name(part.name, max_length=128)
        return self._expected(
            part.id, {"type": "tool_use", "id": legal_id(part.id), "name": name, "input": input_object(part)}
        )

    def _expected(self, key: str, call: JsonObject) -> JsonObject:
        unique = self.unique_id(call["id"], lambda number: f"{call['id']}_{number}")
        return self.expect(key, {**call, "id": unique})


_ROLES: dict[Role, str] = {"system": "system", "model": "assistant", "user": "user", "tool": "user"}


def legal_id(call_id: Any) -> str:
    """Return a call's id in a form that the API accepts. The same id always gives the same result."""
    text = str(call_id)
    return text if text and not ILLEGAL_IN_NAME.search(text) else hashed_id(text)


def _drop_unpaired(messages: list[JsonObject]) -> dict[str, JsonObject]:
    """Drop server-side calls without a result and results without a call, and return the calls still in progress.

    A call may be in progress if only results of client tools come after it.
    """
    answered = {block["tool_use_id"] for _, block in _blocks(messages) if _is_server_result(block)}
    last = max((place for place, message in enumerate(messages) if message["role"] == "assistant"), default=-1)
    after = [block for message in messages[last + 1 :] for block in message["content"]]
    is_open = all(block["type"] == "tool_result" for block in after)
    first = last
    while is_open and first > 0 and _may_continue(messages[first - 1]):
        first -= 1
    waiting: dict[str, JsonObject] = {}
    sent: set[str] = set()
    for place, message in enumerate(messages):
        kept: list[JsonObject] = []
        for block in message["content"]:
            if block["type"] in SERVER_CALLS:
                if block["id"] not in answered:
                    if not (is_open and place >= first):
                        continue
                    waiting[block["id"]] = block
                sent.add(block["id"])
            elif _is_server_result(block) and block["tool_use_id"] not in sent:
                continue
            kept.append(_with_known_caller(block, sent))
        message["content"] = kept
    return waiting


def _with_known_caller(block: JsonObject, sent: set[str]) -> JsonObject:
    """Remove the caller of a block if that call is not sent, since the API refuses unknown callers."""
    caller = block.get("caller")
    if not is_object(caller) or "tool_id" not in caller or caller["tool_id"] in sent:
        return block
    return {key: value for key, value in block.items() if key != "caller"}


def _may_continue(message: JsonObject) -> bool:
    """Return whether a message may come between a call and the answer that continues it."""
    return message["role"] == "assistant" or all(block["type"] == "tool_result" for block in message["content"])


def _is_server_result(block: JsonObject) -> bool:
    return "tool_use_id" in block and block["type"] != "tool_result"


def _blocks(messages: list[JsonObject]) -> list[tuple[JsonObject, JsonObject]]:
    return [(message, block) for message in messages for block in message["content"]]


def _merged(messages: list[JsonObject]) -> list[JsonObject]:
    """Merge neighbouring messages of one role."""
    merged: list[JsonObject] = []
    for message in messages:
        if merged and merged[-1]["role"] == message["role"]:
            merged[-1] = {**message, "content": merged[-1]["content"] + message["content"]}
        else:
            merged.append(message)
    return merged
