"""A store behaves as a dict of lists, whatever is done to it, and messages survive JSON and the store unchanged."""

import asyncio
import contextlib
import shutil
import tempfile
from base64 import b64encode
from collections.abc import Coroutine
from contextlib import aclosing
from pathlib import Path
from typing import Any, TypeVar

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from requirements import requirement
from sidestream import ChatMessage, DataPart, LinkPart, TextPart, ThinkingPart, ToolCallPart, ToolResultPart
from sidestream.errors import ConflictError
from sidestream.messages.message import ApprovalPart, messages_from_json, messages_to_json
from sidestream.store import Store
from sidestream.store.postgres.store import PostgresStore
from sidestream.store.records import LONG_TEXT, MessageAdded, Row, pack, unpack
from sidestream.store.sqlite.store import SqliteStore
from support.postgres import Server
from support.stores import digest_of, next_of, segment

T = TypeVar("T")

# Messages

texts = st.text(st.characters(exclude_categories=()), max_size=20)
"""Lone surrogates and NUL included."""
long_texts = st.integers(LONG_TEXT - 2, LONG_TEXT + 2).map(lambda size: "é" * size)
base64_texts = st.binary(max_size=3).map(lambda data: b64encode(data * LONG_TEXT).decode())
numbers = st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
leaves = st.none() | st.booleans() | numbers | texts | long_texts | base64_texts
values = st.recursive(leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3))
optional = st.none() | texts
parts = st.one_of(
    st.builds(TextPart, texts | long_texts, optional),
    st.builds(ThinkingPart, texts, optional),
    st.builds(DataPart, st.binary(max_size=50), texts, optional),
    st.builds(LinkPart, texts, optional, optional),
    st.builds(ToolCallPart, texts, texts, values, optional),
    st.builds(ToolResultPart, texts, texts, values, st.booleans(), st.booleans()),
    st.builds(ApprovalPart, texts, st.booleans(), optional),
)
messages = st.builds(
    ChatMessage,
    st.sampled_from(["system", "user", "model", "tool"]),
    st.lists(parts, max_size=4).map(tuple),
    st.dictionaries(texts, values, max_size=2),
)


@requirement("R35")
@given(st.lists(messages, max_size=3))
def test_messages_survive_json(history: list[ChatMessage]):
    assert messages_from_json(messages_to_json(history)) == history


@requirement("R80")
@given(messages)
def test_messages_survive_packing_into_row(message: ChatMessage):
    body, blobs = pack(MessageAdded(message))
    row = Row(seq=1, time=0.0, run="", kind="message", body=body, blobs=tuple(blobs))
    assert unpack(row, blobs.__getitem__).body == MessageAdded(message)


# Stores

NAMES = ("one", "two", "Größe/日本")
names = st.sampled_from(NAMES)


@st.composite
def contents(draw: st.DrawFn) -> list[tuple[bytes, dict[str, bytes]]]:
    """The bodies of some rows, each with its blobs."""
    datas = draw(st.lists(st.binary(max_size=8), max_size=2))
    bodies = draw(st.lists(values, min_size=1, max_size=4))
    return [(segment(body), {digest_of(data): data for data in datas}) for body in bodies]


def as_rows(after: int, found: list[tuple[bytes, dict[str, bytes]]]) -> list[Row]:
    numbered = enumerate(found, after + 1)
    return [
        Row(seq=seq, time=float(seq), run="run", kind="text", body=body, blobs=tuple(blobs))
        for seq, (body, blobs) in numbered
    ]


