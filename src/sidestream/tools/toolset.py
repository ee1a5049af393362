"""Toolsets, whose tools are known only once they start, and the toolbox that joins a run's tools."""

import re
from collections.abc import Iterable, Sequence
from typing import Any, Protocol, runtime_checkable

from msgspec.structs import replace

from sidestream.jsontext import as_list, as_object
from sidestream.messages.message import ChatMessage, ToolResultPart
from sidestream.tools.server_side import ToolSearch
from sidestream.tools.spec import ToolSpec
from sidestream.tools.stages import Listing, ReportsListings
from sidestream.tools.tool import Tool

SEARCH = ToolSearch.key


@runtime_checkable
class Toolset(Protocol):
    """A source of tools. It starts when its tools are first listed and runs until it is closed."""

    @property
    def label(self) -> str:
        """Name in streams and errors, and prefix of tools whose names are not unique."""
        ...

    async def list(self) -> Sequence[Tool]:
        """Return the current tools. Cheap while they have not changed.

        Raises ToolServerError if they cannot be listed.
        """
        ...

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings for the stream, complete after `list`."""
        ...

    async def aclose(self) -> None:
        """Stop the toolset. Safe to call twice; listing its tools starts it again."""
        ...


class ToolBox:
    """The tools of one run: the agent's own functions, and the current tools of its toolsets."""

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
        """Whether the calls of some tools look like hosted ones, with a portable name or lifecycle events."""
        self.has_passages = False
        """Whether results of some tools hold passages to cite."""
        self.listings: list[tuple[str, Listing]] = []
        """Listings that the stream has not reported, each with its tool key."""
        self.is_known = not self.sets
        """Whether the toolsets have been listed."""
        self._is_searched = is_searched
        """Whether the provider searches the deferred tools."""
        self._specs: tuple[dict[str, Tool], tuple[ToolSpec, ...]] | None = None
        """Tools, and how a model sees them, unless that depends on the messages."""
        self._hidden = hidden
        """Functions that answer a provider's own call type, hidden since the model would see them twice."""
        self._names: dict[tuple[str, str], str] = {}
        self._warned: tuple[str, ...] = ()
        self._listed: set[str] = set()
        """Labels of the toolsets whose listing this run reports."""

    def specs(self, messages: Iterable[ChatMessage] = ()) -> tuple[ToolSpec, ...]:
        """Return the tools as a model sees them.

        Deferred tools are included once the messages have found them, if our own search is used.
        """
        if not self.tools:
            return ()
        if self._specs is not None and self._specs[0] is self.tools:
            return self._specs[1]
        shown = [tool for tool in self.tools.values() if tool.name not in self._hidden]
        if not self._is_searched and any(tool.key == SEARCH for tool in shown):
            found = found_tools(messages)
            return tuple(_spec(tool) for tool in shown if not tool.defer_loading or tool.name in found)
        specs = tuple(_spec(tool, defers=self._is_searched and tool.defer_loading) for tool in shown)
        self._specs = self.tools, specs
        return specs

    @property
    def deferred(self) -> tuple[ToolSpec, ...]:
        """Tools whose loading is deferred."""
        return tuple(_spec(tool) for tool in self.tools.values() if tool.defer_loading)

    async def refresh(self) -> list[str]:
        """List the toolsets again and return new warnings.

        Raises ToolServerError if a toolset cannot be listed.
        """
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
        self.is_staged = any(tool.stages is not None or tool.server_label is not None for tool in found.values())
        self.has_passages = any(tool.has_passages for tool in found.values())
        self._note_listings()
        new = [text for toolset in self.sets for text in toolset.warnings if text not in self._warned]
        self._warned += tuple(new)
        return new

    def _note_listings(self) -> None:
        """Note the first listing of each toolset that was requested, for the stream."""
        for toolset in self.sets:
            if isinstance(toolset, ReportsListings) and (listing := toolset.take_listing()) is not None:
                if toolset.label not in self._listed:
                    self.listings.append((toolset.key, listing))
                self._listed.add(toolset.label)

    def _name(self, label: str, name: str, taken: dict[str, Any], *, is_shared: bool) -> str:
        """Return a tool's name in this run. It never changes, since the history refers to it."""
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
    return ToolSpec(tool.name, tool.description, tool.parameters, tool.strict, defers, tool.retrieve)


def found_tools(messages: Iterable[ChatMessage]) -> set[str]:
    """Return the names of the tools that searches in these messages have found."""
    names: set[str] = set()
    for message in messages:
        for part in message.parts:
            if isinstance(part, ToolResultPart) and part.name.endswith(SEARCH):
                listed = as_list(as_object(part.result).get("tools"))
                names |= {str(as_object(entry).get("name")) for entry in listed}
    return names


def _prefixed(label: str, name: str) -> str:
    """Prefix a tool's name with its label, replacing characters that a name must not contain."""
    plain = re.sub(r"[^a-zA-Z0-9_-]", "_", label)
    return f"{plain[: max(8, 63 - len(name))]}_{name}"[:64]
