"""The floor: aiohttp's bytes, split into events, each decoded by msgspec into a tagged struct. Nothing is kept."""

from collections.abc import Callable
from functools import cache
from typing import Any

import aiohttp
import msgspec

from bench.turns import turns
from bench.ways.weather import WEATHER, get_weather

Take = Callable[[str], object]
JSON = {"Content-Type": "application/json"}

# As in sidestream.wire.http, which says why: without it the floor is lower in one process than in the next.
bytearray(512 * 1024)


class Tagged(msgspec.Struct, tag_field="type"):
    """One event of a stream."""


def _kind(name: str, **fields: Any) -> type:
    return msgspec.defstruct(name.replace(".", "_"), list(fields.items()), bases=(Tagged,), tag=name)


_ITEM = {"item_id": str, "output_index": int}
_TextDelta = _kind("response.output_text.delta", **_ITEM, content_index=int, delta=str)
_ItemDone = _kind("response.output_item.done", output_index=int, item=dict[str, Any])
_RESPONSES = msgspec.json.Decoder(
    _TextDelta
    | _ItemDone
    | _kind("response.output_item.added", output_index=int, item=dict[str, Any])
    | _kind("response.created", response=dict[str, Any])
    | _kind("response.in_progress", response=dict[str, Any])
    | _kind("response.completed", response=dict[str, Any])
    | _kind("response.content_part.added", **_ITEM, part=dict[str, Any])
    | _kind("response.content_part.done", **_ITEM, part=dict[str, Any])
    | _kind("response.output_text.done", **_ITEM, text=str)
    | _kind("response.output_text.annotation.added", **_ITEM, annotation=dict[str, Any])
    | _kind("response.reasoning_summary_part.added", **_ITEM, part=dict[str, Any])
    | _kind("response.reasoning_summary_part.done", **_ITEM, part=dict[str, Any])
    | _kind("response.reasoning_summary_text.delta", **_ITEM, summary_index=int, delta=str)
    | _kind("response.reasoning_summary_text.done", **_ITEM, summary_index=int, text=str)
    | _kind("response.function_call_arguments.delta", **_ITEM, delta=str)
    | _kind("response.function_call_arguments.done", **_ITEM, arguments=str)
    | _kind("response.mcp_call_arguments.delta", **_ITEM, delta=str)
    | _kind("response.mcp_call_arguments.done", **_ITEM, arguments=str)
    | _kind("response.code_interpreter_call_code.delta", **_ITEM, delta=str)
    | _kind("response.code_interpreter_call_code.done", **_ITEM, code=str)
    | _kind("response.image_generation_call.partial_image", **_ITEM, partial_image_b64=str)
    | _kind("response.web_search_call.in_progress", **_ITEM)
    | _kind("response.web_search_call.searching", **_ITEM)
    | _kind("response.web_search_call.completed", **_ITEM)
    | _kind("response.file_search_call.in_progress", **_ITEM)
    | _kind("response.file_search_call.searching", **_ITEM)
    | _kind("response.file_search_call.completed", **_ITEM)
    | _kind("response.code_interpreter_call.in_progress", **_ITEM)
    | _kind("response.code_interpreter_call.interpreting", **_ITEM)
    | _kind("response.code_interpreter_call.completed", **_ITEM)
    | _kind("response.image_generation_call.in_progress", **_ITEM)
    | _kind("response.image_generation_call.generating", **_ITEM)
    | _kind("response.image_generation_call.completed", **_ITEM)
    | _kind("response.mcp_list_tools.in_progress", **_ITEM)
    | _kind("response.mcp_list_tools.completed", **_ITEM)
    | _kind("response.mcp_call.in_progress", **_ITEM)
    | _kind("response.mcp_call.completed", **_ITEM)
)

