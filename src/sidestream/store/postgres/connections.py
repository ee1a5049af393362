"""Connections to PostgreSQL, at most three per event loop, for writing, reading and listening."""

import asyncio
import threading
from collections.abc import Generator
from contextlib import aclosing, contextmanager, suppress
from copy import copy
from functools import partial
from typing import NamedTuple

from sidestream.errors import StoreError
from sidestream.store.blobs.folder import BlobStore
from sidestream.store.database import PAGE, rows_of
from sidestream.store.postgres.appends import AppendQueue
from sidestream.store.postgres.serial import SerialConnection
from sidestream.store.postgres.server import Connection, PostgresServer
from sidestream.store.records import Row

HEARTBEAT_S = 30.0
"""Seconds between tests of a connection without notifications, which can die without an error."""


class Listener:
    """Sets the events of those who wait for notifications, on a connection that is open only while they wait.

    Nothing is lost if the connection breaks, because all are woken and read again once the channel is live again.
    """

    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[str, dict[str, set[asyncio.Event]]] = {}
        """Channel → payload → events to set."""
        self._live: set[str] = set()
        """Channels that the connection listens to."""
        self._opening: dict[str, asyncio.Future[None]] = {}
        """Channels that should become live, each with a future that is resolved then."""
        self._task: asyncio.Task[None] | None = None
        self._pause: asyncio.Timeout | None = None
        """Set while the task waits for notifications."""

    @contextmanager
    def subscribed(self, channel: str, payload: str) -> Generator[asyncio.Event]:
        """Return an event that is set by notifications with this payload or none, and when the connection breaks."""
        event = asyncio.Event()
        self._waiting.setdefault(channel, {}).setdefault(payload, set()).add(event)
        try:
            yield event
        finally:
            self._leave(channel, payload, event)

    async def listen(self, channel: str) -> None:
        """Wait until notifications of the channel arrive. Raises StoreError if the server cannot be reached."""
        while channel not in self._live:
            future = self._opening.setdefault(channel, self._loop.create_future())
            if self._task is None:
                self._task = asyncio.create_task(self._run())
            else:
                self._interrupt()
            await asyncio.shield(future)

    def stop(self) -> None:
        """Close the connection and wake all subscribers, from any thread."""
        with suppress(RuntimeError):  # The loop was closed, and all that waited with it.
            self._loop.call_soon_threadsafe(self._end, StoreError(f"the store {self._server.name} was closed"))

    def _leave(self, channel: str, payload: str, event: asyncio.Event) -> None:
        payloads = self._waiting[channel]
        payloads[payload].discard(event)
        if not payloads[payload]:
            del payloads[payload]
        if not payloads:
            del self._waiting[channel]
            self._interrupt()
        if not self._waiting:
            self._end(None)

    def _end(self, error: StoreError | None) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
        self._broken(error)

    def _broken(self, error: StoreError | None) -> None:
        """Wake all subscribers. Those that still wait for a channel get the error, and the others read again."""
        self._live.clear()
        opening, self._opening = self._opening, {}
        for future in opening.values():
            if error is None or future.done():
                future.cancel()
            else:
                future.set_exception(error)
                future.exception()  # Perhaps not awaited; mark the exception as retrieved.
        for channel in self._waiting:
            self._notify(channel, "")

    def _interrupt(self) -> None:
        """Make the task compare the wanted channels with the live ones."""
        if self._pause is not None and not self._pause.expired():
            self._pause.reschedule(self._loop.time())

    async def _run(self) -> None:
        task, error = asyncio.current_task(), None
        try:
            connection = await self._server.connect()
            try:
                with self._server.errors():
                    while True:
                        await self._choose_channels(connection)
                        await self._dispatch(connection)
            finally:
                connection.pgconn.finish()
        except StoreError as failure:
            error = failure
        finally:
            if self._task is task:
                self._task = None
                self._broken(error or StoreError(f"lost the connection to {self._server.name}"))

    async def _choose_channels(self, connection: Connection) -> None:
        """Listen to exactly the channels with subscribers."""
        if self._waiting.keys() == self._live:
            await connection.execute("SELECT 1")
        while wanted := self._waiting.keys() - self._live:
            channel = wanted.pop()
            await connection.execute(self._server.sql(f"LISTEN {channel}"))
            self._live.add(channel)
            if (future := self._opening.pop(channel, None)) is not None and not future.done():
                future.set_result(None)
        while unwanted := self._live - self._waiting.keys():
            channel = unwanted.pop()
            self._live.discard(channel)
            await connection.execute(self._server.sql(f"UNLISTEN {channel}"))

    async def _dispatch(self, connection: Connection) -> None:
        """Pass notifications on until the channels change, or for the time of a heartbeat."""
        if self._waiting.keys() != self._live:
            return
        try:
            async with asyncio.timeout(HEARTBEAT_S) as self._pause, aclosing(connection.notifies()) as notes:
                async for note in notes:
                    self._notify(note.channel, note.payload)
        except TimeoutError:
            pass
        finally:
            self._pause = None

    def _notify(self, channel: str, payload: str) -> None:
        payloads = self._waiting.get(channel, {})
        for events in [payloads.get(payload, ())] if payload else list(payloads.values()):
            for event in events:
                event.set()


