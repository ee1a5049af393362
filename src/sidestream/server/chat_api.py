"""`/api/chat`: the AI SDK's UI message stream, for `useChat` as it is and for our own page."""

from collections.abc import AsyncGenerator, Container

from msgspec import Struct
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Route, WebSocketRoute

from sidestream.jsontext import JsonObject
from sidestream.messages.message import ChatMessage
from sidestream.server.chat_input import STEERING, Answer, ChatBody, ReadBlob, answers_in, settings_in, user_message
from sidestream.server.chat_stream import sse_frames, turn_chunks
from sidestream.server.chats import (
    MESSAGE_ID,
    Chat,
    Fork,
    Leaf,
    Snapshot,
    check_chat_id,
    read_chat,
    snapshot_of,
)
from sidestream.server.core import Server
from sidestream.server.errors import RequestError, not_found
from sidestream.server.jobs import Job
from sidestream.server.requests import checked, json_response, owner_of, read_json, server_of
from sidestream.store.log import LogState
from sidestream.store.records import MessageAdded, unpack
from sidestream.tools.approvals import Decision, PendingApproval
from sidestream.ui.ui_message import UI_MESSAGE_HEADERS, Chunk


class Turn(Struct, frozen=True, kw_only=True):
    """A turn to be streamed: all of it, or what follows a record."""

    conversation: str
    """In the store."""
    turn_start: int
    run_start: int
    after: int = 0
    leaf: int = 1

    def chunks(self, server: Server, features: Container[str]) -> AsyncGenerator[list[Chunk]]:
        """Its chunks, for a client with these features."""
        has_steering = STEERING in features
        return turn_chunks(
            server, self.conversation, self.turn_start, self.run_start, self.after, steering=has_steering
        )


def routes(server: Server) -> list[BaseRoute]:
    """The routes of chats."""
    from sidestream.server.chat_socket import chat_socket

    return [
        Route("/api/chat", post_chat, methods=["POST"]),
        WebSocketRoute("/api/chat/ws", chat_socket),
        Route("/api/chat/{id}", get_chat, methods=["GET"]),
        Route("/api/chat/{id}", delete_chat, methods=["DELETE"]),
        Route("/api/chat/{id}/stream", get_stream, methods=["GET"]),
        Route("/api/chat/{id}/stop", stop, methods=["POST"]),
        Route("/api/chat/{id}/steer", steer, methods=["POST"]),
    ]


async def post_chat(request: Request) -> Response:
    """A new message, an edited or repeated one, or decisions; responds with the stream of the turn."""
    body = checked(await read_json(request), ChatBody)
    turn = await begin_turn(server_of(request), owner_of(request), body)
    return _streamed(server_of(request), turn, body.features)


async def get_stream(request: Request) -> Response:
    """The stream of the turn in progress: all of it, or with `after` what follows that record. 204 without one."""
    server = server_of(request)
    chat = await read_chat(server, owner_of(request), request.path_params["id"])
    after = _number(request, "after")
    leaf_number = _number(request, "leaf")
    if not chat.exists:
        return Response(status_code=204)
    turn = open_turn(chat, chat.leaf(leaf_number), after)
    if turn is None:
        return Response(status_code=204)
    return _streamed(server, turn, request.query_params.get("features", "").split(","))


async def get_chat(request: Request) -> Response:
    """The messages of a chat, and the number of the last record that they include."""
    chat = await read_chat(server_of(request), owner_of(request), request.path_params["id"])
    leaf = chat.leaf(_number(request, "leaf"))
    snapshot = await snapshot_of(chat, leaf)
    job = chat.last_job(leaf)
    return json_response(
        {
            "id": chat.id,
            "title": _title(snapshot),
            "model": None if job is None else job.agent,
            "seq": leaf.head,
            "leaf": leaf.number,
            "leaves": [_leaf_json(leaf) for leaf in chat.leaves.values()],
            "messages": snapshot.messages,
            "run": snapshot.run,
        }
    )


async def delete_chat(request: Request) -> Response:
    """Deletes a chat with all its branches; its runs are stopped first."""
    server = server_of(request)
    chat = await read_chat(server, owner_of(request), request.path_params["id"])
    if not chat.exists:
        raise not_found("chat", chat.id)
    for leaf in chat.leaves.values():
        await server.runs.stop(leaf.id)
        await server.store.delete(leaf.id)
    await server.store.collect()
    return Response(status_code=204)


