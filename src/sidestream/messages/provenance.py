"""Provenance: what a message brought into a conversation from outside, and the URLs that may be fetched because of it.

A run writes it from its own records into the metadata of its messages, so that it survives into later turns, other
processes and other providers. Tool results cannot claim it.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import Struct, ValidationError, convert
from msgspec.structs import replace

from sidestream.jsontext import Json, JsonObject, as_object, is_array, is_object
from sidestream.limits import MAX_FOUND_URLS, MAX_SOURCES
from sidestream.messages.message import ChatMessage, LinkPart, MessagePart, TextPart
from sidestream.parts import Source, StreamPart, ToolEvent, ToolResult, program_of
from sidestream.text.urls import plain_url, urls_in, urls_of

KEY = "_provenance"
"""Metadata key."""
PAGE = "web_fetch"
"""Key of the tool whose results are pages. Their links count on the page's own host only."""

_OPEN_WEB = frozenset({"web_search", "x_search", "web_fetch", "computer_use", "mcp"})
"""Hosted tools whose results are untrusted."""
_SCREENS = frozenset({"computer_use"})
"""Tools that show a screen, whose content is untrusted even if the client runs them."""
_MARKED = _SCREENS | {"mcp"}
"""Tools whose results may be untrusted without a mark. All other results of the client are marked by the run."""
_SEARCHES = frozenset({"web_search", "x_search", "file_search"})
"""Hosted tools whose hits may be fetched."""
_FORWARDED = frozenset({"tool-result", "source", "tool-event"})


class Provenance(Struct, frozen=True, omit_defaults=True):
    """The untrusted sources and found URLs that a message or a part brought into a conversation."""

    sources: tuple[str, ...] = ()
    """Untrusted sources, each the URL of a page or the tool that read it."""
    urls: tuple[str, ...] = ()
    """URLs that a search found."""
    pages: tuple[str, ...] = ()
    """Ids of calls whose results are pages that this program fetched."""
    is_written: bool = False
    """Whether a model or this program wrote the text of a user message."""

    def __add__(self, other: "Provenance") -> "Provenance":
        return Provenance(
            _joined(self.sources, other.sources, MAX_SOURCES),
            _joined(self.urls, other.urls, MAX_FOUND_URLS),
            _joined(self.pages, other.pages, MAX_FOUND_URLS),
            self.is_written or other.is_written,
        )

    def marked(self, message: ChatMessage) -> ChatMessage:
        """Return the message with this provenance added to its own."""
        if self == NOTHING:
            return message
        return replace(message, metadata={**message.metadata, KEY: (provenance_of(message) + self)._as_json()})

    def _as_json(self) -> JsonObject:
        lists = {"sources": [*self.sources], "urls": [*self.urls], "pages": [*self.pages]}
        found: JsonObject = {name: entries for name, entries in lists.items() if entries}
        return found | ({"is_written": True} if self.is_written else {})


NOTHING = Provenance()
_WRITTEN = Provenance(is_written=True)


def _joined(first: tuple[str, ...], second: tuple[str, ...], limit: int) -> tuple[str, ...]:
    if not second or len(first) >= limit:
        return first
    if len(second) == 1:  # A fast path for citations, which may be thousands.
        return first if second[0] in first else (*first, *second)
    return tuple(dict.fromkeys((*first, *second)))[:limit]


def provenance_of(message: ChatMessage) -> Provenance:
    """Return what a message brought into its conversation."""
    found = message.metadata.get(KEY) if message.metadata else None
    if found is None:
        return NOTHING
    try:
        return convert(found, Provenance)
    except ValidationError:
        return NOTHING


def sources_in(messages: Iterable[ChatMessage]) -> tuple[str, ...]:
    """Return the untrusted sources in a history."""
    found: dict[str, None] = {}
    for message in messages:
        if message.metadata and KEY in message.metadata:
            found |= dict.fromkeys(provenance_of(message).sources)
    return tuple(found) if found else ()


