"""Sidestream, through the names that a user imports."""

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import cache
from typing import Any

from bench.ways.weather import calls, get_weather
from sidestream import Agent
from sidestream.parts import TextDelta

Take = Callable[[str], object]

MODELS = {
    "responses": ("openai-responses", "/v1"),
    "messages": ("anthropic", ""),
    "generate": ("google", ""),
    "chat": ("openai", "/v1"),
}

transports: dict[str, Any] = {}
"""Transports that replace HTTP, by the URL that they answer for."""


@cache
def agent(wire: str, url: str) -> Agent[str]:
    """One agent for all calls, as in a program."""
    model, path = MODELS[wire]
    return Agent(model, base_url=url + path, api_key="none", transport=transports.get(url))


def stream(wire: str) -> Callable[[str, Take], Any]:
    """`agent.stream`: typed parts."""

    async def play(url: str, take: Take) -> None:
        async with agent(wire, url).stream("Say it.") as run:
            async for part in run:
                if type(part) is TextDelta:
                    take(part.delta)

    return play


@cache
def _socket_agent(url: str) -> Agent[str]:
    return Agent("openai-responses", base_url=f"{url}/v1", api_key="none", transport="websocket")


def websocket(wire: str) -> Callable[[str, Take], Any]:
    """`agent.stream` over one WebSocket for all turns."""

    async def play(url: str, take: Take) -> None:
        async with _socket_agent(url).stream("Say it.") as run:
            async for part in run:
                if type(part) is TextDelta:
                    take(part.delta)

    return play


def send_stream(wire: str) -> Callable[[str, Take], Any]:
    """`agent.send_stream`: chunks."""

    async def play(url: str, take: Take) -> None:
        async for chunk in agent(wire, url).send_stream("Say it."):
            if chunk.output:
                take(chunk.output)

    return play


def send(wire: str) -> Callable[[str, Take], Any]:
    """`agent.send`: the result."""

    async def play(url: str, take: Take) -> None:
        take((await agent(wire, url).send("Say it.")).output)

    return play


def chat(wire: str) -> Callable[[str, Take], Any]:
    """`Chat.send_stream`, each time in a new chat."""

    async def play(url: str, take: Take) -> None:
        from sidestream import Chat

        await _chunks(Chat(agent(wire, url)).send_stream("Say it."), take)

    return play


def chat_log(wire: str) -> Callable[[str, Take], Any]:
    """The same, written to a SQLite file as it streams."""

    async def play(url: str, take: Take) -> None:
        from sidestream import Chat

        await _chunks(Chat(agent(wire, url), store=_store()).send_stream("Say it."), take)

    return play


def chat_commits(wire: str) -> Callable[[str, Take], Any]:
    """The chat without a log, and what any log of it takes: a commit before and, flushed, one after, in a thread."""

    async def play(url: str, take: Take) -> None:
        from bench.ways.floor import commit
        from sidestream import Chat

        loop, pieces = asyncio.get_running_loop(), list[str]()

        def both(piece: str) -> None:
            take(piece)
            pieces.append(piece)

        await loop.run_in_executor(_thread(), commit, b"x" * 300, "NORMAL")
        await _chunks(Chat(agent(wire, url)).send_stream("Say it."), both)
        await loop.run_in_executor(_thread(), commit, "".join(pieces).encode(), "FULL")

    return play


@cache
def _thread() -> Any:
    from concurrent.futures import ThreadPoolExecutor

    return ThreadPoolExecutor(1)


def log_only(wire: str) -> Callable[[str, Take], Any]:
    """A run that nobody reads, written to a SQLite file as it streams."""

    async def play(url: str, take: Take) -> None:
        from sidestream import Chat
        from sidestream.durable.worker.worker import INTERVAL_S
        from sidestream.store.log.writer import LogDetail

        # As often as a worker writes it.
        detail = LogDetail(interval_s=INTERVAL_S, previews=True, inputs=True)
        chat = Chat(agent(wire, url), store=_store(), log=detail)
        await chat.load()
        async with chat.stream("Say it.") as run:
            while await run.batch():
                pass
        take(chat.messages[-1].text)

    return play


def engine(wire: str) -> Callable[[str, Take], Any]:
    """The same run, begun for a worker in this process and driven by it, under a claim of the embedded engine."""

    async def play(url: str, take: Take) -> None:
        from sidestream import Chat
        from sidestream.durable import RunClient

        worker, ended = await _worker(wire, url)
        conversation = f"talk-{len(ended)}"
        done = ended[conversation] = asyncio.get_running_loop().create_future()
        client = RunClient(agent(wire, url), "main", store=_store(), engine=worker)
        await client.start(conversation, "Say it.")
        await done
        chat = Chat(agent(wire, url), store=_store(), id=conversation)
        await chat.load()
        take(chat.messages[-1].text)

    return play


_workers: dict[str, tuple[Any, dict[str, "asyncio.Future[None]"], "asyncio.Task[None]"]] = {}


async def _worker(wire: str, url: str) -> tuple[Any, dict[str, "asyncio.Future[None]"]]:
    """An engine with a worker, and the runs that it was given."""
    from sidestream.durable import Claim, Outcome, open_engine
    from sidestream.durable.worker.worker import Worker

    if url not in _workers:
        opened, ended = open_engine("embedded", _store()), {}
        worker = Worker(_store(), opened, lambda _: agent(wire, url))

        async def drive(claim: Claim) -> Outcome:
            outcome = await worker.drive(claim)
            ended[claim.task.conversation].set_result(None)
            return outcome

        working = asyncio.create_task(opened.work(drive, queues=["main"], slots=1))
        _workers[url] = opened, ended, working
    return _workers[url][:2]


