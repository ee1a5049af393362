"""Handles chat requests and determines which turn each of them streams."""

from collections.abc import AsyncGenerator, Container, Sequence

from msgspec import Struct
from msgspec.structs import replace

from sidestream.durable.log.jobs import Job
from sidestream.jsontext import JsonObject
from sidestream.messages.message import ChatMessage
from sidestream.protocols.ai_sdk.content import UrlOf
from sidestream.protocols.ai_sdk.message import Chunk, UIMessageEncoder
from sidestream.server.chat import branches
from sidestream.server.chat.input import (
    STEERING,
    ChatBody,
    ReadBlob,
    answers_in,
    functions_in,
    settings_in,
    user_message,
)
from sidestream.server.chat.stream import EncoderOf, turn_chunks
from sidestream.server.errors import RequestError, not_found
from sidestream.server.http.requests import AT_HEADER
from sidestream.server.request_policy import own_tools
from sidestream.server.runs.decisions import Answer, RefusedDecisionError, decisions_on
from sidestream.server.server import Server
from sidestream.server.settings import offers_index
from sidestream.store.log.fold import LogState
from sidestream.store.records import MessageAdded, unpack
from sidestream.tools.approvals import PendingApproval
from sidestream.tools.grants import Grant
from sidestream.tools.server_side import INDEX, FileSearch


class StreamedTurn(Struct, frozen=True, kw_only=True):
    """A turn to stream, completely or after a record."""

    conversation: str
    """Conversation id in the store."""
    turn_start: int
    run_start: int
    run: str
    after: int = 0
    leaf: int = 1

    def chunks(self, server: Server, features: Container[str], link: branches.Link) -> AsyncGenerator[list[Chunk]]:
        """Yield the turn as UI message stream chunks, for a client with these features."""
        steering, approval_s = STEERING in features, server.settings.approval_s

        def encoder_of(id: str, run: str, url_of: UrlOf) -> UIMessageEncoder:
            return UIMessageEncoder(id, run=run, url_of=url_of, steering=steering, approval_s=approval_s)

        return self.encoded(server, encoder_of, link)

    def encoded(self, server: Server, encoder_of: EncoderOf, link: branches.Link) -> AsyncGenerator[list[Chunk]]:
        """Yield the chunks that an encoder makes of the turn."""
        return turn_chunks(server, self.conversation, self.turn_start, self.run_start, encoder_of, link, self.after)


async def begin_turn(
    server: Server,
    owner: str,
    body: ChatBody,
    answers: list[Answer] | None = None,
    *,
    needs_digest: bool = True,
    at: float | None = None,
) -> StreamedTurn:
    """Handle a chat request and return the turn to stream.

    `answers` default to those of the body; `needs_digest` says whether they must include the digest of the arguments.
    With `at`, in seconds since 1970, the message is sent to the model at that time. Raises RequestError if the request
    is invalid.
    """
    branches.check_chat_id(body.id)
    chat = await branches.read_chat(server, owner, body.id)
    if answers := answers_in(body) if answers is None else answers:
        if at is not None:
            raise RequestError(400, f"decisions cannot be scheduled; leave out {AT_HEADER}", param=AT_HEADER)
        return await _decide(chat, body, answers, needs_digest=needs_digest)
    if chat.exists and body.trigger == "regenerate-message":
        return await _repeat(chat, body, at)
    if body.last.get("role") == "assistant":
        raise RequestError(409, "no call is waiting for a decision", type="conflict", code="nothing_waits")
    message = await user_message(body, _blob_reader(chat))
    if not chat.exists:
        return await _start(chat, body, message, 1, at=at)
    leaf = chat.leaf(body.leaf)
    if body.message_id is not None:
        return await _branch(chat, body, await branches.snapshot_of(chat, leaf), body.message_id, message, at)
    if (again := _sent_before(leaf, message)) is not None:
        return again
    return await _start(chat, body, message, leaf.number, at=at)


def open_turn(chat: branches.StoredChat, leaf: branches.Leaf, after: int | None) -> StreamedTurn | None:
    """Return the turn for a subscriber that has the records up to `after`, or None if it has missed nothing.

    Raises RequestError if `after` is not in the last turn.
    """
    if not leaf.is_live and (after is None or after >= leaf.head):
        return None
    if after is not None and not leaf.turn_start <= after <= leaf.head:
        raise RequestError(409, "the chat has changed; load it again", type="conflict", param="after", code="stale")
    return StreamedTurn(
        conversation=leaf.id,
        turn_start=leaf.turn_start,
        run_start=leaf.run_start,
        run=leaf.run,
        after=after or 0,
        leaf=leaf.number,
    )


async def _start(
    chat: branches.StoredChat,
    body: ChatBody,
    message: ChatMessage,
    leaf: int,
    fork: branches.Fork | None = None,
    at: float | None = None,
) -> StreamedTurn:
    """Start a run in a branch."""
    server = chat.server
    job = _job(chat, body, leaf, fork)
    beginning: tuple[ChatMessage, ...] = ()
    grants: tuple[Grant, ...] = ()
    if fork is not None:
        parent = chat.leaves[fork.leaf]
        beginning = (await chat.state(parent, fork.before)).messages
        grants = chat.grants(parent)  # Approvals apply to the conversation, whichever branch it takes.
    agent, id = server.agent(job.agent), chat.stored_id(leaf)
    info = await server.runs.start(agent, id, message, job, beginning=beginning, grants=grants, at=at)
    if fork is not None:
        await server.titles.carry_over(chat.leaves[fork.leaf].rows, chat.stored_id(fork.leaf), id)
    elif not chat.exists:
        server.titles.begin(id, message.text)
    return StreamedTurn(
        conversation=info.conversation, turn_start=info.start - 1, run_start=info.start, run=info.id, leaf=leaf
    )


