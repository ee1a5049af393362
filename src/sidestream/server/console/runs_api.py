"""REST API for the web UI with a tenant's runs in progress, the records of a run, and its export."""

import asyncio
import uuid
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from typing import Any

import msgspec
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from sidestream import jsontext
from sidestream.durable.engines.protocol import EngineStats, Task
from sidestream.durable.log.open_runs import last_start
from sidestream.durable.log.summaries import logged_run
from sidestream.durable.worker.service import stats_of
from sidestream.errors import SidestreamError, StoreError
from sidestream.jsontext import JsonObject, as_object, objects
from sidestream.parts import ToolCall
from sidestream.protocols.markdown import to_markdown
from sidestream.run.prompts import user_message
from sidestream.server.errors import RequestError, not_found
from sidestream.server.http.requests import (
    checked,
    is_guest,
    json_response,
    owner_of,
    query_number,
    read_json,
    server_of,
)
from sidestream.server.runs.service import RunInfo
from sidestream.server.server import Server
from sidestream.store.ids import ConversationId, owner_in
from sidestream.store.log.fold import stream_of
from sidestream.store.log.follow import Feed
from sidestream.store.log.forking import Changes
from sidestream.store.records import FORKED, ApprovalAsked, Body, Forked, Record, Row, RunStarted, open_run, unpack
from sidestream.text.redaction import REDACTED, redact


def record_json(row: Row) -> JsonObject:
    """Convert a record to JSON, with the `parts` of the stream or a `fact`.

    Blobs appear as `{"$bytes": digest}` and the like. `blobs` lists their digests, because other content could look the
    same.
    """
    shown: JsonObject = {"seq": row.seq, "time": row.time, "kind": row.kind}
    if row.blobs:
        shown["blobs"] = list(row.blobs)
    try:
        body = as_object(jsontext.loads(row.body))
    except (ValueError, RecursionError):
        return {**shown, "damaged": True}
    if body.get("type") == FORKED:  # A stored id names the tenant.
        body["conversation"] = _chat_of(str(body.get("conversation")))
    if body.get("type") != "segment":
        return {**shown, "fact": body}
    # The decoder's outcome is internal.
    parts = [{key: value for key, value in part.items() if key != "outcome"} for part in objects(body.get("parts"))]
    return {**shown, "parts": parts}


def parts_text(records: Iterable[Record]) -> tuple[str, int]:
    """Return a run's parts, one line of JSON each, and the number of secrets that were redacted."""
    return _redacted("".join(f"{part.to_json()}\n" for part in stream_of(records)))


def markdown_text(records: Iterable[Record]) -> tuple[str, int]:
    """Return a run as Markdown, and the number of secrets that were redacted."""
    return _redacted(to_markdown(records))


def _redacted(text: str) -> tuple[str, int]:
    clean = redact(text)
    return clean, clean.count(REDACTED) - text.count(REDACTED)


HERE = "this server"
FORK = "Fork: "
"""Start of a fork's title."""


async def runs_in_progress(server: Server, owner: str) -> list[JsonObject]:
    """Return the tenant's runs with their worker, start and cost. `chat` is the id in the store."""
    here = {str(entry["chat"]): entry for entry in server.runs.in_progress(owner)}
    found = [*here, *(id for id in await server.runs.execution.running(owner) if id not in here)]
    drivers = await server.runs.execution.drivers(found)
    listed: list[JsonObject] = []
    for id in found:
        entry = await _described_run(server, id)
        if entry is not None:
            driver = HERE if id in server.runs.live else drivers.get(id)
            listed.append({**entry, **here.get(id, {}), "driver": driver})
    return listed


async def _described_run(server: Server, conversation: str) -> JsonObject | None:
    rows = await server.store.read(conversation)
    try:
        run = logged_run(conversation, rows) if open_run(rows) is not None else None
    except StoreError:  # A damaged record; `logs check` reports why.
        return None
    job = run.job if run is not None else None
    if run is None or job is None:
        return None
    return {
        "id": run.id,
        "chat": conversation,
        "api": job.api,
        "model": job.agent,
        "cost": run.usage.cost if run.steps else 0.0,
        "readers": server.runs.readers.count(conversation),
        "since": run.began,
        "at": job.at if job.attempt == 0 else None,
        "forkedFrom": _forked_in(rows),
    }


def _forked_in(rows: Sequence[Row]) -> JsonObject | None:
    """Return the chat and the record that a conversation was forked from, if it was."""
    bodies = [unpack(row).body for row in rows if row.kind == FORKED]
    origin = bodies[-1] if bodies else None
    return {"chat": _chat_of(origin.conversation), "at": origin.seq} if isinstance(origin, Forked) else None


PAGE_ROWS = 2000
"""Maximum records per response. The web UI requests the rest after the last of them."""
MAX_WAIT_S = 25.0
"""Maximum seconds that a request waits for new records, below the timeout of most proxies."""

