"""Scenes for tests of faults: workers in processes of their own, a provider that the test controls, and readers."""

import asyncio
import json
import os
import select
import signal
import sqlite3
import sys
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, closing, suppress
from pathlib import Path
from typing import Any

from msgspec import to_builtins
from msgspec.structs import replace

from sidestream import Chat
from sidestream.durable.engines.protocol import Engine, Task
from sidestream.durable.log.jobs import Job
from sidestream.store.protocol import SharedStore
from sidestream.store.records import Row, unpack
from sidestream.testing import FakeProvider, Reply, ResponsesScript, sse
from support import warm
from support.durable_worker import AGENT, Settings, agent_of
from support.engines import Fleet
from support.stores import BOUND_S

PROGRAM = Path(__file__).with_name("durable_worker.py")
KILLED_S = 10.0
LONG_LEASE_S = 30.0
"""The lease of workers that keep their runs."""
STEP_TEXT = ("It was ", "a dark ", "and stormy ", "night.")


class Forked:
    """A process that a child has forked, as `asyncio.subprocess.Process` has it."""

    def __init__(self, pid: int, stdout: asyncio.StreamReader) -> None:
        self.pid = pid
        self.stdout = stdout
        self._handle = os.pidfd_open(pid)  # The number may belong to another process later.

    @property
    def returncode(self) -> int | None:
        """None while it lives."""
        return 0 if self._handle < 0 or select.select([self._handle], [], [], 0)[0] else None

    def send_signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._handle, number)

    async def wait(self) -> int:
        """Waits for its end, and forgets it."""
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self._handle, ended.set)
        try:
            await ended.wait()
        finally:
            loop.remove_reader(self._handle)
        os.close(self._handle)
        self._handle = -1
        return 0


class Template:
    """A child that has imported everything, and forks workers."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: asyncio.subprocess.Process | None = None
        self._lock = asyncio.Lock()
        self._count = 0

    async def fork(self, settings: Settings) -> Forked:
        """A worker with these settings."""
        async with self._lock:
            if self._process is None:
                self._process = await warm.start(
                    sys.executable, PROGRAM, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
                )
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            self._count += 1
            fifo = self._folder / f"worker-{self._count}"
            os.mkfifo(fifo)
            stdout = asyncio.StreamReader()
            file = os.fdopen(os.open(fifo, os.O_RDONLY | os.O_NONBLOCK))
            await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stdout), file)
            self._process.stdin.write(f"{fifo}\t{json.dumps(to_builtins(settings))}\n".encode())
            async with asyncio.timeout(BOUND_S):
                return Forked(int(await self._process.stdout.readline()), stdout)

    async def aclose(self) -> None:
        """Ends the child. Its workers stay."""
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            async with asyncio.timeout(KILLED_S):
                await self._process.wait()


class WorkerProcess:
    """A worker in a child process, and what it has reported."""

    def __init__(self, process: asyncio.subprocess.Process | Forked, slots: int) -> None:
        self.slots = slots
        self.events: list[dict[str, Any]] = []
        self._process = process
        self._changed = asyncio.Condition()
        self._reading = asyncio.create_task(self._read())

    @property
    def pid(self) -> int:
        return self._process.pid

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal, unless the process has ended."""
        if self._process.returncode is None:
            self._process.send_signal(number)

    async def reported(self, event: str, talk: str | None = None, count: int = 1) -> list[dict[str, Any]]:
        """Waits for so many reports of this kind, about a conversation."""

        def found() -> list[dict[str, Any]]:
            return [it for it in self.events if it["event"] == event and (talk is None or it["talk"] == talk)]

        with suppress(TimeoutError):
            async with asyncio.timeout(BOUND_S), self._changed:
                await self._changed.wait_for(lambda: len(found()) >= count or self._reading.done())
        assert len(found()) >= count, f"no {event}: {self.events}"
        return found()

    async def ended(self) -> int:
        """Waits for the end of the process."""
        async with asyncio.timeout(BOUND_S):
            return await self._process.wait()

    async def aclose(self) -> None:
        """Kills the process."""
        for number in (signal.SIGKILL, signal.SIGCONT):
            self.signal(number)
        async with asyncio.timeout(KILLED_S):
            await self._process.wait()
            await self._reading

    async def _read(self) -> None:
        stdout = self._process.stdout
        assert stdout is not None
        while line := await stdout.readline():
            if not line.startswith(b"{") or not line.endswith(b"\n"):
                continue  # Of a library, or all that it could write before it was killed.
            async with self._changed:
                self.events.append(json.loads(line))
                self._changed.notify_all()
        async with self._changed:
            self._changed.notify_all()