async def _repeat(chat: branches.StoredChat, body: ChatBody, at: float | None) -> StreamedTurn:
    """Ask a question again, in a new branch."""
    leaf = chat.leaf(body.leaf)
    snapshot = await branches.snapshot_of(chat, leaf)
    users = [message["id"] for message in snapshot.messages if message["role"] == "user"]
    target = body.message_id or (users[-1] if users else "")
    log, seq, _ = _place(snapshot, target)
    row = next(row for row in log.rows if row.seq == seq)
    record = await chat.server.store.record(row, load=True)
    assert isinstance(record.body, MessageAdded)
    return await _branch(chat, body, snapshot, target, record.body.message, at)


async def _branch(
    chat: branches.StoredChat,
    body: ChatBody,
    snapshot: branches.Snapshot,
    target: str,
    message: ChatMessage,
    at: float | None,
) -> StreamedTurn:
    """Ask a question again or in other words, in a new branch."""
    log, seq, index = _place(snapshot, target)
    if snapshot.messages[index]["role"] == "assistant":
        index -= 1
    return await _start(
        chat, body, message, max(chat.leaves) + 1, branches.Fork(leaf=log.number, before=seq, index=index), at
    )


def _place(snapshot: branches.Snapshot, target: str) -> tuple[branches.Leaf, int, int]:
    if (place := snapshot.places.get(target)) is None or not place[1]:
        raise not_found("message", target, param="messageId")
    return place


def _sent_before(leaf: branches.Leaf, message: ChatMessage) -> StreamedTurn | None:
    """Return the last turn if this message opened it, because a client that lost the response sends it again."""
    id = message.metadata.get(branches.MESSAGE_ID)
    if id is None:
        return None
    row = next(row for row in leaf.rows if row.seq == leaf.turn_start)
    body = unpack(row).body
    if not isinstance(body, MessageAdded) or body.message.metadata.get(branches.MESSAGE_ID) != id:
        return None
    return StreamedTurn(
        conversation=leaf.id, turn_start=leaf.turn_start, run_start=leaf.run_start, run=leaf.run, leaf=leaf.number
    )


async def _decide(
    chat: branches.StoredChat, body: ChatBody, answers: list[Answer], *, needs_digest: bool
) -> StreamedTurn:
    """Resume a waiting turn with decisions. Only the server's own history counts, not the posted one."""
    leaf, server = chat.leaf(body.leaf), chat.server
    job = chat.last_job(leaf)
    try:
        decisions = decisions_on(_pending(await chat.state(leaf)), answers, needs_digest=needs_digest)
    except RefusedDecisionError as error:
        await server.runs.log_refusal(leaf.id, error.approval_id, error.message)
        raise
    if job is None:
        raise RequestError(
            409, "cannot resume a turn that was not started by a server", type="conflict", code="not_resumable"
        )
    info = await server.runs.resume(server.agent(job.agent), leaf.id, decisions, replace(job, attempt=1))
    return StreamedTurn(
        conversation=leaf.id,
        turn_start=leaf.turn_start,
        run_start=info.start,
        run=info.id,
        after=info.start - 1,
        leaf=leaf.number,
    )


def _pending(state: LogState) -> Sequence[PendingApproval]:
    if state.status != "waiting" or state.run_state is None:
        return ()
    return state.run_state.approvals


def _job(chat: branches.StoredChat, body: ChatBody, leaf: int, fork: branches.Fork | None) -> Job:
    """Return the job of a run. A chat keeps its model until a request names another."""
    parent = chat.leaves.get(leaf if fork is None else fork.leaf)
    last = chat.last_job(parent) if parent is not None else None
    name = body.model or (last.agent if last is not None else chat.server.settings.default)
    return Job(
        agent=name,
        api=body.api,
        settings=settings_in(body),
        functions=functions_in(body),
        tools=None if body.tools is None else tuple(_tool(tool, chat.server, name) for tool in body.tools),
        details={} if fork is None else {"fork": {"leaf": fork.leaf, "before": fork.before, "index": fork.index}},
    )


def _tool(name: str, server: Server, agent: str) -> str | JsonObject:
    """Return a tool by name. A file search that the agent does not have itself uses this machine's index."""
    searches = name == FileSearch.key and offers_index(server.settings)
    if searches and FileSearch.key in own_tools(server.agent(agent)):
        return name
    return {"name": name, "stores": [INDEX]} if searches else name


def _blob_reader(chat: branches.StoredChat) -> ReadBlob:
    async def read(digest: str) -> bytes | None:
        known = any(digest in row.blobs for leaf in chat.leaves.values() for row in leaf.rows)
        return await chat.server.store.blob(digest) if known else None

    return read
