"""Full-text search over the conversations of a store: the database finds candidates, SQLite's FTS5 ranks what was said.

The index is made for one search, in a file that only this process sees and that is gone with it: nothing of a
conversation stays anywhere after it is deleted, and memory holds one conversation at a time.
"""

import asyncio
import re
import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import closing

from msgspec import Struct

from sidestream.errors import StoreError
from sidestream.messages.message import ChatMessage, TextPart
from sidestream.store.log.conversation import Conversation
from sidestream.store.protocol import ConversationInfo, Store
from sidestream.store.records import MessageAdded, Record, Segment
from sidestream.stream.parts import TextDelta, TextEnd

MAX_CANDIDATES = 2000
"""Conversations that are looked into, last changed first."""
SNIPPET_TOKENS = 24
MARK = "**"
"""Around the words that were found."""

_TERM = re.compile(r'"([^"]+)"|(\S+)')
_WORD = re.compile(r"\w+")


class SearchHit(Struct, frozen=True, kw_only=True):
    """Something that was said and matches."""

    conversation: ConversationInfo
    seq: int
    """The number of its record."""
    time: float
    role: str
    text: str
    """The words around what was found, which stands between marks."""


async def search(store: Store, query: str, limit: int = 20, *, prefix: str = "") -> list[SearchHit]:
    """What was said that has all words of the query, best first. `"…"` is a phrase, `word*` a beginning."""
    terms = [(phrase or word) for phrase, word in _TERM.findall(query)]
    words = [word for term in terms for word in _WORD.findall(term)]
    if not words or limit < 1:
        return []
    infos = await _candidates(store, words, prefix)
    with closing(_Index()) as index:
        for number, info in enumerate(infos):
            if said := await _said_in(store, info):
                await asyncio.to_thread(index.add, number, said)
        found = await asyncio.to_thread(index.ranked, _match(query), limit)
    return [
        SearchHit(conversation=infos[number], seq=seq, time=time, role=role, text=text)
        for number, seq, time, role, text in found
    ]


async def _candidates(store: Store, words: Sequence[str], prefix: str) -> list[ConversationInfo]:
    """The conversations that hold the longest word."""
    plain = [word for word in words if word.isascii()]
    longest = max(plain or words, key=len)
    # Databases fold the case of ASCII letters only.
    forms = {longest} if plain else {longest, longest.lower(), longest.upper(), longest.capitalize()}
    found: dict[str, ConversationInfo] = {}
    for form in sorted(forms):
        for info in await store.conversations(MAX_CANDIDATES, prefix=prefix, search=form):
            found[info.id] = info
    return sorted(found.values(), key=lambda info: -info.updated)


async def _said_in(store: Store, info: ConversationInfo) -> list[tuple[Record, str, str]]:
    """Each text of a conversation: its record, who said it, and what. `check` reports one that is damaged."""
    try:
        records = await Conversation(store, info.id).records(load=False)
    except (StoreError, ValueError, LookupError):
        return []
    said: list[tuple[Record, str, str]] = []
    for record in records:
        match record.body:
            case MessageAdded():
                said.append((record, record.body.message.role, text_of(record.body.message)))
            case Segment(kind="text"):
                said.append((record, "model", segment_text(record.body)))
            case _:
                pass
    return said


def text_of(message: ChatMessage) -> str:
    """The text of a message."""
    return "\n".join(part.text for part in message.parts if isinstance(part, TextPart))


def segment_text(segment: Segment) -> str:
    """The text of a block."""
    final = next((part.text for part in segment.parts if isinstance(part, TextEnd) and part.text is not None), None)
    return "".join(part.delta for part in segment.parts if isinstance(part, TextDelta)) if final is None else final


def _match(query: str) -> str:
    """The query in the syntax of FTS5; nothing in it is an operator."""
    terms: list[str] = []
    for phrase, word in _TERM.findall(query):
        words = _WORD.findall(phrase or word)
        if words:
            terms.append(f'"{" ".join(words)}"{"*" if word.endswith("*") else ""}')
    return " AND ".join(terms)


class _Index:
    """Texts by their words. Its threads use it in turn."""

    def __init__(self) -> None:
        # Without a name it is a temporary file, which SQLite opens once its cache is full.
        self._database = sqlite3.connect("", check_same_thread=False)
        self._database.execute(
            "CREATE VIRTUAL TABLE texts USING fts5(number UNINDEXED, seq UNINDEXED, time UNINDEXED, role UNINDEXED, "
            "text, tokenize = 'unicode61')"
        )

    def add(self, number: int, said: Iterable[tuple[Record, str, str]]) -> None:
        """Adds the texts of a conversation."""
        rows = ((number, record.seq, record.time, role, text) for record, role, text in said)
        with self._database:
            self._database.executemany("INSERT INTO texts VALUES (?, ?, ?, ?, ?)", rows)

    def ranked(self, match: str, limit: int) -> list[tuple[int, int, float, str, str]]:
        """What matches, best first: its conversation, record, time, who said it, and its snippet."""
        sql = (
            f"SELECT number, seq, time, role, snippet(texts, 4, '{MARK}', '{MARK}', '…', {SNIPPET_TOKENS}) FROM texts "
            "WHERE texts MATCH ? ORDER BY rank, rowid LIMIT ?"
        )
        return self._database.execute(sql, (match, limit)).fetchall()

    def close(self) -> None:
        """Deletes it."""
        self._database.close()