_EXPORTS: dict[str, tuple[Callable[[Sequence[Record]], tuple[str, int]], str, str]] = {
    "parts": (parts_text, "jsonl", "application/x-ndjson"),
    "markdown": (markdown_text, "md", "text/markdown"),
}
"""Writer, file extension and MIME type, by export format."""


def routes(server: Server) -> list[BaseRoute]:
    """Return the routes of this API."""
    return [
        Route("/api/engine", engine_stats),
        Route("/api/runs", list_runs),
        Route("/api/runs/{run}/stop", stop, methods=["POST"]),
        Route("/api/runs/{run}/resume", resume, methods=["POST"]),
        Route("/api/runs/{run}/fork", fork, methods=["POST"]),
        Route("/api/runs/{run}/records", records),
        Route("/api/runs/{run}/export", export),
    ]


class ForkBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of `POST /api/runs/{run}/fork`."""

    at: int
    """Sequence number of the last record to keep."""
    results: dict[str, Any] = {}
    """Other results of client tools, by call id."""
    deny: list[str] = []
    """Ids of calls to deny."""
    message: str | None = None
    """Message that the next request takes."""
    model: str | None = None
    """Agent or model from there on."""
    system: str | None = None
    """Instructions from there on, after the agent's own."""


async def list_runs(request: Request) -> Response:
    """List the tenant's runs in progress, in any process, including those without subscribers."""
    found = await runs_in_progress(server_of(request), owner_of(request))
    return json_response({"runs": [{**entry, "chat": _chat_of(entry["chat"])} for entry in found]})


async def engine_stats(request: Request) -> Response:
    """Return how many runs of all tenants are queued, executed and waiting, and whether they are executed in time.

    Guests get the numbers of their own runs.
    """
    server = server_of(request)
    if is_guest(request):
        stats, here = _counts(await runs_in_progress(server, owner_of(request)))
        return json_response({**msgspec.structs.asdict(stats), "here": here})
    try:
        stats = await stats_of(server.runs.execution.engine)
    except SidestreamError as error:
        raise RequestError(503, redact(str(error)), type="server_error", code="engine_unavailable") from None
    return json_response({**msgspec.structs.asdict(stats), "here": len(server.runs.live)})


def _counts(runs: Sequence[JsonObject]) -> tuple[EngineStats, int]:
    """Return the statistics of these runs, and how many of them this process executes."""
    running = sum(run["driver"] is not None for run in runs)
    waiting = sum(run["driver"] is None and run["at"] is not None for run in runs)
    stats = EngineStats(queued=len(runs) - running - waiting, running=running, waiting=waiting)
    return stats, sum(run["driver"] == HERE for run in runs)


async def stop(request: Request) -> Response:
    """Stop a run, whichever process executes it."""
    server = server_of(request)
    info = await _run(request)
    return json_response({"stopped": info.is_live and await server.runs.stop(info.conversation)})


async def resume(request: Request) -> Response:
    """Resume a stopped or failed run, or enqueue a run in progress that no worker executes."""
    server = server_of(request)
    info = await _run(request)
    rows = await server.store.read(info.conversation)
    last = last_start(rows)
    if last is None or last.run != info.id or info.job is None:
        raise RequestError(409, "only the last run of a conversation can be resumed", type="conflict", code="stale")
    if info.is_live:
        queue = server.runs.execution.queue_of(info.job)
        await server.runs.execution.enqueue(Task(conversation=info.conversation, position=rows[-1].seq, queue=queue))
    else:
        job = msgspec.structs.replace(info.job, attempt=1)
        await server.runs.resume(server.agent(job.agent), info.conversation, (), job)
    return json_response({"id": info.id, "resumed": True}, 202)


async def fork(request: Request) -> Response:
    """Copy a run up to the record `at` to a new chat, with facts changed there, and continue it.

    The original is only read. `run` is null if the turn is complete at that record.
    """
    server, owner = server_of(request), owner_of(request)
    body = checked(await read_json(request), ForkBody)
    info = await _run(request)
    if info.job is None or not info.job.is_resumable:
        message = "the run's log does not hold all settings to continue it with"
        raise RequestError(409, message, type="conflict", code="not_resumable")
    rows = await _rows(server, info, 0)
    kept = [row for row in rows if row.seq <= body.at]
    if not kept or kept[-1].seq != body.at:
        last = rows[-1].seq if rows else 0
        raise RequestError(400, f"at must be a record of the run, which ends at record {last}", param="at")
    job = msgspec.structs.replace(info.job, api="chat", details={}, attempt=1, at=None, has_expired=False)
    tools = {part.id: part.name for part in stream_of(map(unpack, kept)) if isinstance(part, ToolCall)}
    asked = {record.approval.call_id for record in _bodies(kept) if isinstance(record, ApprovalAsked)}
    if body.model is not None:
        job = msgspec.structs.replace(job, agent=body.model)
    if body.system is not None:
        job = msgspec.structs.replace(job, system=body.system)
    agent = server.agent(job.agent)
    for judged in {job.agent: job, info.job.agent: info.job}.values():
        server.runs.policy.check_results(judged, [tools.get(id, id) for id in body.results], "results")
        # A call that asked for approval may be denied by anyone who may decide on it.
        server.runs.policy.check_results(judged, [tools.get(id, id) for id in body.deny if id not in asked], "deny")
    changes = Changes(
        results=body.results,
        denied=tuple(body.deny),
        message=None if body.message is None else user_message(body.message),
        model=body.model,
        system=body.system,
    )
    id = str(ConversationId(owner, f"chat_{uuid.uuid4().hex}"))
    run = await server.runs.fork(agent, info.conversation, id, body.at, changes, job)
    if title := await server.store.title_of(info.conversation):
        await server.titles.rename([id], f"{FORK}{title.removeprefix(FORK)}")
    return json_response({"chat": _chat_of(id), "run": run}, 201)


