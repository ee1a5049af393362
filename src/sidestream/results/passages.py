"""Numbered passages in the results of local tools, which a model can cite."""

import re
from collections.abc import Iterable, Iterator
from typing import Any

from msgspec import Struct

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
_WORD = re.compile(r"\w+")
_SENTENCE = re.compile(r"(?<=[.!?。])\s+|\n+")
_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
"""Characters of scripts written without spaces (Thai, Lao, Burmese, Khmer, Chinese, Japanese)."""
_ALONE = re.compile(f"[{_UNSPACED}]")
_TOKEN = re.compile(f"[{_UNSPACED}]|[^\\W{_UNSPACED}]+")
"""Matches a word, or one such character."""
_QUOTED = re.compile(r"[\"“„«]([^\"“”„«»]{8,})[\"”“»]")


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
    """The part of a passage that supports a statement, and whether the passage contains it."""

    cited_text: str | None
    verified: bool


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
    """Return the part of the passage that supports a claim.

    A quote must have more than one word and occur in the passage verbatim. Without a quote, the passage must contain
    every number and quotation of the claim, and most of its words; the cited text is the sentence with most of them.
    """
    plain = _plain(passage.text)
    if quote is not None:
        return PassageMatch(quote[:MAX_QUOTE_CHARS] or None, _says_something(quote) and _plain(quote) in plain)
    words = _words(claim)
    known = set(_words(passage.text))
    shared = [word for word in words if word in known]
    has_numbers = all(word in known for word in words if word.isdigit())
    has_quotations = all(_plain(found) in plain for found in _QUOTED.findall(claim))
    verified = bool(words) and has_numbers and has_quotations and 2 * len(shared) >= len(words)
    return PassageMatch(_best_sentence(passage.text, set(words)), verified)


def _best_sentence(text: str, words: set[str]) -> str | None:
    sentences = [sentence.strip() for sentence in _SENTENCE.split(text) if sentence.strip()]
    best = max(sentences, key=lambda sentence: len(words & set(_words(sentence))), default=None)
    return None if best is None else best[:MAX_QUOTE_CHARS]


def _words(text: str) -> list[str]:
    """Return numbers and words of four letters or more, or all words if there are none of these."""
    words = _WORD.findall(text.casefold())
    return [word for word in words if len(word) > 3 or word.isdigit()] or words


def _says_something(quote: str) -> bool:
    """Return whether the quote has two words, or as many unspaced characters, and one of them is significant."""
    tokens = _TOKEN.findall(quote.casefold())
    unspaced = [token for token in tokens if _ALONE.fullmatch(token)]
    carries_meaning = bool(unspaced) or any(len(token) > 3 or token.isdigit() for token in tokens)
    return carries_meaning and 2 * len(tokens) - len(unspaced) >= 4


def _plain(text: str) -> str:
    """Normalise text for comparison to lower-case words between single spaces."""
    return f" {' '.join(_TOKEN.findall(text.casefold()))} "
