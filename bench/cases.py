"""Tables of measurements: the ways (which library), the metrics, and the cases (which stream, how often)."""

from collections.abc import Mapping
from typing import Any, NamedTuple


class Way(NamedTuple):
    """One library or API to measure, in its own environment and process."""

    key: str
    label: str
    module: str
    player: str = ""
    peer: str | None = None
    """Environment of a peer. None means the project's own."""
    statement: str = ""
    """Import statement, in a case about imports."""
    task: Mapping[str, Any] = {}
    """Fields of the task that are specific to this way."""
    payload: str | None = None
    """Payload that replaces the case's."""


class Metric(NamedTuple):
    """A field of a worker's result, scaled, optionally per event."""

    key: str
    title: str
    field: str
    scale: float = 1.0
    is_per_event: bool = False
    has_ratio: bool = False


class Case(NamedTuple):
    """One table of the report."""

    name: str
    title: str
    ways: tuple[Way, ...]
    metrics: tuple[Metric, ...]
    kind: str
    """One of `play`, `program`, `import`, `cold` and `command`. See `bench.runner`."""
    wire: str = "responses"
    payload: str = "text-2000"
    quick_payload: str = ""
    mode: str = "streamed"
    task: Mapping[str, Any] = {}
    rounds: int = 7
    peer_rounds: int = 3
    """Rounds of peers. Fewer suffice, since theirs take long and their ratios are large."""
    repeats: int = 1
    """Repeats of our ways per round, which reports their mean. A single measurement of milliseconds is noise."""
    is_fresh: bool = False
    """Whether each measurement has a new process, since peak memory never falls."""
    warm_ups: int = 1
    """Warm-up rounds of our ways. Peers have one, which takes longer than all of ours."""
    warm_payload: str = ""
    """Payload for warming up, if the measured one is too large."""
    note: str = ""


_LAG = (Metric("p50", "lag p50 ms", "lag_p50_ms"), Metric("p99", "lag p99 ms", "lag_p99_ms"))


FLOOR = Way("floor", "floor: aiohttp, event split, msgspec", "floor", "bytes")
STREAM = Way("stream", "**`agent.stream`**", "ours", "stream")
HTTP = STREAM._replace(label="**`agent.stream`** over HTTP")
WEBSOCKET = Way("websocket", "**`agent.stream`** over WebSocket", "ours", "websocket")
SEND_STREAM = Way("send_stream", "**`agent.send_stream`**", "ours", "send_stream")
SEND = Way("send", "**`agent.send`**", "ours", "send")
CHAT = Way("chat", "**`Chat.send_stream`**", "ours", "chat")
CHAT_LOG = Way("chat_log", "**`Chat.send_stream` with the event log**", "ours", "chat_log")
CHAT_COMMITS = Way("chat_commits", "floor: no log, but two commits by a bare connection", "ours", "chat_commits")
LOG_ONLY = Way("log_only", "**`Chat.stream` with the event log**, read by nobody", "ours", "log_only")
ENGINE = Way("engine", "the same run, driven by a worker of the embedded engine", "ours", "engine")
OURS = Way("ours", "**`agent.send`**", "ours")
OPENAI = Way("openai", "openai", "openai_sdk", "sdk", "openai")
AGENTS = Way("openai-agents", "openai-agents `Runner`", "openai_agents", "runner", "openai-agents")
LANGCHAIN = Way("langchain-openai", "langchain `ChatOpenAI`", "langchain_openai_chat", "model", "langchain-openai")
PYDANTIC = Way("pydantic-ai", "pydantic-ai `Agent`", "pydantic_agent", "agent", "pydantic-ai")
LITELLM = Way("litellm", "litellm", "litellm_calls", "calls", "litellm")
ANTHROPIC = Way("anthropic", "anthropic", "anthropic_sdk", "sdk", "anthropic")
LANGCHAIN_ANTHROPIC = Way(
    "langchain-anthropic", "langchain `ChatAnthropic`", "langchain_anthropic_chat", "model", "langchain-anthropic"
)
GENAI = Way("google-genai", "google-genai", "google_genai", "sdk", "google-genai")