def _bodies(rows: Iterable[Row]) -> Iterable[Body]:
    return (unpack(row).body for row in rows)


async def records(request: Request) -> Response:
    """Return the records of a run after a sequence number, waiting up to `wait` seconds for the first."""
    query = request.query_params
    after, wait_s = query_number(query, "after") or 0, min(query_number(query, "wait") or 0, MAX_WAIT_S)
    server = server_of(request)
    info = await _run(request)
    with server.store.subscribed(info.conversation) as feed:
        rows = await _rows(server, info, after)
        if not rows and info.is_live and wait_s:
            await _news(server, info, feed, after, wait_s)
            # Read the run before its rows, so that a run ending in between is requested once more.
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
    """Export a run as its parts or as Markdown. Secrets are redacted, and a header says how many."""
    name = request.query_params.get("format", "parts")
    if name not in _EXPORTS:
        raise RequestError(400, f"format must be one of {', '.join(_EXPORTS)}, not {name!r:.80}", param="format")
    server = server_of(request)
    info = await _run(request)
    found = [await server.store.record(row, load=True) for row in await _rows(server, info, 0)]
    write, extension, media_type = _EXPORTS[name]
    text, redacted = await asyncio.to_thread(write, found)
    headers = {
        "Content-Disposition": f'attachment; filename="{info.id}.{extension}"',
        "X-Sidestream-Redacted": str(redacted),
    }
    return Response(text, headers=headers, media_type=media_type)


async def _run(request: Request) -> RunInfo:
    """Return the run that a request names. Raises RequestError(404) if there is none."""
    id = request.path_params["run"]
    if not id.isprintable():  # PostgreSQL refuses strings with a NUL.
        raise not_found("run", id)
    return await server_of(request).runs.find(owner_of(request), id)


async def _news(server: Server, info: RunInfo, feed: Feed, after: int, wait_s: float) -> None:
    """Wait for new records of the conversation, whichever process writes them."""
    is_here = info.conversation in server.runs.live
    try:
        async with asyncio.timeout(wait_s):
            async with nullcontext() if is_here else server.store.relayed(info.conversation, after):
                await feed.take()
    except TimeoutError:
        pass


async def _rows(server: Server, info: RunInfo, after: int) -> list[Row]:
    """Return the rows of the run, including the message before its start that it answers."""
    before = info.forked is not None and info.forked.seq < info.start  # Between that message and the start.
    rows = await server.store.read(info.conversation, max(after, info.start - (3 if before else 2)))
    return [row for row in rows if row.run == info.id or (before and row.seq < info.start)]


async def _described(server: Server, info: RunInfo, is_live: bool) -> JsonObject:
    (first,) = (await server.store.read(info.conversation, info.start - 1))[:1]
    body = unpack(first).body
    return {
        "id": info.id,
        "chat": _chat_of(info.conversation),
        "model": body.model if isinstance(body, RunStarted) else None,
        "api": info.job.api if info.job else None,
        "live": is_live,
        "changeable": _changeable(server, info),
        "forkedFrom": None if info.forked is None else await _origin(server, info.conversation, info.forked),
    }


def _changeable(server: Server, info: RunInfo) -> list[str] | bool | None:
    """Return the tools whose results a fork of the run may change. None means that the run cannot be forked."""
    if info.job is None or not info.job.is_resumable:
        return None
    allowed = server.runs.policy.results(info.job.agent)
    own = [str(function["name"]) for function in info.job.functions]
    return allowed if allowed is True else [*(allowed or ()), *own]


async def _origin(server: Server, conversation: str, row: Row) -> JsonObject | None:
    """Return where a run was forked from. Its `run` is null if that was deleted."""
    body = unpack(row).body
    assert isinstance(body, Forked)
    is_own = owner_in(body.conversation) == owner_in(conversation)
    found = (await server.store.read(body.conversation, body.seq - 1))[:1] if is_own else []
    origin = {"chat": _chat_of(body.conversation), "run": found[0].run if found else None}
    return {**origin, "at": body.seq, "changes": body.changes}


def _chat_of(conversation: str) -> str:
    return ConversationId.parse(conversation).chat
