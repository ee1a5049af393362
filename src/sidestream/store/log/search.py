"""Full-text search over the conversations of a store.

The database finds candidates, and SQLite's FTS5 ranks their messages. The index is built for one search, in a temporary
file that only this process sees. So nothing of a conversation remains after its deletion, and memory holds one
conversation at a time.
"""

import asyncio
import re
import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import closing

from msgspec import Struct

from sidestream.errors import StoreError
from sidestream.store.log.conversation import Conversation
from sidestream.store.log.summary import said_in
from sidestream.store.protocol import ConversationInfo, Store
from sidestream.store.records import MessageAdded, Record, Segment

MAX_CANDIDATES = 2000
"""Maximum conversations searched, the most recently changed first."""
SNIPPET_TOKENS = 24
MARK = "**"
"""Marker on both sides of the words found."""

_TERM = re.compile(r'"([^"]+)"|(\S+)')
_WORD = re.compile(r"\w+")


class SearchHit(Struct, frozen=True, kw_only=True):
    """A message that matches."""

    conversation: ConversationInfo
    seq: int
    """Sequence number of its record."""
    time: float
    role: str
    text: str
    """Snippet around the words found, which are enclosed in `MARK`."""


async def search(store: Store, query: str, limit: int = 20, *, prefix: str = "") -> list[SearchHit]:
    """Return messages that contain all words of the query, best first. `"…"` is a phrase, `word*` a prefix."""
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
    """Return the conversations that contain the longest word."""
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
    """Return the record, role and text of each message, or none if the log is damaged, which `check` reports."""
    try:
        records = await Conversation(store, info.id).records(load=False)
    except (StoreError, ValueError, LookupError):
        return []
    said: list[tuple[Record, str, str]] = []
    for record in records:
        match record.body:
            case MessageAdded():
                said.append((record, record.body.message.role, said_in(record)))
            case Segment(kind="text"):
                said.append((record, "model", said_in(record)))
            case _:
                pass
    return said


def _match(query: str) -> str:
    """Convert the query to FTS5 syntax, with all operators quoted."""
    terms: list[str] = []
    for phrase, word in _TERM.findall(query):
        words = _WORD.findall(phrase or word)
        if words:
            terms.append(f'"{" ".join(words)}"{"*" if word.endswith("*") else ""}')
    return " AND ".join(terms)


class _Index:
    """A full-text index, which several threads use one at a time."""

    def __init__(self) -> None:
        # Without a name it is a temporary file, which SQLite opens once its cache is full.
        self._database = sqlite3.connect("", check_same_thread=False)
        self._database.execute(
            "CREATE VIRTUAL TABLE texts USING fts5(number UNINDEXED, seq UNINDEXED, time UNINDEXED, role UNINDEXED, "
            "text, tokenize = 'unicode61')"
        )

    def add(self, number: int, said: Iterable[tuple[Record, str, str]]) -> None:
        """Add the messages of a conversation."""
        rows = ((number, record.seq, record.time, role, text) for record, role, text in said)
        with self._database:
            self._database.executemany("INSERT INTO texts VALUES (?, ?, ?, ?, ?)", rows)

    def ranked(self, match: str, limit: int) -> list[tuple[int, int, float, str, str]]:
        """Return matches, best first, as conversation number, sequence number, time, role and snippet."""
        sql = (
            f"SELECT number, seq, time, role, snippet(texts, 4, '{MARK}', '{MARK}', '…', {SNIPPET_TOKENS}) FROM texts "
            "WHERE texts MATCH ? ORDER BY rank, rowid LIMIT ?"
        )
        return self._database.execute(sql, (match, limit)).fetchall()

    def close(self) -> None:
        """Delete the index."""
        self._database.close()