class StoreMachine(RuleBasedStateMachine):
    """Does the same to a store and to a dict of lists, and compares them."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="sidestream-property-"))
        self.runner = asyncio.Runner()
        self.logs: dict[str, list[Row]] = {}
        self.deleted: dict[str, list[list[Row]]] = {}
        self.blobs: dict[str, bytes] = {}
        self.store = self.opened()

    def opened(self) -> Store:
        raise NotImplementedError

    def crash(self) -> None:
        """Ends the program, or its connections, without closing anything."""
        raise NotImplementedError

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(work)

    def log(self, name: str) -> list[Row]:
        return self.logs.get(name, [])

    @rule(name=names, content=contents(), flush=st.booleans())
    def append(self, name: str, content: list[tuple[bytes, dict[str, bytes]]], flush: bool) -> None:
        rows = as_rows(len(self.log(name)), content)
        blobs = {digest: data for _, each in content for digest, data in each.items()}
        self.run(self.store.append(name, len(self.log(name)), rows, blobs, flush=flush))
        self.logs[name] = self.log(name) + rows
        self.blobs |= blobs

    @rule(name=names, content=contents(), wrong=st.sampled_from([-1, 1, 7]))
    def append_at_the_wrong_place(self, name: str, content: list[tuple[bytes, dict[str, bytes]]], wrong: int) -> None:
        after = max(0, len(self.log(name)) + wrong)
        if after == len(self.log(name)):
            return
        blobs = {digest: data for _, each in content for digest, data in each.items()}
        with pytest.raises(ConflictError):
            self.run(self.store.append(name, after, as_rows(after, content), blobs))

    @rule(name=names, content=contents())
    def two_append_at_once(self, name: str, content: list[tuple[bytes, dict[str, bytes]]]) -> None:
        after = len(self.log(name))
        one = as_rows(after, [(body, {}) for body, _ in content])
        other = as_rows(after, [(segment("other"), {})])

        async def race() -> list[Any]:
            return await asyncio.gather(
                *(self.store.append(name, after, rows) for rows in (one, other)), return_exceptions=True
            )

        outcomes = self.run(race())
        assert sorted(type(outcome).__name__ for outcome in outcomes) == ["ConflictError", "NoneType"]
        self.logs[name] = self.log(name) + (one if outcomes[0] is None else other)

    @rule(source=names, name=names, share=st.floats(0, 1))
    def fork(self, source: str, name: str, share: float) -> None:
        rows = self.log(source)[: round(len(self.log(source)) * share)]
        if name in self.logs or not rows:
            return
        self.run(self.store.append(name, 0, rows))
        self.logs[name] = rows

    @rule(name=names, share=st.floats(0, 1))
    def read(self, name: str, share: float) -> None:
        after = round(len(self.log(name)) * share)
        assert self.run(self.store.read(name, after)) == self.log(name)[after:]

    @rule(name=names, share=st.floats(0, 1))
    def follow(self, name: str, share: float) -> None:
        after = round(len(self.log(name)) * share)

        async def found() -> list[Row]:
            async with aclosing(self.store.tail(name, after)) as tail:
                return await next_of(tail, len(self.log(name)) - after)

        assert self.run(found()) == self.log(name)[after:]

    @rule(name=names)
    def delete(self, name: str) -> None:
        assert self.run(self.store.delete(name)) is (name in self.logs)
        if name in self.logs:
            self.deleted.setdefault(name, []).append(self.logs.pop(name))

    @rule()
    def collect(self) -> None:
        self.run(self.store.collect())
        for digest in {digest for rows in self.logs.values() for row in rows for digest in row.blobs}:
            assert self.run(self.store.blob(digest)) == self.blobs[digest]

    @rule(repair=st.booleans())
    def check(self, repair: bool) -> None:
        assert [it for it in self.run(self.store.check(repair=repair)) if it.kind != "orphan-blob"] == []

    @rule()
    def reopen(self) -> None:
        self.run(self.store.aclose())
        self.store = self.opened()

    @rule()
    def crash_and_reopen(self) -> None:
        self.crash()

    @invariant()
    def the_list_is_right(self) -> None:
        found = self.run(self.store.conversations())
        assert {info.id: info.records for info in found} == {name: len(rows) for name, rows in self.logs.items()}
        assert [info.updated for info in found] == sorted((info.updated for info in found), reverse=True)

    def teardown(self) -> None:
        for name in NAMES:
            assert self.run(self.store.read(name)) == self.log(name)
        self.run(self.store.aclose())
        self.runner.close()
        shutil.rmtree(self.folder)


class SqliteMachine(StoreMachine):
    number = 0

    def path(self) -> Path:
        return self.folder / f"{self.number}.db"

    def opened(self) -> Store:
        store = SqliteStore(self.path(), self.folder / "blobs")
        store.blobs.grace_s = -1
        return store

    def crash(self) -> None:
        self.continue_from_a_copy(1.0)

    @rule(share=st.floats(0, 1))
    def lose_power(self, share: float) -> None:
        """The end of the write-ahead log never reached the disk: each log is a prefix of what it was."""
        self.continue_from_a_copy(share)

    def continue_from_a_copy(self, share: float) -> None:
        """Opens the files as they are at this moment, with this share of the write-ahead log."""
        old = self.path()
        self.number += 1
        new = self.path()
        for suffix in ("", "-wal"):
            with contextlib.suppress(FileNotFoundError):
                shutil.copy(f"{old}{suffix}", f"{new}{suffix}")
        wal = Path(f"{new}-wal")
        if wal.exists():
            size = wal.stat().st_size
            with wal.open("r+b") as stream:
                stream.truncate(round(size * share))
        self.run(self.store.aclose())
        self.store = self.opened()
        for name in NAMES:
            found = self.run(self.store.read(name))
            assert share < 1 or found == self.log(name)
            self.keep_prefix(name, found)

    def keep_prefix(self, name: str, found: list[Row]) -> None:
        # A deletion, too, may be lost with what came after it.
        logs = [*self.deleted.get(name, []), self.log(name)]
        assert any(found == log[: len(found)] for log in logs)
        self.logs.pop(name, None)
        if found:
            self.logs[name] = found


def machine_on(server: Server) -> type[StoreMachine]:
    class PostgresMachine(StoreMachine):
        def opened(self) -> Store:
            url = server.url("postgres") + f"&schema=p{abs(hash(self.folder))}"
            store = PostgresStore(url, self.folder / "blobs")
            store.blobs.grace_s = -1
            return store

        def crash(self) -> None:
            with psycopg.connect(server.url("postgres"), autocommit=True) as connection:
                schema = f"%p{abs(hash(self.folder))}%"
                query = (
                    "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity "
                    "WHERE query LIKE %s AND pid <> pg_backend_pid()"
                )
                connection.execute(query, (schema,)).fetchall()

        def teardown(self) -> None:
            super().teardown()
            with psycopg.connect(server.url("postgres"), autocommit=True) as connection:
                connection.execute("SET client_min_messages = error")
                connection.execute(f"DROP SCHEMA IF EXISTS p{abs(hash(self.folder))} CASCADE".encode())

    return PostgresMachine


def share_of_profile(share: float) -> settings:
    """A part of the examples that the profile asks for: each one is a store of its own, with some dozen steps."""
    count = max(5, int(settings().max_examples * share))
    quiet = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
    return settings(settings(), max_examples=count, stateful_step_count=20, suppress_health_check=quiet)


@requirement("R80", "F32")
def test_sqlite_store_behaves_like_dict_of_lists():
    run_state_machine_as_test(SqliteMachine, settings=share_of_profile(0.3))


@requirement("R80")
def test_postgresql_store_behaves_like_dict_of_lists(postgres_server: Server):
    run_state_machine_as_test(machine_on(postgres_server), settings=share_of_profile(0.05))
