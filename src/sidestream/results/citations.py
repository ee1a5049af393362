"""Text with numbered citation markers, for complete and streaming results.

Spans of a source count characters of its text block; a source without a span supports the whole block. A source has
the same number wherever it is cited. Files written by tools are cited by name in the text and have no number.
"""

import heapq
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, Literal, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from sidestream.evidence.verdict import UNCHECKED, Evidence, EvidenceState
from sidestream.jsontext import Json, as_object
from sidestream.messages.message import TextPart
from sidestream.parts import (
    Finish,
    Source,
    SourceKind,
    StepFinish,
    StepStart,
    StreamPart,
    TextDelta,
    TextEnd,
    TextStart,
)
from sidestream.results.content import Content
from sidestream.stream.markers import claim_before, marker_beginning, trimmed
from sidestream.text import html
from sidestream.text.reprs import ShortRepr

CitationStyle = Literal["numbers", "markdown", "footnotes"]
"""Form of the markers: `[1]`, `[[1]](url)` or `[^1]`."""

_GENERATED = ("container_file", "file_path")
_MARKDOWN = re.compile(r"([\\\[\]`*_<>])")

Marker = Callable[["CitedSource"], str]
R = TypeVar("R", bound=Content)

_WEAKNESS: dict[EvidenceState, int] = {
    "unchecked": 0,
    "quoted": 1,
    "supported": 2,
    "unreachable": 3,
    "not-found": 4,
    "contradicted": 5,
}
"""State → rank. The highest rank among a source's citations is shown."""
REMARKS: dict[EvidenceState, str] = {
    "quoted": "quoted",
    "supported": "supported",
    "unreachable": "could not be read",
    "not-found": "not found in the source",
    "contradicted": "contradicted",
}
"""State → words for people. Unchecked citations have none."""


class CitedSource(ShortRepr, Struct, frozen=True, kw_only=True):
    """A cited source and its number."""

    number: int
    kind: SourceKind
    url: str | None = None
    title: str | None = None
    file_id: str | None = None
    passages: tuple[str, ...] = ()
    """Passages that the provider quotes, or the text that the source supports."""
    evidence: Evidence = UNCHECKED
    """What was established about its citations. With several, that of the weakest one."""

    @property
    def shown_url(self) -> str | None:
        """The URL without tracking parameters."""
        return None if self.url is None else html.without_tracking(self.url)

    @property
    def label(self) -> str:
        """The title, or else the URL, file id or number."""
        return " ".join((self.title or self.shown_url or self.file_id or f"source {self.number}").split())

    @property
    def remark(self) -> str:
        """The remark in the list of sources on what was established."""
        words = REMARKS.get(self.evidence.state)
        if words is None:
            return ""
        return f" ({words}: {self.evidence.reason})" if self.evidence.state == "contradicted" else f" ({words})"


class CitedClaim(ShortRepr, Struct, frozen=True, kw_only=True):
    """A statement of an answer, and the source that it cites."""

    text: str
    """Sentence, clause or segment that the source is cited for, without the marker."""
    source: Source
    step: int
    start: int
    """Start of the claim in its text block, in characters."""
    end: int
    """End of the claim."""
    marker: tuple[int, int] | None = None
    """Span of the link that the model wrote as a marker. None means that the text has no marker."""


class CitedText(ShortRepr, Struct, frozen=True, kw_only=True):
    """Text with markers, and the sources they refer to. As a string, the text is followed by the list."""

    text: str
    sources: tuple[CitedSource, ...] = ()
    style: CitationStyle = "numbers"

    @property
    def listing(self) -> str:
        """The sources, one per line, in the style of the markers."""
        return "\n".join(_ENTRIES[self.style](source) for source in self.sources)

    def __str__(self) -> str:
        return f"{self.text}\n\n{self.listing}" if self.sources else self.text