async def _chunks(chunks: AsyncIterator[Any], take: Take) -> None:
    async for chunk in chunks:
        if chunk.output:
            take(chunk.output)


@cache
def _store() -> Any:
    import atexit
    import shutil
    import tempfile

    from sidestream.store import open_store

    folder = tempfile.mkdtemp(prefix="sidestream-bench-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return open_store(f"{folder}/log.db")


@cache
def _weather_agent(url: str) -> Agent[str]:
    known = {"base_url": f"{url}/v1", "api_key": "none", "transport": transports.get(url)}
    return Agent("openai-responses", tools=[get_weather], **known)


async def loop(url: str, task: dict[str, Any]) -> dict[str, Any]:
    """`agent.send` with a function."""
    calls.clear()
    result = await _weather_agent(url).send("Compare the weather.")
    return {"calls": len(calls), "chars": len(result.output)}


async def history(url: str, task: dict[str, Any]) -> dict[str, Any]:
    """`agent.send` on messages that no session stands behind."""
    result = await agent("responses", url).send("And now?", history=_history(task["messages"]))
    return {"said": result.output}


@cache
def _history(count: int) -> list[Any]:
    from bench.turns import turns
    from sidestream import ChatMessage

    make = {"user": ChatMessage.user, "assistant": ChatMessage.model}
    return [make[role](text) for role, text in turns(count)]


_anchored: dict[tuple[str, int], list[Any]] = {}


async def history_session(url: str, task: dict[str, Any]) -> dict[str, Any]:
    """`agent.send` on messages whose last answer the provider still has."""
    from bench.worker import Clock

    known = agent("responses", url)
    count = task["messages"]
    if (url, count) not in _anchored:
        before = _history(count - 2)
        result = await known.send("What then?", history=before)
        _anchored[url, count] = [*before, *result.messages]
    messages = _anchored[url, count]
    clock = Clock()
    result = await known.send("And now?", history=messages)
    return {**clock.stop(), "said": result.output}


async def open_log(url: str, task: dict[str, Any]) -> dict[str, Any]:
    """`Chat.load`: the conversation's messages out of its log."""
    from sidestream import Chat
    from sidestream.store import open_store

    store = open_store(task["store"])
    chat = Chat(agent("responses", url), store=store, id=task["conversation"])
    await chat.load()
    count = len(chat.messages)
    await store.aclose()
    return {"records": task["records"], "messages": count}


async def fill_log(url: str, task: dict[str, Any]) -> dict[str, Any]:
    """Makes a store with conversations of so many records, out of one real turn that is written again and again."""
    from msgspec.structs import replace

    from sidestream import Chat
    from sidestream.store import open_store

    store = open_store(task["store"])
    await Chat(agent("responses", url), store=store, id="pattern").send("What is new?")
    turn = await store.read("pattern")
    rows = [
        replace(turn[number % len(turn)], seq=number + 1, run=f"run_{number // len(turn)}")
        for number in range(task["records"] // len(turn) * len(turn))
    ]
    for name in task["conversations"]:
        await store.append(name, 0, rows)
    await store.aclose()
    return {"records": len(rows), "messages": len(rows) // len(turn) * 2}


def add(a: int, b: int) -> dict[str, int]:
    """Adds two numbers."""
    return {"total": a + b}


@cache
def _adding_agent(url: str, kind: str) -> Agent[str]:
    given: dict[str, Any] = {"base_url": f"{url}/v1", "api_key": "none"}
    if kind == "function":
        return Agent("openai-responses", tools=[add], **given)
    if kind == "provider":
        from sidestream import RemoteMCP

        remote = RemoteMCP(label="bench", url="https://mcp.example/mcp", require_approval="never", execution="provider")
        return Agent("openai-responses", server_side_tools=[remote], **given)
    import sys
    from pathlib import Path

    from sidestream.mcp import MCPServer

    program = Path(__file__).resolve().parents[1] / "mcp_server.py"
    server = MCPServer("bench", command=sys.executable, args=["-I", str(program)], approval="run")
    return Agent("openai-responses", tools=[server], **given)


_adding: list[Agent[str]] = []


async def adding(url: str, task: dict[str, Any]) -> dict[str, Any]:
    """`agent.send`, with calls of a tool: a function, one of a local MCP server, or one that the provider calls."""
    known = _adding_agent(url, task["kind"])
    if known not in _adding:
        _adding.append(known)
    result = await known.send("Add them up.")
    return {"calls": sum(not part.is_error for part in result.tool_results)}


PLAYERS = {
    name: {wire: make(wire) for wire in MODELS}
    for name, make in {
        "stream": stream,
        "websocket": websocket,
        "send_stream": send_stream,
        "send": send,
        "chat": chat,
        "chat_log": chat_log,
        "chat_commits": chat_commits,
        "log_only": log_only,
        "engine": engine,
    }.items()
}
PROGRAMS = {
    "loop": loop,
    "history": history,
    "history-session": history_session,
    "open-log": open_log,
    "fill-log": fill_log,
    "adding": adding,
}


async def close() -> None:
    for opened, _, working in _workers.values():
        working.cancel()
        await asyncio.wait([working])
        await opened.aclose()
    for known in _adding:
        await known.aclose()
    if _store.cache_info().currsize:
        await _store().aclose()
