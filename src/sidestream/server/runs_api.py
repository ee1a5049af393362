"""REST of the page: the records of a run, as they are or as they come, and the run as a file."""

import asyncio
import re
from collections.abc import Callable, Sequence
from contextlib import nullcontext

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from sidestream.jsontext import JsonObject
from sidestream.server.core import Server
from sidestream.server.errors import RequestError
from sidestream.server.live import RunInfo
from sidestream.server.log import Feed
from sidestream.server.requests import json_response, owner_of, server_of
from sidestream.server.run_records import markdown_text, parts_text, record_json
from sidestream.store.records import Record, Row, RunStarted, unpack

_LEAF = re.compile(r"~\d+$")
"""What the id of a branch ends with."""
PAGE_ROWS = 2000
"""Records in one response; the page requests the rest after the last of them."""
MAX_WAIT_S = 25.0
"""How long a request may wait for new records: less than proxies allow."""

_EXPORTS: dict[str, tuple[Callable[[Sequence[Record]], tuple[str, int]], str, str]] = {
    "parts": (parts_text, "jsonl", "application/x-ndjson"),
    "markdown": (markdown_text, "md", "text/markdown"),
}
"""Format → how to make it, the extension of its file, its type."""


def routes(server: Server) -> list[BaseRoute]:
    """The routes of this module."""
    return [
        Route("/api/runs", list_runs),
        Route("/api/runs/{run}/records", records),
        Route("/api/runs/{run}/export", export),
    ]


async def list_runs(request: Request) -> Response:
    """The owner's runs in progress, with what they have cost so far: those that nobody reads, too."""
    runs, owner = server_of(request).runs, owner_of(request)
    listed = [{**entry, "chat": _chat_of(entry["chat"])} for entry in runs.in_progress(owner)]
    return json_response({"runs": listed})


async def records(request: Request) -> Response:
    """The records of a run after a number; with `wait`, once there are any, or after so many seconds."""
    after, wait_s = _number(request, "after"), min(_number(request, "wait"), MAX_WAIT_S)
    server = server_of(request)
    info = await server.runs.find(owner_of(request), request.path_params["run"])
    with server.store.subscribed(info.conversation) as feed:
        rows = await _rows(server, info, after)
        if not rows and info.is_live and wait_s:
            await _news(server, info, feed, after, wait_s)
            # Before its rows: a run that ends meanwhile is requested once more.
            info = await server.runs.find(owner_of(request), info.id)
            rows = await _rows(server, info, after)
    page, is_live = rows[:PAGE_ROWS], info.is_live
    return json_response(
        {
            "run": await _described(server, info, is_live),
            "records": [record_json(row) for row in page],
            "done": not is_live and len(page) == len(rows),
        }
    )


async def export(request: Request) -> Response:
    """The run as a file: its parts, or a text for people. Secrets are replaced, and a header says how many."""
    name = request.query_params.get("format", "parts")
    if name not in _EXPORTS:
        raise RequestError(400, f"no format {name!r}: there are {', '.join(_EXPORTS)}", param="format")
    server = server_of(request)
    info = await server.runs.find(owner_of(request), request.path_params["run"])
    found = [await server.store.record(row, load=True) for row in await _rows(server, info, 0)]
    write, extension, media_type = _EXPORTS[name]
    text, redacted = await asyncio.to_thread(write, found)
    headers = {
        "Content-Disposition": f'attachment; filename="{info.id}.{extension}"',
        "X-Sidestream-Redacted": str(redacted),
    }
    return Response(text, headers=headers, media_type=media_type)


async def _news(server: Server, info: RunInfo, feed: Feed, after: int, wait_s: float) -> None:
    """Waits for new records of the conversation, whoever writes them."""
    is_here = info.conversation in server.runs.live
    try:
        async with asyncio.timeout(wait_s):
            async with nullcontext() if is_here else server.store.relayed(info.conversation, after):
                await feed.take()
    except TimeoutError:
        pass


async def _rows(server: Server, info: RunInfo, after: int) -> list[Row]:
    """The rows of the run. The message that it answers stands before its beginning."""
    rows = await server.store.read(info.conversation, max(after, info.start - 2))
    return [row for row in rows if row.run == info.id]


async def _described(server: Server, info: RunInfo, is_live: bool) -> JsonObject:
    (first,) = (await server.store.read(info.conversation, info.start - 1))[:1]
    body = unpack(first).body
    return {
        "id": info.id,
        "chat": _chat_of(info.conversation),
        "model": body.model if isinstance(body, RunStarted) else None,
        "api": info.job.api if info.job else None,
        "live": is_live,
    }


def _chat_of(conversation: str) -> str:
    return _LEAF.sub("", conversation.partition("/")[2])


def _number(request: Request, name: str) -> int:
    text = request.query_params.get(name, "0")
    if not text.isdecimal() or len(text) > 15:
        raise RequestError(400, f"{name} must be a number from 0 on", param=name)
    return int(text)
