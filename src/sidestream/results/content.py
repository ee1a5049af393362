"""Typed access to the parts of a chunk or a result, with separate files, links and previews."""

from typing import TYPE_CHECKING

from msgspec import Struct

from sidestream import jsontext
from sidestream.messages.fold import WARNING
from sidestream.messages.message import ChatMessage
from sidestream.parts import (
    THOUGHT_IMAGE,
    Custom,
    Error,
    File,
    Finish,
    FinishReason,
    Preview,
    Raw,
    Source,
    StepStart,
    StreamPart,
    StreamStart,
    ToolCall,
    ToolEvent,
    ToolResult,
    preview_of,
)
from sidestream.text.reprs import ShortRepr
from sidestream.tools import server_side

if TYPE_CHECKING:
    from sidestream.results.tool_runs import ToolRun, ToolStage
    from sidestream.results.tool_text import ToolText

_SEARCHES = frozenset({"web_search", "x_search", "web_fetch", "file_search"})
_RUNS_CODE = frozenset({"code_interpreter", "shell"})


class Link(ShortRepr, Struct, frozen=True, kw_only=True):
    """A page that a search found or a tool opened, whether cited or not."""

    url: str
    title: str | None = None
    tool: str | None = None
    call_id: str | None = None


class Content(ShortRepr, Struct, frozen=True, kw_only=True, gc=False):
    """The text, messages and parts of a chunk or a result."""

    text: str = ""
    """Text of the answer; in a chunk, only the new text."""
    text_id: str | None = None
    """Id of the text block that a chunk's text or correction belongs to. Sources refer to it."""
    correction: str | None = None
    """Final text of the block `text_id` in a chunk, if it differs from the streamed text, which it replaces."""
    finish_reason: FinishReason | None = None
    messages: tuple[ChatMessage, ...] = ()
    """New messages only, the user's own first."""
    tool_runs: "tuple[ToolRun, ...]" = ()
    """One record per tool call, hosted or not; in a chunk, only changed records."""
    tool_events: "tuple[ToolStage, ...]" = ()
    """Changes of stage of all tool calls. On every provider, each call is `started`, `running`, then `completed` or
    `failed`, once each."""
    tool_text: "tuple[ToolText, ...]" = ()
    """Inputs, code and logs of tool calls; in a chunk, what has just been written."""
    parts: tuple[StreamPart, ...] = ()
    """All parts except deltas, which `output`, `thinking` and `code` join. Chunks also have deltas of tool input."""

    new_links: "tuple[Link, ...] | None" = None
    """Links that no earlier chunk had, in a chunk with links; see `links`."""

    @property
    def warnings(self) -> list[str]:
        """Warnings about what requests omit or change, reported before they were sent."""
        return [text for part in self.parts for text in _warnings(part)]

    @property
    def notices(self) -> list[Custom]:
        """Notices of events such as a session fallback, a replaced container or a compaction."""
        return [
            part
            for part in self.parts
            if isinstance(part, Custom) and part.kind != WARNING and not part.kind.endswith(THOUGHT_IMAGE)
        ]

    @property
    def errors(self) -> list[Error]:
        """Errors that did not end the run, such as a failed download."""
        return [part for part in self.parts if isinstance(part, Error) and part.kind == "tool"]

    @property
    def raw(self) -> list[Raw]:
        """Provider events that could not be parsed."""
        return [part for part in self.parts if isinstance(part, Raw)]

    @property
    def raw_tool_events(self) -> list[ToolEvent]:
        """All events of all tools with the provider's JSON, regardless of the metadata policy."""
        return [part for part in self.parts if isinstance(part, ToolEvent)]

    def events_of(self, tool: type[server_side.ServerSideTool] | server_side.ServerSideTool | str) -> list[ToolEvent]:
        """Return the raw events of a tool, given its class (e.g. `WebSearch`), an instance or a name.

        The name is the portable one or the provider's.
        """
        key = tool if isinstance(tool, str) else tool.key
        return [event for event in self.raw_tool_events if key in (event.tool, event.provider_tool)]

    @property
    def files(self) -> list[File]:
        """Files that tools and models made, with their bytes or a URL."""
        return [part for part in self.parts if isinstance(part, File) and not is_hit(part)]

    @property
    def links(self) -> list[Link]:
        """Pages that searches found and tools opened, without duplicates; in a chunk, only the new ones."""
        if self.new_links is not None:
            return list(self.new_links)
        links: dict[str, Link] = {}
        for part in self.parts:
            for link in links_of(part):
                known = links.get(link.url)
                if known is None or (known.title is None and link.title is not None):
                    links[link.url] = link
        return list(links.values())

    @property
    def previews(self) -> list[Preview]:
        """Intermediate images."""
        return [preview for part in self.parts if (preview := preview_of(part)) is not None]

    @property
    def sources(self) -> list[Source]:
        """Sources of the text. `cited_text` shows which text each one supports.

        A source that the run has checked replaces the unchecked one with its id.
        """
        found: list[Source] = []
        places: dict[tuple[int, str], int] = {}
        step = 0
        for part in self.parts:
            if isinstance(part, StepStart):
                step = part.step
            elif isinstance(part, Source):
                place = places.setdefault((step, part.id), len(found))
                if place == len(found) or part.evidence.state == "unchecked":
                    found.append(part)
                else:
                    found[place] = part
        return found

    @property
    def tool_results(self) -> list[ToolResult]:
        """Final results of tools, without previews."""
        return [part for part in self.parts if isinstance(part, ToolResult) and not part.preliminary]

    @property
    def container_id(self) -> str | None:
        """The id of the sandbox that last ran code, as its result or the response names it.

        Results of functions are ignored.
        """
        ran = (part for part in reversed(self.parts) if isinstance(part, ToolResult) and part.tool in _RUNS_CODE)
        results = [jsontext.as_object(part.result) for part in ran]
        endings = [part.metadata for part in self.parts if isinstance(part, Finish)]
        named = (jsontext.text_in(fields, "container_id") for fields in [*results, *endings])
        return next((container for container in named if container is not None), None)


def is_hit(part: File) -> bool:
    """Return whether the file is a page found by a search, which is a link rather than a file."""
    return part.data is None and part.tool in _SEARCHES


def _warnings(part: StreamPart) -> tuple[str, ...]:
    if isinstance(part, StreamStart):
        return part.warnings
    if isinstance(part, Custom) and part.kind == WARNING:
        return (str(jsontext.as_object(part.data).get("message")),)
    return ()


def links_of(part: StreamPart) -> list[Link]:
    """Return the pages that a part names."""
    if isinstance(part, File) and is_hit(part) and part.url is not None:
        return [Link(url=part.url, title=part.name, tool=part.tool, call_id=part.call_id)]
    if isinstance(part, Source) and part.kind == "url" and part.url is not None:
        return [Link(url=part.url, title=part.title)]
    if isinstance(part, ToolCall) and part.tool in _SEARCHES:
        url = jsontext.text_in(jsontext.as_object(part.input), "url")
        return [Link(url=url, tool=part.tool, call_id=part.id)] if url else []
    if not isinstance(part, ToolResult) or part.preliminary or part.tool not in _SEARCHES:
        return []
    # A result contains a list of hits, is such a list, or is the page itself.
    fields = jsontext.as_object(part.result)
    found = [fields, *jsontext.objects(fields.get("sources")), *jsontext.objects(part.result)]
    return [
        Link(url=url, title=jsontext.text_in(entry, "title"), tool=part.tool, call_id=part.id)
        for entry in found
        if (url := jsontext.text_in(entry, "url")) is not None
    ]