def _link(source: CitedSource) -> str:
    label = _MARKDOWN.sub(r"\\\1", source.label)
    url = source.shown_url
    return f"[{label}]({html.link_target(url)})" if url and html.is_web(url) else label


def _numbers_entry(source: CitedSource) -> str:
    location = source.shown_url or source.file_id
    return f"[{source.number}] {source.label}" + (f" {location}" if source.title and location else "") + source.remark


def _markdown_marker(source: CitedSource) -> str:
    url = source.shown_url
    if url and html.is_web(url):
        return f"[[{source.number}]]({html.link_target(url)})"
    return f"[{source.number}]"


_MARKERS: dict[CitationStyle, Marker] = {
    "numbers": lambda source: f"[{source.number}]",
    "markdown": _markdown_marker,
    "footnotes": lambda source: f"[^{source.number}]",
}
"""Style → marker of a source."""

_ENTRIES: dict[CitationStyle, Callable[[CitedSource], str]] = {
    "numbers": _numbers_entry,
    "markdown": lambda source: f"{source.number}. {_link(source)}{source.remark}",
    "footnotes": lambda source: f"[^{source.number}]: {_link(source)}{source.remark}",
}
"""Style → line of a source in the list."""


class _Block:
    """A text block so far, and the sources that it cites."""

    def __init__(self) -> None:
        self.pieces: list[str] = []
        self.size = 0
        self.is_over = False
        self.final: str | None = None
        self.sources: dict[str, tuple[Source, int]] = {}
        """Sources and their numbers, by source id. A later source with the same id replaces the earlier one."""
        self.due: set[tuple[int, int]] = set()
        """Positions and numbers of marks not yet emitted."""
        self.next: list[tuple[int, int]] = []
        """The contents of `due`, as a heap."""
        self.at_end: set[int] = set()
        """Numbers of marks to emit at the end of the block."""
        self.held = ""
        """Text held back at the end because it may be a link that the model cites with."""
        self.cuts: dict[int, int] = {}
        """Spans of such links, start to end, which marks replace."""

    @property
    def text(self) -> str:
        return "".join(self.pieces) if self.final is None else self.final


class _Cited:
    """A cited source, with the passages collected so far."""

    def __init__(self, source: CitedSource) -> None:
        self.source = source
        self.passages: dict[str, None] = {}

    def whole(self) -> CitedSource:
        return replace(self.source, passages=tuple(self.passages)) if self.passages else self.source


