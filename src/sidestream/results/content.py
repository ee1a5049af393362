"""What the parts of a chunk or a result hold, typed: files apart from links, previews apart from both."""

from typing import TYPE_CHECKING

from msgspec import Struct

from sidestream import jsontext
from sidestream.messages.fold import WARNING
from sidestream.messages.message import ChatMessage
from sidestream.stream.parts import (
    THOUGHT_IMAGE,
    Custom,
    Error,
    File,
    Finish,
    FinishReason,
    Preview,
    Raw,
    Source,
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
    from sidestream.results.tool_runs import ToolRun

_SEARCHES = (
    server_side.event_keys(server_side.WebSearch)
    | server_side.event_keys(server_side.WebFetch)
    | server_side.event_keys(server_side.FileSearch)
)
_RUNS_CODE = server_side.event_keys(server_side.CodeInterpreter) | server_side.event_keys(server_side.Shell)


class Link(ShortRepr, Struct, frozen=True, kw_only=True):
    """A page that a search found or a tool opened, cited or not."""

    url: str
    title: str | None = None
    tool: str | None = None
    call_id: str | None = None


class Content(ShortRepr, Struct, frozen=True, kw_only=True, gc=False):
    """The text, messages and parts of a chunk or a result, and what they hold."""

    text: str = ""
    """The text of the answer; in a chunk, what is new of it."""
    text_id: str | None = None
    """In a chunk with text or a correction: the block that it belongs to, which sources refer to."""
    correction: str | None = None
    """In a chunk: the final text of the block `text_id`, where it differs from what was streamed. It replaces that."""
    finish_reason: FinishReason | None = None
    messages: tuple[ChatMessage, ...] = ()
    """New messages only, the user's own first."""
    tool_runs: "tuple[ToolRun, ...]" = ()
    """One record per tool call, hosted or not; in a chunk, the records that changed."""
    parts: tuple[StreamPart, ...] = ()
    """Every part but the deltas, which `output`, `thinking` and `code` join; a chunk has deltas of tool input too."""

    new_links: "tuple[Link, ...] | None" = None
    """In a chunk with links: those that no earlier chunk had; see `links`."""

    @property
    def warnings(self) -> list[str]:
        """What requests leave out or change, as reported before they were sent."""
        return [text for part in self.parts for text in _warnings(part)]

    @property
    def notices(self) -> list[Custom]:
        """What happened on the way: a session that fell back, a replaced container, a compaction."""
        return [
            part
            for part in self.parts
            if isinstance(part, Custom) and part.kind != WARNING and not part.kind.endswith(THOUGHT_IMAGE)
        ]

    @property
    def errors(self) -> list[Error]:
        """What failed without ending the run, e.g. the download of a file."""
        return [part for part in self.parts if isinstance(part, Error) and part.kind == "tool"]

    @property
    def raw(self) -> list[Raw]:
        """Events of the provider that could not be understood."""
        return [part for part in self.parts if isinstance(part, Raw)]

    @property
    def tool_events(self) -> list[ToolEvent]:
        """Every event of every tool, whatever the metadata policy."""
        return [part for part in self.parts if isinstance(part, ToolEvent)]

    def events_of(self, tool: type[server_side.ServerSideTool] | server_side.ServerSideTool | str) -> list[ToolEvent]:
        """The events of one tool, e.g. `WebSearch`, whatever key the provider reports them under; or of a name."""
        keys = server_side.event_keys(tool)
        return [event for event in self.tool_events if event.tool in keys]

    @property
    def files(self) -> list[File]:
        """What tools and models made: files with their bytes, or the URL of a file."""
        return [part for part in self.parts if isinstance(part, File) and not is_hit(part)]

    @property
    def links(self) -> list[Link]:
        """The pages that searches found and tools opened, each once, cited or not; in a chunk, the new ones."""
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
        """Pictures on the way to the final ones."""
        return [preview for part in self.parts if (preview := preview_of(part)) is not None]

    @property
    def sources(self) -> list[Source]:
        """Where the text comes from. `cited_text` shows where."""
        return [part for part in self.parts if isinstance(part, Source)]

    @property
    def tool_results(self) -> list[ToolResult]:
        """What tools gave back, previews left out."""
        return [part for part in self.parts if isinstance(part, ToolResult) and not part.preliminary]

    @property
    def container_id(self) -> str | None:
        """The sandbox that the last code run used: of its result, or as the response names it.

        What functions return is not looked at.
        """
        ran = (part for part in reversed(self.parts) if isinstance(part, ToolResult) and part.tool in _RUNS_CODE)
        results = [jsontext.as_object(part.result) for part in ran]
        endings = [part.metadata for part in self.parts if isinstance(part, Finish)]
        named = (jsontext.text_in(fields, "container_id") for fields in [*results, *endings])
        return next((container for container in named if container is not None), None)


def is_hit(part: File) -> bool:
    """True for a page that a search found: it is a link, not a file."""
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
    # A result lists its hits, or is the list, or is the page itself.
    fields = jsontext.as_object(part.result)
    found = [fields, *jsontext.objects(fields.get("sources")), *jsontext.objects(part.result)]
    return [
        Link(url=url, title=jsontext.text_in(entry, "title"), tool=part.tool, call_id=part.id)
        for entry in found
        if (url := jsontext.text_in(entry, "url")) is not None
    ]
