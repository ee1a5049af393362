"""Tools that appear in mid-conversation: offered from there on, so that the cached start of the request stays valid.

The first answer of a conversation notes which client tools were offered at the top of its request. Tools that come
later are defined in a system message where they appeared, and their answer notes that. If a noted tool is gone or has
changed, all tools are offered at the top again: the provider keeps no definition that the request does not hold.
"""

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any

from msgspec import Struct

from sidestream import jsontext
from sidestream.jsontext import JsonObject, is_array, is_object
from sidestream.messages.message import ChatMessage
from sidestream.providers.anthropic.encode.replay import session_of
from sidestream.providers.anthropic.summaries import SUMMARY, TURN

NOTE = "tools"
"""The field of a session that notes the tools of its request."""


class ToolPlan(Struct, frozen=True, kw_only=True):
    """Where each client tool of a request is offered."""

    top: list[JsonObject]
    """In the request's `tools`."""
    note: JsonObject | None = None
    """What the answer notes, unless tools are added to this request."""
    added: Mapping[int, list[JsonObject]] = {}
    """Place of a model message → the tools that were added just before it."""
    new: list[JsonObject] = []
    """Tools that no earlier request has offered."""


def plan_tools(messages: Sequence[ChatMessage], tools: list[JsonObject], base_url: str) -> ToolPlan:
    """The tools by where earlier requests of the conversation offered them."""
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
            # The server leaves out what came before, with the tools that were added there.
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
    """Names and digest of the tools that a request offers."""
    note: JsonObject = {"names": [tool["name"] for tool in tools], "digest": _digest(tools)}
    return {**note, "is_top": True} if is_top else note


def addition_blocks(tools: Sequence[JsonObject]) -> list[JsonObject]:
    """The content of the system message that adds the tools."""
    return [{"type": "tool_addition", "tool": {"type": "tool_definition", "definition": tool}} for tool in tools]


def _noted_tools(noted: JsonObject, by_name: Mapping[str, JsonObject]) -> list[JsonObject] | None:
    """The tools as they were noted; None if one of them is gone or has changed."""
    names: list[Any] = noted["names"] if is_array(noted.get("names")) else []
    found = [by_name[name] for name in names if isinstance(name, str) and name in by_name]
    return found if len(found) == len(names) and _digest(found) == noted.get("digest") else None


def _digest(tools: list[JsonObject]) -> str:
    return blake2b(jsontext.dumps(tools), digest_size=8).hexdigest()