_OWN = (FLOOR, STREAM, SEND_STREAM)
_BY_WIRE: dict[str, tuple[Way, ...]] = {
    "responses": (OPENAI, AGENTS, LANGCHAIN, PYDANTIC, LITELLM),
    "messages": (ANTHROPIC, LANGCHAIN_ANTHROPIC, PYDANTIC, LITELLM),
    "generate": (GENAI, PYDANTIC, LITELLM),
    "chat": (OPENAI, AGENTS, LANGCHAIN, PYDANTIC, LITELLM),
}
_WIRE_TITLES = {
    "responses": "OpenAI Responses",
    "messages": "Anthropic Messages",
    "generate": "Gemini generateContent",
    "chat": "Chat Completions",
}

CPU_EVENT = Metric("cpu", "CPU µs per event", "cpu_s", 1e6, is_per_event=True, has_ratio=True)
WALL_EVENT = Metric("wall", "wall µs per event", "wall_s", 1e6, is_per_event=True)
CPU_MS = Metric("cpu", "CPU ms", "cpu_s", 1e3, has_ratio=True)
WALL_MS = Metric("wall", "wall ms", "wall_s", 1e3)
MEMORY = Metric("memory", "peak memory, MB more", "memory_kb", 1.024e-3)
ABOVE = Metric("above", "above the text, MB", "above_kb", 1.024e-3)


def _texts() -> list[Case]:
    own = {"responses": (*_OWN, SEND, CHAT)}
    return [
        Case(
            f"text-{wire}",
            f"Text, {title}: 2,000 deltas",
            (*own.get(wire, _OWN), *_BY_WIRE[wire]),
            (CPU_EVENT, WALL_EVENT),
            "play",
            wire,
            quick_payload="text-500",
            warm_ups=3,
            repeats=15,
        )
        for wire, title in _WIRE_TITLES.items()
    ]


def _mixes() -> list[Case]:
    held = {
        "responses": "reasoning, code, searches, MCP, images of 100 kB, citations",
        "messages": "thinking, search, code, MCP, a document of 100 kB, citations",
        "generate": "thoughts, code, images of 100 kB, grounding",
        "chat": "reasoning, citations",
    }
    return [
        Case(
            f"tools-{wire}",
            f"Tools mix, {title}: {held[wire]}",
            (*_OWN, *_BY_WIRE[wire]),
            (CPU_EVENT, WALL_EVENT),
            "play",
            wire,
            "tools-800",
            "tools-200",
            warm_ups=3,
            repeats=15,
        )
        for wire, title in _WIRE_TITLES.items()
    ]


def _relays() -> list[Case]:
    sdk = Way("sdk", "**`agent.stream`**, without a server", "relayed", task={"relay": "sdk"})
    bare = Way("bare", "bare Starlette and aiohttp: bytes in, bytes out", "relayed", task={"relay": "bare"})
    ours = Way("server", "**`sidestream serve`**, Chat Completions", "relayed", task={"relay": "completions"})
    chat = Way("chat", "**`sidestream serve`**, UI message stream", "relayed", task={"relay": "chat"})
    proxy = Way("litellm-proxy", "LiteLLM's proxy", "litellm_proxy", peer="litellm-proxy")
    note = "CPU and memory are those of the server's process, which keeps the log too. "
    return [
        Case(
            "relay",
            "A server between, Chat Completions: 8 streams of 2,000 deltas",
            (sdk, bare, ours, chat, proxy),
            (CPU_EVENT, WALL_EVENT),
            "program",
            "chat",
            quick_payload="text-500",
            task={"program": "relay", "streams": 8},
            rounds=5,
            peer_rounds=1,
            note=f"{note}An event is one of the provider's.",
        ),
        Case(
            "relay-200",
            "A server between: 200 streams at once, 50 events per second each",
            (bare, ours, chat, proxy),
            (
                Metric("cpu", "CPU µs per event", "cpu_s", 1e6, is_per_event=True, has_ratio=True),
                *_LAG,
            ),
            "program",
            "chat",
            "paced-200-50-101",
            "paced-50-50-101",
            task={"program": "relay-lag"},
            rounds=3,
            peer_rounds=1,
            note=f"{note}The log is written every 50 ms, and readers see what it has.",
        ),
        Case(
            "relay-idle",
            "A server between: streams that have begun and wait",
            (bare, ours, chat, proxy),
            (Metric("memory", "kB per stream", "stream_kb"),),
            "program",
            "chat",
            "paced-100000-1-2",
            task={"program": "relay-idle", "streams": 200, "warm": 50},
            rounds=3,
            peer_rounds=1,
            is_fresh=True,
            note=note.strip(),
        ),
    ]


