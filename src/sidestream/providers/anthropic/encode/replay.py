"""Resending of earlier answers: accepted fields, server summaries, and tools added in mid-conversation.

Thinking is resent only to the models that signed it. A server-side call is resent only with its result, or while it is
in progress.
"""

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any

from msgspec import Struct

from sidestream import jsontext
from sidestream.jsontext import JsonObject, is_array, is_object, objects
from sidestream.messages import sessions
from sidestream.messages.message import ChatMessage, DataPart, TextPart, ToolCallPart
from sidestream.messages.references import Replays
from sidestream.providers.anthropic.context import SESSION_KEY
from sidestream.providers.anthropic.versions import family
from sidestream.providers.shared.attachments import as_base64
from sidestream.providers.shared.histories import UnsentParts, input_object


class BlockRule(Struct, frozen=True, kw_only=True):
    """How one type of block is resent. It is left out if a required field is missing."""

    required: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    bound: bool = False
    """Whether only the models that wrote the block can read it."""


_RESULT = BlockRule(required=("tool_use_id", "content"))
_CALLED = BlockRule(required=("tool_use_id", "content"), optional=("caller",))

RULES: dict[str, BlockRule] = {
    "thinking": BlockRule(required=("thinking", "signature"), bound=True),
    "redacted_thinking": BlockRule(required=("data",), bound=True),
    "tool_use": BlockRule(required=("id", "name", "input"), optional=("caller", "toolset_name")),
    "server_tool_use": BlockRule(required=("id", "name", "input"), optional=("caller",)),
    "web_search_tool_result": _CALLED,
    "web_fetch_tool_result": _CALLED,
    "code_execution_tool_result": _RESULT,
    "bash_code_execution_tool_result": _RESULT,
    "text_editor_code_execution_tool_result": _RESULT,
    "tool_search_tool_result": _RESULT,
    "advisor_tool_result": _RESULT,
    "mcp_tool_use": BlockRule(required=("id", "name", "server_name", "input")),
    "mcp_tool_result": BlockRule(required=("tool_use_id",), optional=("content", "is_error")),
    "mcp_tool_listing": BlockRule(required=("mcp_server_name", "tools")),
    "container_upload": BlockRule(required=("file_id",)),
    "compaction": BlockRule(optional=("content", "encrypted_content", "signature", "tool_changes")),
    "fallback": BlockRule(required=("from", "to"), optional=("trigger",)),
}
"""Block type → how it is resent. Text blocks are rebuilt from the message's text parts."""

_ANY_CITATION = ("type", "cited_text")
CITATIONS: dict[str, tuple[str, ...]] = {
    "char_location": (*_ANY_CITATION, "document_index", "document_title", "start_char_index", "end_char_index"),
    "page_location": (*_ANY_CITATION, "document_index", "document_title", "start_page_number", "end_page_number"),
    "content_block_location": (
        *_ANY_CITATION,
        "document_index",
        "document_title",
        "start_block_index",
        "end_block_index",
    ),
    "search_result_location": (
        *_ANY_CITATION,
        "search_result_index",
        "source",
        "title",
        "start_block_index",
        "end_block_index",
    ),
    "web_search_result_location": (*_ANY_CITATION, "url", "title", "encrypted_index"),
}
"""Citation type → the fields that the API accepts as input."""

SERVER_CALLS = frozenset({"server_tool_use", "mcp_tool_use"})


class BlockLayout(Struct, frozen=True):
    """The blocks of one message, as its session stores them."""

    blocks: list[JsonObject]
    same_family: bool
    is_unchanged: bool


def layout_of(message: ChatMessage, model: str, base_url: str, replays: Replays) -> BlockLayout | None:
    """Return the stored blocks of a message, or None if another provider or server wrote it or they are missing."""
    session = session_of(message, base_url)
    blocks = replays.read(session, "blocks") if session is not None else None
    if session is None or blocks is None:
        return None
    same = session.get("model") is None or family(str(session["model"])) == family(model)
    unchanged = sessions.DIGEST not in session or sessions.is_unchanged(message, session)
    return BlockLayout(blocks, same, unchanged)


def session_of(message: ChatMessage, base_url: str | None) -> JsonObject | None:
    """Return the session that a model message holds for this provider and server, or None."""
    session = message.metadata.get(SESSION_KEY)
    if not is_object(session) or message.role != "model":
        return None
    return session if session.get("base_url") in (None, base_url) else None


class BlockParts(UnsentParts):
    """The parts of a message that no block covers yet."""

    def text(self, block: JsonObject, *, keeps_citations: bool) -> JsonObject | None:
        """Fill a block of text with the current text. None if its part was removed or is blank."""
        part = self.take(block.get("text_id"), TextPart)
        if part is None or not part.text.strip():
            return None
        cited = [_citation(entry) for entry in objects(block.get("citations"))] if keeps_citations else []
        kept = {"citations": [entry for entry in cited if entry]} if any(cited) else {}
        return {"type": "text", "text": part.text, **kept}

    def call(self, block: JsonObject) -> JsonObject | None:
        """Return a client tool call with its current input, or None if its part was removed."""
        part = self.take(block.get("id"), ToolCallPart)
        return None if part is None else {**block, "input": input_object(part)}

    def document(self, block: JsonObject) -> JsonObject | None:
        """Fill a fetched page or displayed file with the bytes from the message. None if their part was removed."""
        content: JsonObject = block["content"] if is_object(block.get("content")) else {}
        document: JsonObject = content["content"] if is_object(content.get("content")) else {}
        source: JsonObject = document["source"] if is_object(document.get("source")) else {}
        if "source" not in document and isinstance(document.get("file"), str):
            shown = self.peek(document["file"], DataPart)
            return None if shown is None else {**block, "content": {**content, "content": as_base64(shown)}}
        if "file" not in source:
            return block
        part = self.peek(source["file"], DataPart)
        if part is None:
            return None
        data = part.data.decode("utf-8", "replace") if source.get("type") == "text" else as_base64(part)
        filled = {**{key: value for key, value in source.items() if key != "file"}, "data": data}
        return {**block, "content": {**content, "content": {**document, "source": filled}}}