MAX_BATCH = 64
"""Maximum conversations per query, whose result is in memory at once."""
_SELECT_PAGES = (
    "SELECT number, seq, time, run, kind, body, array_to_string(blobs, ' ') FROM unnest(%s::text[], %s::bigint[]) "
    "WITH ORDINALITY AS asked (name, after, number), LATERAL (SELECT * FROM {schema}.records WHERE "
    f"conversation = name AND seq > after ORDER BY seq LIMIT {PAGE}) AS page ORDER BY number, seq"
)


class _Request(NamedTuple):
    conversation: str
    after: int
    rows: asyncio.Future[list[Row]]


class PageQueue:
    """The reads of an event loop's subscribers, batched into queries."""

    def __init__(self, server: PostgresServer, reading: SerialConnection) -> None:
        self._server = server
        self._reading = reading
        self._pending: list[_Request] = []
        self._task: asyncio.Task[None] | None = None

    async def read(self, conversation: str, after: int) -> list[Row]:
        """Return the rows after a sequence number, at most `PAGE`."""
        request = _Request(conversation, after, asyncio.get_running_loop().create_future())
        self._pending.append(request)
        if self._task is None:
            self._task = asyncio.create_task(self._serve())
        return await request.rows

    async def _serve(self) -> None:
        batch: list[_Request] = []
        try:
            while self._pending:
                batch = [request for request in self._pending[:MAX_BATCH] if not request.rows.done()]
                del self._pending[:MAX_BATCH]
                try:
                    found = await self._reading.do(partial(self._select, batch))
                except StoreError as error:
                    for request in batch:
                        if not request.rows.done():
                            request.rows.set_exception(copy(error))
                    continue
                for request, rows in zip(batch, found, strict=True):
                    if not request.rows.done():
                        request.rows.set_result(rows)
        finally:
            self._task = None
            for request in [*batch, *self._pending]:
                request.rows.cancel()

    async def _select(self, batch: list[_Request], connection: Connection, _: bool) -> list[list[Row]]:
        pages: list[list[Row]] = [[] for _ in batch]
        asked = [request.conversation for request in batch], [request.after for request in batch]
        for number, *columns in await self._server.select(connection, _SELECT_PAGES, asked):
            pages[number - 1] += rows_of([tuple(columns)])
        return pages


class _OfLoop(NamedTuple):
    writing: SerialConnection
    reading: SerialConnection
    listener: Listener
    appends: AppendQueue
    pages: PageQueue

    def drop(self) -> None:
        self.writing.drop()
        self.reading.drop()
        self.listener.stop()


class LoopConnections:
    """The connections of every event loop that uses a store."""

    def __init__(self, server: PostgresServer, blobs: BlobStore) -> None:
        self._server = server
        self._blobs = blobs
        self._lock = threading.Lock()
        self._by_loop: dict[asyncio.AbstractEventLoop, _OfLoop] = {}

    @property
    def writing(self) -> SerialConnection:
        """The running loop's connection for writing, which creates the schema first."""
        return self._of_this_loop().writing

    @property
    def reading(self) -> SerialConnection:
        """The running loop's connection for reading."""
        return self._of_this_loop().reading

    @property
    def appends(self) -> AppendQueue:
        """The running loop's appends."""
        return self._of_this_loop().appends

    @property
    def pages(self) -> PageQueue:
        """The running loop's reads for subscribers."""
        return self._of_this_loop().pages

    @property
    def listener(self) -> Listener:
        """The running loop's listener for changes."""
        return self._of_this_loop().listener

    async def aclose(self) -> None:
        """Close all connections. Those of the running loop are closed after the work in progress."""
        if (own := self._by_loop.pop(asyncio.get_running_loop(), None)) is not None:
            own.listener.stop()
            await own.appends.aclose()
            await own.writing.aclose()
            await own.reading.aclose()
        self.drop()

    def drop(self) -> None:
        """Close all connections at once."""
        with self._lock:
            connections = list(self._by_loop.values())
            self._by_loop.clear()
        for each in connections:
            each.drop()

    def _of_this_loop(self) -> _OfLoop:
        loop = asyncio.get_running_loop()
        with self._lock:
            if loop not in self._by_loop:
                for closed in [other for other in self._by_loop if other.is_closed()]:
                    self._by_loop.pop(closed).drop()
                writing, reading = SerialConnection(self._server, self._server.create), SerialConnection(self._server)
                appends = AppendQueue(self._server, writing, self._blobs)
                self._by_loop[loop] = _OfLoop(
                    writing, reading, Listener(self._server), appends, PageQueue(self._server, reading)
                )
            return self._by_loop[loop]