def _workers() -> list[Case]:
    sqlite = Way("sqlite", "embedded engine, SQLite", "driven", task={"engine": "embedded", "store": "sqlite"})
    postgres = Way(
        "postgresql", "embedded engine, PostgreSQL", "driven", task={"engine": "embedded", "store": "postgresql"}
    )
    return [
        Case(
            "worker-200",
            "A worker that drives 200 runs at once, 50 events per second each",
            (sqlite, postgres),
            (
                Metric("cpu", "CPU µs per event", "cpu_s", 1e6, is_per_event=True),
                Metric("safe_p50", "safe p50 ms", "safe_p50_ms"),
                Metric("safe_p99", "safe p99 ms", "safe_p99_ms"),
                *_LAG,
            ),
            "program",
            "chat",
            "paced-200-50-101",
            "paced-20-50-51",
            task={"program": "worker-lag"},
            rounds=3,
            note="From the provider's sending of an event to the moment at which its record is safe in the database; "
            "then (lag) to the moment at which another process, which follows all runs, has read it. CPU is that of "
            "the worker's process.",
        ),
        Case(
            "claim",
            "From a claim to the provider's receipt of the first request, in a warm worker",
            (sqlite, postgres),
            (
                Metric("begin", "begun and claimed, ms", "begin_ms"),
                Metric("request", "claim to request, ms", "request_ms"),
                Metric("slowest", "slowest, ms", "slowest_ms"),
            ),
            "program",
            "chat",
            "paced-1-50-2",
            task={"program": "claims", "runs": 15},
            rounds=3,
            note="Medians of 15 runs, one after another. The first column is from the call of `RunClient.start` to the "
            "claim: what the log needs of a run is written meanwhile.",
        ),
    ]


def _streams(name: str, streams: int, rate: int) -> Case:
    deltas = 2 * rate + 1
    return Case(
        name,
        f"{streams:,} streams at once, {rate} events per second each",
        (*_OWN, OPENAI, AGENTS, LANGCHAIN, PYDANTIC, GENAI._replace(task={"wire": "generate"})),
        (
            Metric("cpu", "CPU µs per event", "event_cpu_s", 1e6, has_ratio=True),
            Metric("p50", "lag p50 ms", "lag_p50_ms"),
            Metric("p99", "lag p99 ms", "lag_p99_ms", has_ratio=True),
            Metric("open", "opening all, CPU ms", "open_cpu_s", 1e3, has_ratio=True),
            Metric("open_wall", "wall ms", "open_wall_s", 1e3),
            Metric("end", "ending all, CPU ms", "end_cpu_s", 1e3, has_ratio=True),
        ),
        "play",
        payload=f"paced-{streams}-{rate}-{deltas}",
        quick_payload=f"paced-{streams // 10}-{rate}-{deltas}",
        mode="paced",
        rounds=3,
        peer_rounds=1,
        warm_payload="paced-20-50-6",
        note="Each event holds the time at which it was sent; the lag is from there to the program that reads it. Each "
        "stream has a new connection, and the events begin half a second after the last stream was opened.",
    )


_READS = (
    "import socket; here, there = socket.socketpair(); "
    "[(here.send(b'x' * 300), there.recv(256 * 1024)) for _ in range(10_000)]"
)