class Citations:
    """An inserter of citation markers into a streaming run.

    ```python
    citations = Citations()
    async for chunk in agent.send_stream("What is new in Python?"):
        print(citations.feed(chunk), end="", flush=True)
    ```

    `feed` returns new text, for output that only grows. A marker whose source arrives too late for its position is put
    at the end of its block. `text` is the whole text so far with every marker in position.
    """

    def __init__(self, style: CitationStyle = "numbers") -> None:
        self._style: CitationStyle = style
        self._marker = _MARKERS[style]
        self._sources: dict[str, _Cited] = {}
        self._by_number: list[_Cited] = []
        self._blocks: dict[tuple[int, str], _Block] = {}
        self._step = 0
        self._has_text = False
        self._is_flowing = False
        """Whether the current message has text."""

    def feed(self, item: Content | StreamPart) -> str:
        """Add a chunk or a part, and return the new text with markers."""
        if not isinstance(item, Content):
            handler = self._handlers.get(type(item))
            return handler(self, item) if handler is not None else ""
        new = [self.feed(part) for part in item.parts]
        if item.text:
            # The newline between two messages does not belong to a block.
            begins = 1 if self._has_text and not self._is_flowing else 0
            new.append(self.feed(TextDelta(item.text_id or "", item.text[begins:])))
        return "".join(new)

    @property
    def sources(self) -> tuple[CitedSource, ...]:
        """The sources cited so far, ordered by number."""
        return tuple(cited.whole() for cited in self._by_number)

    @property
    def text(self) -> str:
        """The whole text so far, with every marker in position."""
        return self.rendered(self._marker)

    def block_text(self, step: int, text_id: str) -> str:
        """Return the text of a block so far, with every marker in position."""
        block = self._blocks.get((step, text_id), _Block())
        return _rendered(block, block.text, lambda number: self._marker(self._by_number[number - 1].source))

    def cited(self) -> CitedText:
        """Return the text so far and its sources."""
        return CitedText(text=self.text, sources=self.sources, style=self._style)

    def rendered(self, marker: Marker, cleaned: dict[int, int] | None = None) -> str:
        """Return the text with other markers. `cleaned` maps characters to replacements, as for `str.translate`."""
        messages: dict[int, list[str]] = {}
        markers: dict[int, str] = {}
        for source in self.sources:
            markers[source.number] = marker(source)
        for (step, _), block in self._blocks.items():
            text = block.text.translate(cleaned) if cleaned else block.text
            messages.setdefault(step, []).append(_rendered(block, text, markers.__getitem__))
        return "\n".join(text for pieces in messages.values() if (text := "".join(pieces)))

    def _on_step(self, part: StepStart) -> str:
        self._step = part.step
        self._is_flowing = False
        return ""

    def _on_start(self, part: TextStart) -> str:
        self._block(part.id)
        return ""

    def _on_text(self, part: TextDelta) -> str:
        if not part.delta:
            return ""
        separator = "\n" if self._has_text and not self._is_flowing else ""
        self._has_text = self._is_flowing = True
        block = self._block(part.id)
        block.size += len(part.delta)
        block.pieces.append(part.delta)
        block.held += part.delta
        return separator + self._released(block)

    def _released(self, block: _Block, *, is_over: bool = False) -> str:
        """Return the held text that cannot contain a later source's link, with its marks."""
        start = block.size - len(block.held)
        known = max((cut for cut in block.cuts.values() if cut <= block.size), default=start)
        held = None if is_over else marker_beginning(block.held[known - start :])
        end = block.size if held is None else known + held
        text, block.held = block.held[: end - start], block.held[end - start :]
        if not block.cuts and (not block.next or block.next[0][0] > end):
            return text
        reached: list[tuple[int, int]] = []
        while block.next and block.next[0][0] <= end:
            mark = heapq.heappop(block.next)
            block.due.discard(mark)
            reached.append((mark[0] - start, mark[1]))
        cuts = [(first - start, last - start) for first, last in block.cuts.items() if last <= end]
        block.cuts = {first: last for first, last in block.cuts.items() if last > end}
        return self._marked(text, reached, cuts)

    def _on_end(self, part: TextEnd) -> str:
        block = self._block(part.id)
        block.is_over = True
        block.final = part.text
        return self._released(block, is_over=True) + self._flushed(block)

    def _on_source(self, part: Source) -> str:
        block = self._blocks.get((self._step, part.text_id or ""))
        if block is None or part.text_id is None or part.kind in _GENERATED:
            return ""
        number = self._number(part)
        block.sources[part.id] = (part, number)
        at, emitted = _end_of(part), block.size - len(block.held)
        if at is not None and (at, number) in block.due:
            return ""
        if at is not None and 0 < at == emitted == block.size and not block.is_over:
            return self._marked("", [(0, number)])
        if at is None or at <= emitted:
            block.at_end.add(number)
            return self._flushed(block) if block.is_over else ""
        block.due.add((at, number))
        heapq.heappush(block.next, (at, number))
        if part.marker_start is not None and part.marker_start >= emitted:
            block.cuts[part.marker_start] = at
        return self._released(block)

    def _on_step_end(self, part: StepFinish | Finish) -> str:
        return "".join(self._released(block, is_over=True) + self._flushed(block) for block in self._blocks.values())

    _handlers: ClassVar[dict[type, Callable[["Citations", Any], str]]] = {
        StepStart: _on_step,
        TextStart: _on_start,
        TextDelta: _on_text,
        TextEnd: _on_end,
        Source: _on_source,
        StepFinish: _on_step_end,
        Finish: _on_step_end,
    }
    """Part type → handler that returns the new text. Other parts add none."""

    def _block(self, text_id: str) -> _Block:
        return self._blocks.setdefault((self._step, text_id), _Block())

    def _flushed(self, block: _Block) -> str:
        numbers = block.at_end | {number for _, number in block.due}
        block.due, block.next, block.at_end = set(), [], set()
        return self._marked("", [(0, number) for number in numbers]) if block.size else ""

    def _marked(self, text: str, marks: list[tuple[int, int]], cuts: Iterable[tuple[int, int]] = ()) -> str:
        return _inserted(text, marks, lambda number: self._marker(self._by_number[number - 1].source), cuts)

    def _number(self, part: Source) -> int:
        key = source_key(part)
        known = self._sources.get(key)
        if known is None:
            number = len(self._by_number) + 1
            source = CitedSource(number=number, kind=part.kind, url=part.url, title=part.title, file_id=part.file_id)
            known = self._sources[key] = _Cited(source)
            self._by_number.append(known)
        elif part.title is not None and known.source.title is None:
            known.source = replace(known.source, title=part.title)
        if _WEAKNESS[part.evidence.state] > _WEAKNESS[known.source.evidence.state]:
            known.source = replace(known.source, evidence=part.evidence)
        if part.cited_text:
            known.passages.setdefault(part.cited_text)
        return known.source.number