_Text = _kind("text_delta", text=str)
_BlockDelta = _kind(
    "content_block_delta",
    index=int,
    delta=_Text
    | _kind("thinking_delta", thinking=str)
    | _kind("signature_delta", signature=str)
    | _kind("input_json_delta", partial_json=str)
    | _kind("citations_delta", citation=dict[str, Any]),
)
_MESSAGES = msgspec.json.Decoder(
    _BlockDelta
    | _kind("message_start", message=dict[str, Any])
    | _kind("content_block_start", index=int, content_block=dict[str, Any])
    | _kind("content_block_stop", index=int)
    | _kind("message_delta", delta=dict[str, Any], usage=dict[str, Any])
    | _kind("message_stop")
)


class _Part(msgspec.Struct):
    text: str = ""
    thought: bool = False
    inlineData: dict[str, Any] | None = None
    executableCode: dict[str, Any] | None = None
    codeExecutionResult: dict[str, Any] | None = None


class _Content(msgspec.Struct):
    parts: list[_Part] = []


class _Candidate(msgspec.Struct):
    content: _Content
    finishReason: str | None = None
    groundingMetadata: dict[str, Any] | None = None


class _Chunk(msgspec.Struct):
    candidates: list[_Candidate]
    usageMetadata: dict[str, Any] | None = None


_GENERATE = msgspec.json.Decoder(_Chunk)


class _ChatDelta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    annotations: list[dict[str, Any]] | None = None


class _Choice(msgspec.Struct):
    delta: _ChatDelta
    finish_reason: str | None = None


class _Completion(msgspec.Struct):
    choices: list[_Choice]
    usage: dict[str, Any] | None = None


_CHAT = msgspec.json.Decoder(_Completion)

_session: aiohttp.ClientSession | None = None


async def session() -> aiohttp.ClientSession:
    """One pool for the process, as the others have."""
    global _session
    if _session is None:
        connector = aiohttp.TCPConnector(limit=0)
        _session = aiohttp.ClientSession(connector=connector, read_bufsize=1 << 18, cookie_jar=aiohttp.DummyCookieJar())
    return _session


async def responses(url: str, take: Take) -> None:
    decode = _RESPONSES.decode
    async with (await session()).post(f"{url}/v1/responses", data=b"{}", headers=JSON) as response:
        rest = b""
        async for chunk in response.content.iter_any():
            *blocks, rest = (rest + chunk if rest else chunk).split(b"\n\n")
            for block in blocks:
                event = decode(block[block.find(b"\ndata: ") + 7 :])
                if type(event) is _TextDelta:
                    take(event.delta)


async def messages(url: str, take: Take) -> None:
    decode = _MESSAGES.decode
    async with (await session()).post(f"{url}/v1/messages", data=b"{}", headers=JSON) as response:
        rest = b""
        async for chunk in response.content.iter_any():
            *blocks, rest = (rest + chunk if rest else chunk).split(b"\n\n")
            for block in blocks:
                event = decode(block[block.find(b"\ndata: ") + 7 :])
                if type(event) is _BlockDelta and type(event.delta) is _Text:
                    take(event.delta.text)


async def generate(url: str, take: Take) -> None:
    decode = _GENERATE.decode
    path = "/v1beta/models/gemini-3-flash:streamGenerateContent?alt=sse"
    async with (await session()).post(url + path, data=b"{}", headers=JSON) as response:
        rest = b""
        async for chunk in response.content.iter_any():
            *blocks, rest = (rest + chunk if rest else chunk).split(b"\r\n\r\n")
            for block in blocks:
                for part in decode(block[6:]).candidates[0].content.parts:
                    if part.text and not part.thought:
                        take(part.text)


async def chat(url: str, take: Take) -> None:
    decode = _CHAT.decode
    async with (await session()).post(f"{url}/v1/chat/completions", data=b"{}", headers=JSON) as response:
        rest = b""
        async for chunk in response.content.iter_any():
            *blocks, rest = (rest + chunk if rest else chunk).split(b"\n\n")
            for block in blocks:
                if block == b"data: [DONE]":
                    continue
                for choice in decode(block[6:]).choices:
                    if choice.delta.content:
                        take(choice.delta.content)


