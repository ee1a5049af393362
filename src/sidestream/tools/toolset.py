"""Toolsets: tools known only after a start, e.g. of an MCP server, and the toolbox that joins all tools of a run."""

import re
from collections.abc import Iterable, Sequence
from typing import Any, Protocol, runtime_checkable

from msgspec.structs import replace

from sidestream.jsontext import as_list, as_object
from sidestream.messages.message import ChatMessage, ToolResultPart
from sidestream.tools.server_side import ToolSearch
from sidestream.tools.spec import ToolSpec
from sidestream.tools.tool import Tool

SEARCH = ToolSearch.key


@runtime_checkable
class Toolset(Protocol):
    """A source of tools. It starts when its tools are first listed and runs until it is closed."""

    @property
    def label(self) -> str:
        """Its name in streams and errors, and the prefix of tools whose names two sets share."""
        ...

    async def list(self) -> Sequence[Tool]:
        """Its tools as they are now; cheap while nothing has changed. Raises ToolServerError."""
        ...

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings for the stream, complete after `list`."""
        ...

    async def aclose(self) -> None:
        """Stops it. Safe to call twice; it starts again when its tools are listed again."""
        ...


class ToolBox:
    """The tools of one run: an agent's own functions, and the current tools of its toolsets."""

    def __init__(
        self,
        own: dict[str, Tool],
        sets: Iterable[Toolset] = (),
        hidden: frozenset[str] = frozenset(),
        *,
        is_searched: bool = False,
    ) -> None:
        self.own = own
        self.sets = tuple(sets)
        self.tools = own
        self.is_staged = False
        """True if calls of some tools have stages of a hosted tool."""
        self.has_passages = False
        """Whether results of some tools hold passages to cite."""
        self.is_known = not self.sets
        """False until the toolsets have been listed."""
        self._is_searched = is_searched
        """True if the provider searches the tools whose loading is deferred."""
        self._hidden = hidden
        """Functions that answer a provider's own call type: the model does not see them a second time."""
        self._names: dict[tuple[str, str], str] = {}
        self._warned: tuple[str, ...] = ()

    def specs(self, messages: Iterable[ChatMessage] = ()) -> tuple[ToolSpec, ...]:
        """The tools as a model sees them; of those whose loading is deferred, the ones that the messages have found."""
        if not self.tools:
            return ()
        shown = [tool for tool in self.tools.values() if tool.name not in self._hidden]
        if not self._is_searched and any(tool.key == SEARCH for tool in shown):
            found = found_tools(messages)
            shown = [tool for tool in shown if not tool.defer_loading or tool.name in found]
        return tuple(_spec(tool, defers=self._is_searched and tool.defer_loading) for tool in shown)

    @property
    def deferred(self) -> tuple[ToolSpec, ...]:
        """The tools whose loading is deferred."""
        return tuple(_spec(tool) for tool in self.tools.values() if tool.defer_loading)

    async def refresh(self) -> list[str]:
        """Lists the toolsets again; returns new warnings. Raises ToolServerError."""
        if not self.sets:
            return []
        listed = [(toolset, await toolset.list()) for toolset in self.sets]
        counts: dict[str, int] = dict.fromkeys(self.own, 1)
        for _, tools in listed:
            for tool in tools:
                counts[tool.name] = counts.get(tool.name, 0) + 1
        found = dict(self.own)
        for toolset, tools in listed:
            for tool in tools:
                name = self._name(toolset.label, tool.name, found, is_shared=counts[tool.name] > 1)
                found[name] = tool if tool.name == name else replace(tool, name=name)
        self.tools, self.is_known = found, True
        self.is_staged = any(tool.stages is not None for tool in found.values())
        self.has_passages = any(tool.has_passages for tool in found.values())
        new = [text for toolset in self.sets for text in toolset.warnings if text not in self._warned]
        self._warned += tuple(new)
        return new

    def _name(self, label: str, name: str, taken: dict[str, Any], *, is_shared: bool) -> str:
        """The name of a tool in this run; it never changes, since the history refers to it."""
        known = self._names.get((label, name))
        if known is not None and known not in taken:
            return known
        wanted = _prefixed(label, name) if is_shared else name
        free, number = wanted, 1
        while free in taken:
            number += 1
            free = f"{wanted[: 63 - len(str(number))]}_{number}"
        self._names[label, name] = free
        return free


def _spec(tool: Tool, *, defers: bool = False) -> ToolSpec:
    return ToolSpec(tool.name, tool.description, tool.parameters, tool.strict, defers)


def found_tools(messages: Iterable[ChatMessage]) -> set[str]:
    """The names of the tools that searches in these messages have found."""
    names: set[str] = set()
    for message in messages:
        for part in message.parts:
            if isinstance(part, ToolResultPart) and part.name.endswith(SEARCH):
                listed = as_list(as_object(part.result).get("tools"))
                names |= {str(as_object(entry).get("name")) for entry in listed}
    return names


def _prefixed(label: str, name: str) -> str:
    """The name with the label as its prefix. A label may contain characters that a name may not."""
    plain = re.sub(r"[^a-zA-Z0-9_-]", "_", label)
    return f"{plain[: max(8, 63 - len(name))]}_{name}"[:64]