def _citation(citation: JsonObject) -> JsonObject | None:
    fields = CITATIONS.get(str(citation.get("type")))
    return None if fields is None else {name: citation.get(name) for name in fields}


def replayable(block: JsonObject, *, same_family: bool = True) -> JsonObject | None:
    """Return the block as input, or None if it cannot be resent."""
    rule = RULES.get(str(block.get("type")))
    if rule is None or (rule.bound and not same_family) or any(block.get(name) is None for name in rule.required):
        return None
    fields = (*rule.required, *rule.optional)
    body = {name: _without_nulls(block[name]) for name in fields if block.get(name) is not None}
    return {"type": block["type"], **body}


def _without_nulls(value: Any) -> Any:
    """Remove nulls, some of which the API refuses."""
    if is_object(value):
        return {key: _without_nulls(content) for key, content in value.items() if content is not None}
    return [_without_nulls(entry) for entry in value] if is_array(value) else value


SUMMARY = "summary"
"""Session field that says what a summary in the answer replaces."""
WHOLE = "whole"
"""Value for a summary that replaces all earlier messages, which must not be sent with it."""
TURN = "turn"
"""Value for a summary that replaces the earlier part of a longer answer. The server leaves that out itself."""


def first_after_summary(messages: Sequence[ChatMessage], model: str, base_url: str, replays: Replays) -> int:
    """Return the index of the newest summary of the whole conversation, or 0 if it is missing."""
    for place in range(len(messages) - 1, -1, -1):
        session = session_of(messages[place], base_url) if messages[place].role == "model" else None
        if session is not None and session.get(SUMMARY) == WHOLE:
            return place if layout_of(messages[place], model, base_url, replays) is not None else 0
    return 0


NOTE = "tools"
"""Session field for the tools of its request."""


class ToolPlan(Struct, frozen=True, kw_only=True):
    """The places where a request offers its client tools."""

    top: list[JsonObject]
    """Tools in the request's `tools`."""
    note: JsonObject | None = None
    """Note for the session of the answer, unless tools are added to this request."""
    added: Mapping[int, list[JsonObject]] = {}
    """Tools added just before a model message, by its index."""
    new: list[JsonObject] = []
    """Tools that no earlier request has offered."""


def plan_tools(messages: Sequence[ChatMessage], tools: list[JsonObject], base_url: str) -> ToolPlan:
    """Plan where to offer each tool, keeping the places of earlier requests in the conversation."""
    if not tools:
        return ToolPlan(top=tools)
    by_name = {str(tool["name"]): tool for tool in tools}
    top: list[JsonObject] | None = None
    added: dict[int, list[JsonObject]] = {}
    is_valid = True
    for place, message in enumerate(messages):
        session = session_of(message, base_url) if message.role == "model" else None
        if session is None:
            continue
        if session.get(SUMMARY) == TURN:
            # The server leaves out everything before the summary, including the tools that were added there.
            top, added = None, {}
        noted = session.get(NOTE)
        if not is_object(noted):
            continue
        found = _noted_tools(noted, by_name)
        if noted.get("is_top") is True:
            top, added, is_valid = found, {}, found is not None
        elif found is None:
            is_valid = False
        else:
            added[place] = found
    if top is None or not is_valid:
        return ToolPlan(top=tools, note=note_of(tools, is_top=True))
    offered = {tool["name"] for known in (top, *added.values()) for tool in known}
    return ToolPlan(top=top, added=added, new=[tool for tool in tools if tool["name"] not in offered])


def note_of(tools: list[JsonObject], *, is_top: bool = False) -> JsonObject:
    """Return the names and digest of the tools that a request offers."""
    note: JsonObject = {"names": [tool["name"] for tool in tools], "digest": _digest(tools)}
    return {**note, "is_top": True} if is_top else note


def addition_blocks(tools: Sequence[JsonObject]) -> list[JsonObject]:
    """Return the content of the system message that adds the tools."""
    return [{"type": "tool_addition", "tool": {"type": "tool_definition", "definition": tool}} for tool in tools]


def _noted_tools(noted: JsonObject, by_name: Mapping[str, JsonObject]) -> list[JsonObject] | None:
    """Return the tools of a note, or None if one of them is missing or has changed."""
    names: list[Any] = noted["names"] if is_array(noted.get("names")) else []
    found = [by_name[name] for name in names if isinstance(name, str) and name in by_name]
    return found if len(found) == len(names) and _digest(found) == noted.get("digest") else None


def _digest(tools: list[JsonObject]) -> str:
    return blake2b(jsontext.dumps(tools), digest_size=8).hexdigest()