CASES: tuple[Case, ...] = (
    *_texts(),
    *_mixes(),
    Case(
        "packets",
        "One event per packet, OpenAI Responses",
        (*_OWN, *_BY_WIRE["responses"]),
        (CPU_EVENT, WALL_EVENT),
        "play",
        payload="single-text-1000",
        quick_payload="single-text-200",
        rounds=5,
        peer_rounds=2,
        note="The server waits 0.6 ms between two packets, so each event wakes the reader; wall time is the server's.",
    ),
    Case(
        "websocket",
        "Text over WebSocket, OpenAI Responses: 2,000 deltas",
        (HTTP, WEBSOCKET),
        (CPU_EVENT, WALL_EVENT),
        "play",
        quick_payload="text-500",
        warm_ups=3,
        repeats=15,
        note="One frame for each event; the first turn, which opens the connection, is a warm-up.",
    ),
    Case(
        "websocket-first",
        "To the first piece of text of a later turn, over WebSocket",
        (HTTP, WEBSOCKET),
        (CPU_MS, WALL_MS),
        "play",
        payload="text-20",
        mode="first",
        rounds=9,
        warm_ups=5,
        repeats=15,
        note="On loopback, over connections that are open: what a distant server's handshakes cost is not in it.",
    ),
    Case(
        "long",
        "A long stream: 60,000 deltas, OpenAI Responses",
        _OWN,
        (CPU_EVENT, WALL_EVENT),
        "play",
        payload="text-60000",
        quick_payload="text-6000",
        rounds=5,
    ),
    Case(
        "bulk",
        "50 MB of text, Chat Completions",
        (*_OWN, SEND, OPENAI, LANGCHAIN, PYDANTIC),
        (Metric("cpu", "CPU s", "cpu_s", has_ratio=True), Metric("wall", "wall s", "wall_s"), MEMORY, ABOVE),
        "play",
        "chat",
        "bulk-50",
        "bulk-2",
        "bulky",
        task={"timeout_s": 30},
        rounds=3,
        peer_rounds=1,
        is_fresh=True,
        warm_payload="text-500",
        note="In deltas of 1 kB; the program counts them and keeps none. The floor keeps nothing either; "
        "the others hold the text for the message that they make of it.",
    ),
    Case(
        "loop",
        "A loop of 20 tool calls, OpenAI Responses",
        (FLOOR, OURS, OPENAI._replace(label="openai, by hand"), AGENTS, LANGCHAIN, PYDANTIC),
        (CPU_MS, WALL_MS),
        "program",
        payload="calls-get_weather-20",
        task={"program": "loop"},
        repeats=5,
    ),
    Case(
        "history",
        "One turn on a history of 1,000 messages, without a session at the provider",
        (FLOOR, OURS, OPENAI, AGENTS, LANGCHAIN, PYDANTIC),
        (CPU_MS, WALL_MS),
        "program",
        payload="history",
        task={"program": "history", "messages": 1000},
        repeats=15,
    ),
    Case(
        "session",
        "The same with a session at the provider",
        (
            Way("10", "10 messages", "ours", task={"messages": 10}),
            Way("1000", "1,000 messages", "ours", task={"messages": 1000}),
        ),
        (CPU_MS, WALL_MS),
        "program",
        payload="history",
        task={"program": "history-session"},
        rounds=9,
        warm_ups=5,
        repeats=15,
    ),
    Case(
        "first",
        "To the first piece of text, in a warm process",
        (*_OWN, *_BY_WIRE["responses"]),
        (CPU_MS, WALL_MS),
        "play",
        payload="text-20",
        mode="first",
        rounds=9,
        warm_ups=5,
        repeats=15,
    ),
    Case(
        "import",
        "Import",
        (
            Way("floor", "floor: `import msgspec, asyncio`", "", statement="import msgspec, asyncio"),
            Way("sidestream", "**`import sidestream`**", "", statement="import sidestream"),
            Way("agent", "**`from sidestream import Agent`**", "", statement="from sidestream import Agent"),
            Way("openai", "openai", "", peer="openai", statement="from openai import AsyncOpenAI"),
            Way("anthropic", "anthropic", "", peer="anthropic", statement="from anthropic import AsyncAnthropic"),
            Way("google-genai", "google-genai", "", peer="google-genai", statement="from google import genai"),
            Way(
                "pydantic-ai",
                "pydantic-ai with OpenAI",
                "",
                peer="pydantic-ai",
                statement="from pydantic_ai import Agent; from pydantic_ai.models.openai import OpenAIResponsesModel",
            ),
            Way(
                "openai-agents", "openai-agents", "", peer="openai-agents", statement="from agents import Agent, Runner"
            ),
            Way(
                "langchain-openai",
                "langchain-openai",
                "",
                peer="langchain-openai",
                statement="from langchain_openai import ChatOpenAI",
            ),
            Way("litellm", "litellm", "", peer="litellm", statement="import litellm"),
        ),
        (CPU_MS, WALL_MS),
        "import",
        rounds=11,
        peer_rounds=3,
        note="In a new process, around the statement alone; the interpreter's own start is not counted.",
    ),
    Case(
        "cold",
        "To the first piece of text, in a new process",
        (*_OWN, *_BY_WIRE["responses"]),
        (CPU_MS, WALL_MS),
        "cold",
        payload="text-20",
        rounds=11,
        peer_rounds=2,
        note="Imports, client, request and first event; the interpreter's own start is not counted.",
    ),
    Case(
        "command",
        "The command line: one answer, logged",
        (
            Way("floor", 'floor: `python -c "import aiohttp, click"`', "", statement="import aiohttp, click"),
            Way("hi", "**`sidestream hi`**", "", statement="hi"),
        ),
        (CPU_MS, WALL_MS),
        "command",
        payload="text-20",
        rounds=15,
        note="Whole processes, from the interpreter's start to their end, threads included. The log exists already.",
    ),
    _streams("streams-1000", 1000, 10),
    _streams("streams-200", 200, 50),
    *_relays(),
    *_workers(),
    Case(
        "reads",
        "One read of a socket, as asyncio makes it",
        (
            Way("plain", "in a new process", "", statement=_READS),
            Way("freed", "after a larger piece of memory was freed", "", statement=f"bytearray(512 * 1024); {_READS}"),
        ),
        (Metric("cpu", "CPU µs", "cpu_s", 1e6 / 10_000),),
        "import",
        rounds=7,
        is_fresh=True,
        note="With the write that it answers. See docs/performance.md, many streams.",
    ),
    Case(
        "log",
        "The event log on a stream of 2,000 deltas",
        (CHAT, CHAT_COMMITS, CHAT_LOG),
        (CPU_EVENT, WALL_EVENT),
        "play",
        quick_payload="text-500",
        rounds=9,
        warm_ups=3,
        repeats=15,
        note="A new conversation in a SQLite file for each stream; threads are counted.",
    ),
    Case(
        "log-floor",
        "What SQLite and threads take of that for one turn",
        (
            Way(
                "commits", "two commits by a bare connection, one of them flushed", "floor", task={"program": "commits"}
            ),
            Way("threads", "two hand-overs to a thread and back", "floor", task={"program": "hand-overs"}),
        ),
        (Metric("cpu", "CPU ms", "cpu_s", 1e3), WALL_MS),
        "program",
        task={"chars": 17_000},
        rounds=9,
        warm_ups=3,
        repeats=15,
    ),
    Case(
        "log-long",
        "The event log on a stream of 60,000 deltas",
        (CHAT, CHAT_LOG),
        (CPU_EVENT, WALL_EVENT),
        "play",
        payload="text-60000",
        quick_payload="text-6000",
        rounds=7,
    ),
    Case(
        "durable",
        "A worker under an engine's claim, on a stream of 60,000 deltas",
        (LOG_ONLY, ENGINE),
        (CPU_EVENT, WALL_EVENT),
        "play",
        payload="text-60000",
        quick_payload="text-6000",
        rounds=7,
        note="Enqueued, claimed, begun anew from its log and released: all of it is counted.",
    ),
    Case(
        "open-log",
        "Opening a conversation of 10,000 records",
        (
            Way("floor", "floor: its rows and their JSON", "floor"),
            Way("load", "**`Chat.load`**, and the messages", "ours"),
        ),
        (CPU_MS, WALL_MS, MEMORY),
        "program",
        payload="text-20",
        task={"program": "open-log", "records": 10_000, "conversation": "talk-2"},
        rounds=5,
        is_fresh=True,
        note="In a database with five conversations of that size.",
    ),
    Case(
        "mcp",
        "20 calls of one MCP tool: by the bare client, by the agent here, and by the provider",
        (
            Way("bare", "the official client alone, 20 calls", "mcp_client", task={"program": "mcp-bare"}),
            Way("function", "**agent**, 20 steps that call a Python function", "ours", task={"kind": "function"}),
            Way("local", "**agent**, 20 steps that call the MCP server from here", "ours", task={"kind": "local"}),
            Way(
                "provider",
                "**agent**, one step in which the provider calls it 20 times",
                "ours",
                task={"kind": "provider"},
                payload="hosted-add-20",
            ),
        ),
        (
            Metric("cpu", "CPU ms per call", "cpu_s", 1e3 / 20),
            Metric("wall", "wall ms per call", "wall_s", 1e3 / 20),
        ),
        "program",
        payload="calls-add-20",
        task={"program": "adding", "times": 20},
        rounds=9,
        note="What MCP costs through the agent is its row less the function's; the provider's time is not in its row.",
    ),
    Case(
        "file-search",
        "20 searches over 10,000 passages, by words and by vectors",
        (
            Way(
                "floor", "floor: FTS5 and sqlite-vec, ten rows each", "portable_tools", task={"program": "search-bare"}
            ),
            Way("index", "**`Index.search`**", "portable_tools", task={"program": "search-ours"}),
        ),
        (
            Metric("cpu", "CPU ms per search", "cpu_s", 1e3 / 20, has_ratio=True),
            Metric("wall", "wall ms per search", "wall_s", 1e3 / 20),
        ),
        "program",
        payload="text-20",
        rounds=5,
        note="The vector of the query is known: what it costs depends on the model.",
    ),
    Case(
        "web-fetch",
        "A page of 40 kB, fetched and converted to Markdown 30 times",
        (
            Way(
                "floor",
                "floor: aiohttp, selectolax, html-to-markdown",
                "portable_tools",
                task={"program": "fetch-bare"},
            ),
            Way("fetch", "**`WebFetch`**, without its cache", "portable_tools", task={"program": "fetch-ours"}),
        ),
        (
            Metric("cpu", "CPU ms per page", "cpu_s", 1e3 / 30, has_ratio=True),
            Metric("wall", "wall ms per page", "wall_s", 1e3 / 30),
        ),
        "program",
        payload="text-20",
        rounds=5,
    ),
    Case(
        "evidence",
        "An answer with ten citations, each checked against a page of 18 to 35 kB",
        (Way("check", "**ten citations**", "portable_tools", task={"program": "check-citations"}),),
        (Metric("cpu", "CPU ms per answer", "cpu_s", 1e3), Metric("wall", "wall ms per answer", "wall_s", 1e3)),
        "program",
        payload="text-20",
        rounds=9,
        note="Pages are read beforehand: fetching and converting them is the case above.",
    ),
    Case(
        "sandbox",
        "A container for code: the bare interpreter, a cold start, a warm cell, 20 at once",
        (
            Way("bare", "the bare interpreter, `print(1)`", "sandboxes", task={"program": "sandbox-bare"}),
            Way("cold", "**container**, started, `print(1)`", "sandboxes", task={"program": "sandbox-cold"}),
            Way("warm", "**cell** in a warm container", "sandboxes", task={"program": "sandbox-warm", "cells": 200}),
            Way("many", "**20 containers** at once", "sandboxes", task={"program": "sandbox-many", "containers": 20}),
        ),
        (WALL_MS, Metric("resident", "peak MB of one, inside", "resident_mb")),
        "program",
        payload="text-20",
        rounds=9,
        note="Isolated by bubblewrap. The interpreter inside starts without `site`, as the bare one here does.",
    ),
)
