"""Numbered passages in the results of local tools, which a model can cite."""

from collections.abc import Iterable, Iterator
from typing import Any

from msgspec import Struct

from sidestream.evidence.verdict import Evidence
from sidestream.jsontext import JsonObject, as_list, as_object, is_object, text_in
from sidestream.messages.message import ChatMessage, MessagePart, ToolCallPart, ToolResultPart

HOW_TO_CITE = (
    "Each passage has a number, `cite`. In your answer, put [cite:N] right behind every statement that a passage "
    'supports, e.g. "Oslo is the capital [cite:3]." To quote it, put its exact words there: [cite:3 "the words"].'
)
"""Instruction for the model in these tools' descriptions."""
NUMBER = "cite"
MAX_QUOTE_CHARS = 500
MAX_FOREIGN_NUMBER = 1_000_000
"""Largest number reserved for results that claim it. Markers have at most 9 digits."""
_LISTS = ("sources", "results")
_TEXTS = ("text", "snippet")
_PLACE = ("page", "start", "end")


class CitablePassage(Struct, frozen=True, kw_only=True):
    """A passage that can be cited by its number."""

    number: int
    text: str
    url: str | None = None
    file_id: str | None = None
    title: str | None = None
    place: JsonObject = {}
    """Position in the document: `page`, `start` and `end`, skipping unknown ones."""


class PassageMatch(Struct, frozen=True):
    """The part of a passage that a statement refers to, and what the passage establishes about it."""

    cited_text: str | None
    evidence: Evidence


def numbered(result: Any, first: int) -> tuple[Any, int]:
    """Assign numbers to the passages of a result from `first` on, and return it with the next free number."""
    if not is_object(result):
        return result, first
    number = first
    changed = _unnumbered(result)
    for name in _LISTS:
        entries = as_list(result.get(name))
        if entries:
            changed[name] = list[Any]()
        for entry in entries:
            if not is_object(entry) or not any(text_in(entry, field) for field in _TEXTS):
                changed[name].append(_unnumbered(entry) if is_object(entry) else entry)
                continue
            changed[name].append({NUMBER: number} | _unnumbered(entry))
            number += 1
    if number == first and _document_text(result):
        return {NUMBER: number} | changed, number + 1
    return changed, number


def _unnumbered(entry: JsonObject) -> JsonObject:
    """Return the entry without any number that the search engine or its sources put there."""
    return {name: value for name, value in entry.items() if name != NUMBER}


def passages_in(messages: Iterable[ChatMessage]) -> dict[int, CitablePassage]:
    """Return the passages in results of sources that the run called itself, by number.

    The run marks these results with the numbers it assigned. Results without this mark, or without a preceding call,
    are ignored whatever their shape.
    """
    calls: dict[str, str] = {}
    found: dict[int, CitablePassage] = {}
    for part in (part for message in messages for part in message.parts):
        if isinstance(part, ToolCallPart):
            calls[part.id] = part.name
        elif isinstance(part, ToolResultPart) and part.passages is not None and calls.get(part.id) == part.name:
            first, last = part.passages
            own = [passage for passage in _passages(as_object(part.result)) if first <= passage.number <= last]
            found |= {passage.number: passage for passage in own if passage.number not in found}
    return found


def last_number(parts: Iterable[MessagePart]) -> int:
    """Return the greatest passage number in these results, or 0 if there is none.

    Entries that only look like passages count too, so that numbers stay unique, up to `MAX_FOREIGN_NUMBER`.
    """
    results = [part for part in parts if isinstance(part, ToolResultPart)]
    claimed = [passage.number for part in results for passage in _passages(as_object(part.result))]
    own = [part.passages[1] for part in results if part.passages is not None]
    return max([0, *own, *(number for number in claimed if number <= MAX_FOREIGN_NUMBER)])


def _passages(result: JsonObject) -> Iterator[CitablePassage]:
    for entry in (result, *(as_object(entry) for name in _LISTS for entry in as_list(result.get(name)))):
        number = entry.get(NUMBER)
        text = next((found for field in _TEXTS if (found := text_in(entry, field))), None) or _document_text(entry)
        if type(number) is int and text:
            title = (
                text_in(entry, "filename")
                or text_in(entry, "title")
                or text_in(as_object(entry.get("content")), "title")
            )
            yield CitablePassage(
                number=number,
                text=text,
                url=text_in(entry, "url"),
                file_id=text_in(entry, "file_id"),
                title=title,
                place={name: entry[name] for name in _PLACE if type(entry.get(name)) is int},
            )


def _document_text(result: JsonObject) -> str | None:
    """Return the text of a fetched document."""
    return text_in(as_object(as_object(result.get("content")).get("source")), "data")


def finding(passage: CitablePassage, claim: str, quote: str | None) -> PassageMatch:
    """Return what a passage establishes about a claim, and the part of it that was compared.

    With a quote, the cited text is the quote. Without one, it is the nearest sentence of the passage.
    """
    # Most answers cite nothing, so the word lists are loaded with the first citation.
    from sidestream.evidence import judge, tokens

    evidence = judge(claim, passage.text, quote)
    if quote is not None:
        return PassageMatch(quote[:MAX_QUOTE_CHARS] or None, evidence)
    cited = tokens.sentence_at(passage.text, evidence.place or (0, 0))
    return PassageMatch(None if cited is None else cited.text[:MAX_QUOTE_CHARS], evidence)