def source_key(source: Source) -> str:
    """Return a key that is the same for all citations of one page or file."""
    if source.url:
        return html.without_tracking(source.url)
    return source.file_id or source.title or source.id


def _end_of(source: Source) -> int | None:
    """Return the position of a source's mark, at the end of its span or of the link that the mark replaces."""
    return source.end if source.marker_end is None else source.marker_end


def _rendered(block: _Block, text: str, marker: Callable[[int], str]) -> str:
    """Return the text of a block, with every mark in position."""
    marks = [(_position(source, text), number) for source, number in block.sources.values() if text]
    spans = [(source.marker_start, source.marker_end) for source, _ in block.sources.values()]
    return _inserted(text, marks, marker, [(a, b) for a, b in spans if a is not None and b is not None])


def _position(source: Source, text: str) -> int:
    """Return the position of a source's mark, clamped to the text and never inside a surrogate pair."""
    end = _end_of(source)
    at = len(text) if end is None else max(0, min(end, len(text)))
    splits_pair = 0 < at < len(text) and "\ud800" <= text[at - 1] <= "\udbff" and "\udc00" <= text[at] <= "\udfff"
    return at + 1 if splits_pair else at


def _inserted(
    text: str, marks: Iterable[tuple[int, int]], marker: Callable[[int], str], cuts: Iterable[tuple[int, int]] = ()
) -> str:
    """Return the text with markers inserted, each number once per position, and the `cuts` removed."""
    pieces: list[str] = []
    done = 0
    steps = [(at, 1, number) for at, number in set(marks)] + [(start, 0, end) for start, end in set(cuts)]
    for at, is_mark, value in sorted(steps):
        pieces.append(text[done:at])
        done = max(done, at)
        if is_mark:
            pieces.append(marker(value))
        else:
            done = max(done, min(value, len(text)))
    return "".join([*pieces, text[done:]])


def citations_of(result: Content, style: CitationStyle = "numbers") -> Citations:
    """Return the citations of a result, from its parts and the text of its messages."""
    texts = _texts(result)
    placed = Citations(style)
    step = 0
    for part in result.parts:
        placed.feed(part)
        if isinstance(part, StepStart):
            step = part.step
        elif isinstance(part, TextStart):
            placed.feed(TextDelta(part.id, texts.get((step, part.id), "")))
    return placed


def claims_of(result: Content) -> tuple[CitedClaim, ...]:
    """Return a result's claims, in the order of their sources. A later source with the same id replaces one."""
    return claims_in(result.parts, _texts(result))