async def loop(url: str, task: dict[str, Any]) -> dict[str, Any]:
    """Asks, runs the function that is called, asks again with its result."""
    decode, encode = _RESPONSES.decode, msgspec.json.encode
    items: list[Any] = [{"role": "user", "content": "Compare the weather."}]
    calls, text = 0, ""
    while True:
        called: list[dict[str, Any]] = []
        body = encode({"model": "gpt-5.6", "stream": True, "input": items, "tools": [WEATHER]})
        async with (await session()).post(f"{url}/v1/responses", data=body, headers=JSON) as response:
            rest = b""
            async for chunk in response.content.iter_any():
                *blocks, rest = (rest + chunk if rest else chunk).split(b"\n\n")
                for block in blocks:
                    event = decode(block[block.find(b"\ndata: ") + 7 :])
                    if type(event) is _TextDelta:
                        text += event.delta
                    elif type(event) is _ItemDone and event.item["type"] == "function_call":
                        called.append(event.item)
        if not called:
            return {"calls": calls, "chars": len(text)}
        for item in called:
            arguments = msgspec.json.decode(item["arguments"])
            result = encode(get_weather(**arguments)).decode()
            items += [item, {"type": "function_call_output", "call_id": item["call_id"], "output": result}]
            calls += 1


class _Message(msgspec.Struct):
    role: str
    content: str


@cache
def _history(count: int) -> list[_Message]:
    return [_Message(role, text) for role, text in turns(count)]


async def history(url: str, task: dict[str, Any]) -> dict[str, Any]:
    """A turn on a long history: structs encoded to the request's body."""
    messages = [*_history(task["messages"]), _Message("user", "And now?")]
    body = msgspec.json.encode({"model": "gpt-5.6", "stream": True, "input": messages})
    pieces: list[str] = []
    decode = _RESPONSES.decode
    async with (await session()).post(f"{url}/v1/responses", data=body, headers=JSON) as response:
        for block in (await response.read()).split(b"\n\n")[:-1]:
            event = decode(block[block.find(b"\ndata: ") + 7 :])
            if type(event) is _TextDelta:
                pieces.append(event.delta)
    return {"said": "".join(pieces)}


async def open_log(url: str, task: dict[str, Any]) -> dict[str, Any]:
    """The rows of a conversation and their JSON, and nothing made of them."""
    import sqlite3

    with sqlite3.connect(f"file:{task['store']}?mode=ro", uri=True) as connection:
        query = "SELECT body FROM records WHERE conversation = ? ORDER BY seq"
        decode = msgspec.json.Decoder().decode
        rows = [decode(body) for (body,) in connection.execute(query, (task["conversation"],))]
    connection.close()
    return {"records": len(rows)}


@cache
def _database() -> Any:
    import atexit
    import shutil
    import sqlite3
    import tempfile

    folder = tempfile.mkdtemp(prefix="sidestream-bench-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    connection = sqlite3.connect(f"{folder}/floor.db", isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("CREATE TABLE records (body BLOB)")
    return connection


async def commits(url: str, task: dict[str, Any]) -> dict[str, Any]:
    """What a turn of text commits: how it begins, and the text, flushed to the disk."""
    commit(b"x" * 300, "NORMAL")
    commit(b"x" * task["chars"], "FULL")
    return {"commits": 2}


def commit(body: bytes, mode: str) -> None:
    """One row, in a transaction of its own."""
    connection = _database()
    connection.execute(f"PRAGMA synchronous = {mode}")
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("INSERT INTO records VALUES (?)", (body,))
    connection.execute("COMMIT")


async def hand_overs(url: str, task: dict[str, Any]) -> dict[str, Any]:
    """To a thread and back, as often as a turn's log does it."""
    import asyncio

    for _ in range(2):
        await asyncio.get_running_loop().run_in_executor(None, int)
    return {"hand_overs": 2}


async def close() -> None:
    if _session is not None:
        await _session.close()


PLAYERS = {"bytes": {"responses": responses, "messages": messages, "generate": generate, "chat": chat}}
PROGRAMS = {"loop": loop, "history": history, "open-log": open_log, "commits": commits, "hand-overs": hand_overs}
