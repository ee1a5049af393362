"""Programs that tests of stores run in child processes: `python store_child.py NAME ARGUMENT…`."""

import asyncio
import concurrent.futures.thread  # noqa: F401
import json
import os
import resource
import signal
import sqlite3
import sys
from contextlib import aclosing
from pathlib import Path

import msgspec
import psycopg  # noqa: F401  (this and other modules are loaded before a process drops its privileges)

import sidestream.store.postgres.store
import sidestream.store.sqlite.store  # noqa: F401
from sidestream import Agent, Chat, Decision, Tool
from sidestream.errors import ConflictError, SidestreamError, StoreError
from sidestream.store import open_store

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support.stores import BOUND_S, digest_of, row, rows, segment

PLAN = [
    ([row(1, "message", blobs=[digest_of(b"one" * 999)]), row(2)], [b"one" * 999]),
    ([row(3, blobs=[digest_of(b"two"), digest_of(b"one" * 999)])], [b"two", b"one" * 999]),
    (rows(4, 6), []),
]
"""The appends of `killed`."""


def say(**fact: object) -> None:
    """Writes one line for the test, directly, so that it arrives even if the process is killed next."""
    os.write(1, json.dumps(fact).encode() + b"\n")


async def compete(where: str, name: str, wins: str) -> None:
    """Appends three rows at a time until this many appends have succeeded."""
    store = open_store(where)
    won = lost = 0
    while won < int(wins):
        head = len(await store.read("talk"))
        try:
            await store.append("talk", head, rows(head + 1, head + 3, run=name))
            won += 1
        except ConflictError:
            lost += 1
    await store.aclose()
    say(won=won, lost=lost)


async def forever(where: str) -> None:
    """Appends without end, each time with a blob, and reports what is durable."""
    store = open_store(where)
    head = len(await store.read("talk"))
    while True:
        data = str(head % 7).encode() * 5000
        await store.append(
            "talk", head, [row(head + 1), row(head + 2, blobs=[digest_of(data)])], {digest_of(data): data}
        )
        head += 2
        say(head=head)


async def follow(where: str, after: str, count: str) -> None:
    """Reports the rows that follow a number."""
    store = open_store(where)
    found: list[int] = []
    async with aclosing(store.tail("talk", int(after))) as tail:
        say(is_ready=True)
        while len(found) < int(count):
            found.append((await anext(tail)).seq)
    await store.aclose()
    say(found=found)


def killed(place: str) -> None:
    """Carries out the plan repeatedly, each time in a new folder, and is killed one step later than before.

    Steps are the statements that SQLite runs and the operations on files.
    """
    for limit in range(1, 1000):
        folder = Path(place) / str(limit)
        folder.mkdir()
        process = os.fork()
        if not process:
            signal.alarm(int(BOUND_S))  # whatever hangs dies, of another signal
            _die_at(limit, folder)
            asyncio.run(_carry_out(folder))
            os._exit(0)
        _, status = os.waitpid(process, 0)
        code = os.waitstatus_to_exitcode(status)
        if code != -signal.SIGKILL:
            say(steps=limit - 1, status=code)
            return


def _die_at(limit: int, folder: Path) -> None:
    left = limit

    def step(*_: object) -> None:
        nonlocal left
        left -= 1
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        # A number is the descriptor of a new file, before anything is written to it.
        is_ours = arguments and (isinstance(arguments[0], int) or str(folder) in str(arguments[0]))
        if event in ("open", "os.rename", "os.mkdir", "os.remove", "os.utime") and is_ours:
            step()

    def connect(*arguments, **options) -> sqlite3.Connection:
        connection = original(*arguments, **options)
        connection.set_trace_callback(step)
        return connection

    original, sqlite3.connect = sqlite3.connect, connect
    sys.addaudithook(hook)


async def _carry_out(folder: Path) -> None:
    store = open_store(folder / "log" / "talks.db")
    safe = os.open(folder / "safe", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for records, blobs in PLAN:
        await store.append("talk", records[0].seq - 1, records, {digest_of(data): data for data in blobs})
        os.write(safe, f"{records[-1].seq}\n".encode())
    await store.aclose()


async def unprivileged(where: str) -> None:
    """Tries to read and to write as a user without the right to write."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
    store = open_store(where)
    try:
        found = len(await store.read("talk"))
    except StoreError as error:
        found = str(error)
    say(read=found, error=await _error(store, found if isinstance(found, int) else 0, b""))
    await store.aclose()


async def limited(where: str, max_bytes: str) -> None:
    """Appends until the limit on file sizes is reached, then once more without it."""
    store = open_store(where)
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(max_bytes), limit[1]))
    head, error = 0, None
    while error is None:
        error = await _error(store, head, os.urandom(2000))
        head += error is None
    blob = os.urandom(int(max_bytes) * 2)
    try:
        await store.append("other", 0, [row(1, blobs=[digest_of(blob)])], {digest_of(blob): blob})
        blob_error = None
    except StoreError as refused:
        blob_error = str(refused)
    resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    say(head=head, error=error, blob_error=blob_error, again=await _error(store, head, b"now"))
    await store.aclose()


async def _error(store, head: int, data: bytes) -> str | None:
    try:
        await store.append("talk", head, [row(head + 1, body=segment(data.hex()))])
    except StoreError as error:
        return f"{type(error).__name__}: {error}"
    return None


async def chat(where: str, url: str) -> None:
    """Sends one message."""
    await Chat(Agent("openai-responses", base_url=url), store=open_store(where), id="talk").send("1")


def desk(url: str, effects: str, nested: str) -> Agent[str]:
    """An agent with a tool that needs an approval and notes each call in a file; or one with that agent as its tool."""

    def delete(name: str) -> str:
        """Deletes something."""
        with open(effects, "a") as file:
            file.write(f"{name}\n")
        return "gone"

    guarded = Tool.from_function(delete, approval=lambda question: "ask")
    agent = Agent("openai-responses", base_url=url, tools=[guarded])
    if nested == "nested":
        return Agent("openai-responses", base_url=url, tools=[agent.as_tool("helper", "Helps.")])
    return agent


async def decide(where: str, url: str, effects: str, nested: str, decision: str) -> None:
    """Reads the conversation, waits for a line, then resumes it with the decision."""
    store = open_store(where)
    talk = Chat(desk(url, effects, nested), store=store, id="talk")
    await talk.load()
    say(status=talk.status)
    await asyncio.to_thread(sys.stdin.readline)
    try:
        say(output=(await talk.resume([msgspec.json.decode(decision, type=Decision)])).output)
    except SidestreamError as error:
        say(error=type(error).__name__, message=str(error))
    await store.aclose()


if __name__ == "__main__":
    program = globals()[sys.argv[1]](*sys.argv[2:])
    if program is not None:
        asyncio.run(program)