async def stop(request: Request) -> Response:
    """Stops the run in progress."""
    leaf = await _leaf(request)
    return json_response({"stopped": await server_of(request).runs.stop(leaf.id)})


async def steer(request: Request) -> Response:
    """Passes a message to the run in progress; the stream reports what becomes of it as `data-steer`."""
    leaf = await _leaf(request)
    text = (await read_json(request)).get("text")
    if not isinstance(text, str) or not text.strip():
        raise RequestError(400, "send the text of the message", param="text")
    return json_response({"id": await server_of(request).runs.steer(leaf.id, text)})


async def begin_turn(server: Server, owner: str, body: ChatBody) -> Turn:
    """Does what a body wants, and says which turn to stream. Raises RequestError."""
    check_chat_id(body.id)
    chat = await read_chat(server, owner, body.id)
    if answers := answers_in(body):
        return await _decide(chat, body, answers)
    if chat.exists and body.trigger == "regenerate-message":
        return await _repeat(chat, body)
    if body.last.get("role") == "assistant":
        raise RequestError(409, "no call waits for a decision", type="conflict", code="nothing_waits")
    message = await user_message(body, _blob_reader(chat))
    if not chat.exists:
        return await _start(chat, body, message, 1)
    leaf = chat.leaf(body.leaf)
    if body.message_id is not None:
        return await _fork(chat, body, leaf, body.message_id, message)
    if (again := _sent_before(leaf, message)) is not None:
        return again
    return await _start(chat, body, message, leaf.number)


def open_turn(chat: Chat, leaf: Leaf, after: int | None) -> Turn | None:
    """The turn that a reader who has the records up to `after` is to get; None if there is nothing to read."""
    if leaf.id not in chat.server.runs.live and (after is None or after >= leaf.head):
        return None
    if after is not None and not leaf.turn_start <= after <= leaf.head:
        raise RequestError(409, "the chat has moved on: read it again", type="conflict", param="after", code="stale")
    return Turn(
        conversation=leaf.id,
        turn_start=leaf.turn_start,
        run_start=leaf.run_start,
        after=after or 0,
        leaf=leaf.number,
    )


async def _start(chat: Chat, body: ChatBody, message: ChatMessage, leaf: int, fork: Fork | None = None) -> Turn:
    """Starts a run in a branch."""
    server = chat.server
    job = _job(chat, body, leaf, fork)
    beginning: tuple[ChatMessage, ...] = ()
    if fork is not None:
        beginning = (await chat.state(chat.leaves[fork.leaf], fork.before)).messages
    info = await server.runs.start(server.agent(job.agent), chat.stored_id(leaf), message, job, beginning=beginning)
    return Turn(conversation=info.conversation, turn_start=info.start - 1, run_start=info.start, leaf=leaf)


async def _repeat(chat: Chat, body: ChatBody) -> Turn:
    """The question is asked again, in a branch of its own."""
    leaf = chat.leaf(body.leaf)
    snapshot = await snapshot_of(chat, leaf)
    users = [message["id"] for message in snapshot.messages if message["role"] == "user"]
    target = body.message_id or (users[-1] if users else "")
    log, seq, _ = _place(snapshot, target)
    row = next(row for row in log.rows if row.seq == seq)
    record = await chat.server.store.record(row, load=True)
    assert isinstance(record.body, MessageAdded)
    return await _branch(chat, body, snapshot, target, record.body.message)


async def _fork(chat: Chat, body: ChatBody, leaf: Leaf, target: str, message: ChatMessage) -> Turn:
    """The question is asked in other words, in a branch of its own."""
    return await _branch(chat, body, await snapshot_of(chat, leaf), target, message)


async def _branch(chat: Chat, body: ChatBody, snapshot: Snapshot, target: str, message: ChatMessage) -> Turn:
    log, seq, index = _place(snapshot, target)
    if snapshot.messages[index]["role"] == "assistant":
        index -= 1
    return await _start(chat, body, message, max(chat.leaves) + 1, Fork(leaf=log.number, before=seq, index=index))


def _place(snapshot: Snapshot, target: str) -> tuple[Leaf, int, int]:
    if (place := snapshot.places.get(target)) is None or not place[1]:
        raise not_found("message", target, param="messageId")
    return place