class Reader:
    """Follows the log of a conversation from its beginning; every row must follow the one before."""

    def __init__(self, store: SharedStore, talk: str, is_over: Callable[[Row], bool]) -> None:
        self.rows: list[Row] = []
        self.ended_s = 0.0
        self._changed = asyncio.Condition()
        self._task = asyncio.create_task(self._follow(store, talk, is_over))

    async def saw(self, check: Callable[[Row], bool], count: int = 1, *, within_s: float = BOUND_S) -> list[Row]:
        """Waits until so many rows fit."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s), self._changed:
                await self._changed.wait_for(lambda: sum(map(check, self.rows)) >= count or self._task.done())
        found = [row for row in self.rows if check(row)]
        assert len(found) >= count, [row.kind for row in self.rows]
        return found

    async def over(self, within_s: float = BOUND_S) -> list[Row]:
        """Waits for the end of the run."""
        async with asyncio.timeout(within_s):
            await asyncio.shield(self._task)
        return self.rows

    async def aclose(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _follow(self, store: SharedStore, talk: str, is_over: Callable[[Row], bool]) -> None:
        async with aclosing(store.tail(talk)) as tail:
            async for row in tail:
                assert row.seq == len(self.rows) + 1, "a gap, or a repetition"
                async with self._changed:
                    self.rows.append(row)
                    self._changed.notify_all()
                if is_over(row):
                    self.ended_s = time.monotonic()
                    return


class Scene:
    """A store with its engine, a provider, and workers on them."""

    def __init__(self, fleet: Fleet, engine: Engine, fake: FakeProvider, folder: Path, stack: AsyncExitStack) -> None:
        self.fleet = fleet
        self.store = fleet.store
        self.engine = engine
        self.fake = fake
        self.effects = folder / "effects"
        self.effects.touch()
        self.workers: list[WorkerProcess] = []
        """All that were ever started."""
        self._stack = stack
        self._agent = agent_of(self._settings(fleet.where, fleet.process_lease_s))

    async def patient_workers(self, count: int) -> list[WorkerProcess]:
        """Workers that keep their runs, however slow this machine is."""
        self.engine = self.fleet.another(lease_s=LONG_LEASE_S)
        return [await self.worker(lease_s=LONG_LEASE_S) for _ in range(count)]

    async def worker(
        self, *, store: str | None = None, lease_s: float | None = None, variables: Mapping[str, str] | None = None
    ) -> WorkerProcess:
        """A worker, once it works."""
        settings = self._settings(store or self.fleet.where, lease_s or self.fleet.process_lease_s)
        process = await warm.start(
            sys.executable,
            PROGRAM,
            json.dumps(to_builtins(settings)),
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, **(variables or {})},
        )
        return await self._started(process, settings)

    async def forked_worker(self, template: Template, *, lease_s: float, tool_s: float) -> WorkerProcess:
        """The same, without the time that a process needs for its imports."""
        settings = replace(self._settings(self.fleet.where, lease_s), tool_s=tool_s)
        return await self._started(await template.fork(settings), settings)

    async def _started(self, process: asyncio.subprocess.Process | Forked, settings: Settings) -> WorkerProcess:
        worker = WorkerProcess(process, settings.slots)
        self.workers.append(worker)
        self._stack.push_async_callback(worker.aclose)
        await worker.reported("ready")
        return worker

    async def stop(self, worker: WorkerProcess) -> None:
        """Stops a worker, but not while it writes to a file of SQLite: nobody else could write before it continues."""
        worker.signal(signal.SIGSTOP)
        while not (self.fleet.where.startswith("postgresql:") or await asyncio.to_thread(_can_write, self.fleet.where)):
            worker.signal(signal.SIGCONT)
            await asyncio.sleep(0.01)
            worker.signal(signal.SIGSTOP)

    async def begin(self, talk: str = "talk", prompt: str = "Tell me a story.") -> Reader:
        """A run that a front has recorded and enqueued, and a reader that follows it."""
        chat = self.chat(talk)
        await chat.load()
        run = chat.stream(prompt)
        await run.begin()
        await self.engine.enqueue(Task(conversation=talk, position=chat.head, queue=AGENT))
        return self.reader(talk)

    def reader(self, talk: str = "talk") -> Reader:
        """A reader that ends with the run."""
        reader = Reader(self.store, talk, lambda row: row.kind == "finish" and not is_waiting(row))
        self._stack.push_async_callback(reader.aclose)
        return reader

    def chat(self, talk: str = "talk") -> Chat[Any]:
        """The conversation, as a front has it."""
        chat = Chat(self._agent, store=self.store, id=talk)
        chat.run_details = Job(agent=AGENT, attempt=0).as_details()
        return chat

    def _settings(self, store: str, lease_s: float) -> Settings:
        return Settings(
            store=store,
            engine=self.fleet.engine,
            provider=self.fake.base_url,
            effects=str(self.effects),
            lease_s=lease_s,
        )

    async def said(self, talk: str = "talk") -> str:
        """The last message of the conversation, as its log says."""
        chat = self.chat(talk)
        await chat.load()
        assert chat.status == "complete"
        return chat.messages[-1].text

    def hold(self, value: str) -> Path:
        """Tools that are called with this value do not return before the file is removed."""
        held = Path(f"{self.effects}.{value}")
        held.touch()
        return held

    def calls(self, name: str) -> list[str]:
        """The arguments with which a tool was called, in order."""
        lines = [line.split() for line in self.effects.read_text().splitlines()]
        return [value for tool, value, _ in lines if tool == name]


@asynccontextmanager
async def scene(fleet: Fleet, folder: Path) -> AsyncGenerator[Scene]:
    """A scene without workers."""
    async with AsyncExitStack() as stack:
        fake = await stack.enter_async_context(FakeProvider())
        # On Temporal, who enqueues a task chooses its lease.
        yield Scene(fleet, fleet.another(lease_s=fleet.process_lease_s), fake, folder, stack)


def _can_write(path: str) -> bool:
    with closing(sqlite3.connect(path, timeout=0.5, isolation_level=None)) as connection:
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return False
        connection.execute("ROLLBACK")
        return True


def is_waiting(row: Row) -> bool:
    """Whether a `finish` says that the turn waits for a person."""
    parts = getattr(unpack(row).body, "parts", ())
    return any(getattr(part, "reason", "") == "approval" for part in parts)


def is_text(row: Row) -> bool:
    """Whether the row holds text of the answer."""
    return row.kind in ("text", "text-delta")


def story(gate: asyncio.Event | None = None) -> Reply:
    """An answer; with a gate, which the test opens, in its middle."""
    events: list[Any] = ResponsesScript().text(list(STEP_TEXT)).events()
    if gate is not None:
        deltas = [number for number, event in enumerate(events) if event["type"] == "response.output_text.delta"]
        events.insert(deltas[1] + 1, gate)
    return sse(events)


def calling(name: str, value: str) -> Reply:
    """An answer that calls a tool."""
    return sse(ResponsesScript().function_call(name, {"value": value}).events())