def known_by(message: ChatMessage) -> Provenance:
    """Return the provenance that remains if a message is dropped, including the URLs a user gave."""
    own = provenance_of(message)
    is_users = message.role == "user" and not own.is_written
    given = [url for part in message.parts for url in _given_by(part)] if is_users else []
    return Provenance(own.sources, (*own.urls, *given))


def _given_by(part: MessagePart) -> list[str]:
    return urls_in(part.text) if isinstance(part, TextPart) else [part.url] if isinstance(part, LinkPart) else []


def written(text: str, known: Provenance = NOTHING) -> ChatMessage:
    """Return a user message whose text a model or this program wrote."""
    return (_WRITTEN + known).marked(ChatMessage.user(text))


def found_urls(result: Json, given: object, *, hits_only: bool) -> list[str]:
    """Return the URLs that a search found, without those it was given and only repeats.

    `hits_only` restricts this to the entries of its lists.
    """
    repeated = {plain_url(url) for url in urls_of(given)}
    found = [*urls_of(_hits(result) if hits_only else result)]
    new = [url for url in found if plain_url(url) not in repeated] if repeated else found
    return [*dict.fromkeys(new)][:MAX_FOUND_URLS]


def _hits(result: Json) -> list[Any]:
    lists = [result] if is_array(result) else list(result.values()) if is_object(result) else []
    return [entry for entries in lists if is_array(entries) for entry in entries if is_object(entry)]


def brought_by(part: StreamPart, *, is_between: bool, given: Sequence[str] = ()) -> Provenance:
    """Return what a part brings into its run.

    `is_between` means that the part came between two steps, from a local tool or a subagent. `given` are the URLs that
    the step's hosted calls were given.
    """
    match part:
        case ToolResult() if part.provider_executed:
            source = source_of_result(part)
            urls = _hosted_urls(part, given) if not is_between else ()
            return Provenance((source,) if source else (), tuple(urls))
        case ToolResult() if part.provider_metadata is None and part.tool not in _MARKED:
            return NOTHING
        case ToolResult():
            marks = _marks(part)
            source = source_of_result(part)
            urls = tuple(url for url in marks.get("urls") or () if isinstance(url, str))
            # The message has no page that only a program has read.
            is_page = marks.get("page") is True and program_of(part) is None
            return Provenance((source,) if source else (), urls, (part.id,) if is_page else ())
        case Source() if part.url is not None:
            # A citation that this program made names what a local tool read, which counts with the tool's result.
            is_providers = not is_between and "sidestream" not in (part.provider_metadata or {})
            is_found = is_providers and not (given and plain_url(part.url) in set(map(plain_url, given)))
            return Provenance((part.url,), (part.url,) if is_found else ())
        case ToolEvent() if is_between and part.provider_stage in _FORWARDED:
            inner = forwarded_part(part)
            # Pages are in the messages of the subagent that fetched them.
            return NOTHING if inner is None else replace(brought_by(inner, is_between=True), pages=())
        case _:
            return NOTHING


def _hosted_urls(part: ToolResult, given: Sequence[str]) -> list[str]:
    is_search = part.tool in _SEARCHES and not part.is_error
    return found_urls(part.result, list(given), hits_only=True) if is_search else []


def forwarded_part(event: ToolEvent) -> StreamPart | None:
    """Return the part that a subagent's event forwards, or None for other events."""
    data = as_object(event.event)
    if data.get("type") != event.provider_stage:
        return None
    try:
        part: StreamPart = convert(data, StreamPart)
    except ValidationError:
        return None
    return part


def source_of_result(part: ToolResult) -> str | None:
    """Return the untrusted source of a tool's result, or None if the result is trusted."""
    if part.provider_executed:
        if part.tool not in _OPEN_WEB:
            return None
        return f"mcp {part.name}" if part.tool == "mcp" else part.tool
    if part.tool in _SCREENS and not part.is_error:
        return part.tool
    marks = (part.provider_metadata or {}).get("sidestream")
    if marks is None and part.tool == "mcp":
        return f"mcp {part.name}"  # Logs of older versions have no marks.
    source = as_object(marks).get("source")
    return source if isinstance(source, str) else None


def _marks(part: ToolResult) -> JsonObject:
    return as_object((part.provider_metadata or {}).get("sidestream"))