def _sent_before(leaf: Leaf, message: ChatMessage) -> Turn | None:
    """The last turn, if this message opened it: a client that lost the response sends it again."""
    id = message.metadata.get(MESSAGE_ID)
    if id is None:
        return None
    row = next(row for row in leaf.rows if row.seq == leaf.turn_start)
    body = unpack(row).body
    if not isinstance(body, MessageAdded) or body.message.metadata.get(MESSAGE_ID) != id:
        return None
    return Turn(conversation=leaf.id, turn_start=leaf.turn_start, run_start=leaf.run_start, leaf=leaf.number)


async def _decide(chat: Chat, body: ChatBody, answers: list[Answer]) -> Turn:
    """Resumes a turn that waits, with decisions on what the server holds; nothing of the posted history counts."""
    leaf = chat.leaf(body.leaf)
    job = chat.last_job(leaf)
    state = await chat.state(leaf)
    waiting = _pending(state)
    found = [answer for answer in answers if answer.approval_id in waiting]
    if not found or job is None:
        raise RequestError(
            409,
            "this call waits for no decision; it may have been decided already",
            type="conflict",
            param="approvalId",
            code="nothing_waits",
        )
    decisions = [_decision(waiting[answer.approval_id], answer) for answer in found]
    if missing := waiting.keys() - {answer.approval_id for answer in found}:
        raise RequestError(
            409,
            f"decide on all pending calls together; missing: {', '.join(sorted(missing))}",
            type="conflict",
            param="decisions",
            code="undecided",
        )
    server = chat.server
    info = await server.runs.resume(server.agent(job.agent), leaf.id, decisions, replace(job, attempt=1))
    return Turn(
        conversation=leaf.id,
        turn_start=leaf.turn_start,
        run_start=info.start,
        after=info.start - 1,
        leaf=leaf.number,
    )


def _pending(state: LogState) -> dict[str, PendingApproval]:
    if state.status != "waiting" or state.run_state is None:
        return {}
    return {entry.approval_id: entry for entry in state.run_state.approvals}


def _decision(entry: PendingApproval, answer: Answer) -> Decision:
    if answer.digest is not None and answer.digest != entry.digest:
        raise RequestError(403, "the arguments are not those that were shown", param="digest", code="approval_refused")
    return entry.approve() if answer.approved else entry.deny(answer.reason)


def _job(chat: Chat, body: ChatBody, leaf: int, fork: Fork | None) -> Job:
    """What the run needs. A chat keeps its model until a request names another."""
    parent = chat.leaves.get(leaf if fork is None else fork.leaf)
    last = chat.last_job(parent) if parent is not None else None
    name = body.model or (last.agent if last is not None else chat.server.settings.default)
    return Job(
        agent=name,
        settings=settings_in(body),
        tools=None if body.tools is None else tuple(body.tools),
        details={} if fork is None else {"fork": {"leaf": fork.leaf, "before": fork.before, "index": fork.index}},
    )


def _blob_reader(chat: Chat) -> ReadBlob:
    async def read(digest: str) -> bytes | None:
        known = any(digest in row.blobs for leaf in chat.leaves.values() for row in leaf.rows)
        return await chat.server.store.blob(digest) if known else None

    return read


async def _leaf(request: Request) -> Leaf:
    chat = await read_chat(server_of(request), owner_of(request), request.path_params["id"])
    return chat.leaf(_number(request, "leaf"))


def _streamed(server: Server, turn: Turn, features: Container[str]) -> Response:
    headers = {**UI_MESSAGE_HEADERS, "X-Sidestream-Leaf": str(turn.leaf)}
    return StreamingResponse(sse_frames(turn.chunks(server, features)), headers=headers)


def _number(request: Request, name: str) -> int | None:
    text = request.query_params.get(name)
    if text is None:
        return None
    if not text.isdecimal() or len(text) > 15:
        raise RequestError(400, f"{name} is a number", param=name)
    return int(text)


def _title(snapshot: Snapshot) -> str:
    for message in snapshot.messages:
        if message["role"] == "user":
            text = " ".join(str(part.get("text", "")) for part in message["parts"] if part["type"] == "text")
            return " ".join(text.split())[:80]
    return ""


def _leaf_json(leaf: Leaf) -> JsonObject:
    fork = leaf.fork
    return {
        "leaf": leaf.number,
        "parent": fork.leaf if fork is not None else None,
        "forkedAt": fork.index if fork is not None else None,
        "updated": leaf.updated,
    }
