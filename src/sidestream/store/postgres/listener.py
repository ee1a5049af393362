"""The connection that listens for notifications: one for each event loop, whatever the number of those who wait."""

import asyncio
from collections.abc import Generator
from contextlib import aclosing, contextmanager, suppress

from sidestream.errors import StoreError
from sidestream.store.postgres.server import Connection, PostgresServer

HEARTBEAT_S = 30.0
"""A connection without notifications is tested this often: it can die without an error."""


class Listener:
    """Sets the events of those who wait for notifications, on a connection that is open while anybody does.

    Nothing is lost if the connection breaks: everybody is woken, and reads again once the channel is live again.
    """

    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[str, dict[str, set[asyncio.Event]]] = {}
        """Channel → payload → the events of those who wait for it."""
        self._live: set[str] = set()
        """The channels that the connection listens to."""
        self._opening: dict[str, asyncio.Future[None]] = {}
        """Channels that are to become live."""
        self._task: asyncio.Task[None] | None = None
        self._pause: asyncio.Timeout | None = None
        """Set while the task waits for notifications."""

    @contextmanager
    def subscribed(self, channel: str, payload: str) -> Generator[asyncio.Event]:
        """An event that is set by notifications with this payload or none, and when the connection breaks."""
        event = asyncio.Event()
        self._waiting.setdefault(channel, {}).setdefault(payload, set()).add(event)
        try:
            yield event
        finally:
            self._leave(channel, payload, event)

    async def listen(self, channel: str) -> None:
        """Returns once notifications of the channel arrive. Raises StoreError if the server cannot be reached."""
        while channel not in self._live:
            future = self._opening.setdefault(channel, self._loop.create_future())
            if self._task is None:
                self._task = asyncio.create_task(self._run())
            else:
                self._interrupt()
            await asyncio.shield(future)

    def stop(self) -> None:
        """Closes the connection and wakes everybody; from any thread."""
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
        """Wakes everybody: who still waits for a channel gets the error, the others read again."""
        self._live.clear()
        opening, self._opening = self._opening, {}
        for future in opening.values():
            if error is None or future.done():
                future.cancel()
            else:
                future.set_exception(error)
                future.exception()  # Perhaps nobody waits for it any more.
        for channel in self._waiting:
            self._notify(channel, "")

    def _interrupt(self) -> None:
        """Makes the task compare the channels that are wanted with those that are live."""
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
                self._broken(error or StoreError(f"the connection to {self._server.name} was given up"))

    async def _choose_channels(self, connection: Connection) -> None:
        """Makes the channels live that somebody waits for, and no others."""
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
        """Passes notifications on until the channels change, or for the time of a heartbeat."""
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