def claims_in(parts: Iterable[StreamPart], texts: Mapping[tuple[int, str], str]) -> tuple[CitedClaim, ...]:
    """Return the claims whose sources are among the parts, with the texts of blocks by step and id."""
    found: dict[tuple[int, str], CitedClaim] = {}
    step = 0
    for part in parts:
        if isinstance(part, StepStart):
            step = part.step
        elif isinstance(part, Source) and part.text_id is not None and part.kind not in _GENERATED:
            text = texts.get((step, part.text_id), "")
            start, end = claim_span(part, text)
            first, last = part.marker_start, part.marker_end
            found[step, part.id] = CitedClaim(
                text=text[start:end],
                source=part,
                step=step,
                start=start,
                end=end,
                marker=(first, last) if first is not None and last is not None else None,
            )
    return tuple(found.values())


def with_evidence(
    result: R, evidence: Mapping[tuple[int, str], Evidence], marks: Mapping[tuple[int, str], Mapping[str, Json]]
) -> R:
    """Return a result whose sources have this evidence and these `sidestream` metadata, by step and source id."""
    parts: list[StreamPart] = []
    step = 0
    for part in result.parts:
        if isinstance(part, StepStart):
            step = part.step
        if isinstance(part, Source) and (step, part.id) in evidence:
            parts.append(checked_source(part, evidence[step, part.id], marks.get((step, part.id), {})))
        else:
            parts.append(part)
    return replace(result, parts=tuple(parts))


def checked_source(source: Source, evidence: Evidence, marks: Mapping[str, Json]) -> Source:
    """Return a source with this evidence, and with these `sidestream` metadata besides its own."""
    known = source.provider_metadata or {}
    own = {**as_object(known.get("sidestream")), **marks}
    metadata = {**known, "sidestream": own} if own else source.provider_metadata
    return replace(source, evidence=evidence, provider_metadata=metadata)


def claim_span(source: Source, text: str) -> tuple[int, int]:
    """Return the span of a source's claim.

    It is the sentence before a link or a position, or the provider's segment, or else the whole block.
    """
    if source.claim_start is not None and source.claim_end is not None:
        return source.claim_start, source.claim_end
    start, end = source.start, source.end
    if start is not None and (end is None or end <= start):
        return claim_before(text, min(start, len(text)))
    return trimmed(text, max(0, start or 0), len(text) if end is None else min(end, len(text)))


def _texts(result: Content) -> dict[tuple[int, str], str]:
    """Return the texts of a result by step and block, because ids are unique within a step only."""
    blocks = _blocks(result.parts)
    messages = [
        {part.id: part.text for part in message.parts if isinstance(part, TextPart) and part.id is not None}
        for message in result.messages
        if message.role == "model"
    ]
    texts: dict[tuple[int, str], str] = {}
    for step, ids in blocks.items():
        found = next((place for place, known in enumerate(messages) if known and known.keys() <= {*ids}), None)
        if found is not None:
            texts |= {(step, block): messages[found].get(block, "") for block in ids}
            messages = messages[found + 1 :]
    missing = [(step, block) for step, ids in blocks.items() for block in ids if (step, block) not in texts]
    if missing:
        # An interrupted run has text but no message.
        known = "\n".join(filter(None, ("".join(texts.get((s, b), "") for b in ids) for s, ids in blocks.items())))
        output = result.text
        is_longer = output.startswith(known)
        texts[missing[0]] = output[len(known) :].removeprefix("\n" if known else "") if is_longer else ""
    return texts


def _blocks(parts: Iterable[StreamPart]) -> dict[int, list[str]]:
    """Return the ids of text blocks, by step."""
    blocks: dict[int, list[str]] = {}
    step = 0
    for part in parts:
        if isinstance(part, StepStart):
            step = part.step
        elif isinstance(part, TextStart):
            blocks.setdefault(step, []).append(part.id)
    return blocks
