"""Starts, finds, continues and tails responses."""

import os
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from sidestream.agent.agent import Agent
from sidestream.agent.settings import CallSettings
from sidestream.durable.beginning import empty_run
from sidestream.durable.log.jobs import Job
from sidestream.errors import ConfigurationError, ConflictError, SidestreamError, StoreError
from sidestream.jsontext import JsonObject, is_object
from sidestream.messages.message import ChatMessage, ToolResultPart
from sidestream.protocols.responses.items import approval_item_id
from sidestream.providers.protocol import ModelRequest
from sidestream.server.errors import RequestError, as_request_error, not_found
from sidestream.server.http.request_functions import prompt_last, with_reasoning
from sidestream.server.http.requests import AT_HEADER
from sidestream.server.responses.input_items import PlacedAnswer, Sent
from sidestream.server.responses.log import ResponseFold, ResponseInfo, place_of, response_id, responses_in
from sidestream.server.responses.request import PreparedRequest
from sidestream.server.runs.decisions import PendingCalls, RefusedDecisionError, decision_on
from sidestream.server.runs.service import RunInfo, append
from sidestream.server.server import Server
from sidestream.server.settings import Dialect
from sidestream.store.ids import UNSTORED, ConversationId
from sidestream.store.log.fold import fold, joined
from sidestream.store.log.writer import imported
from sidestream.store.records import Row, open_run
from sidestream.text.redaction import redact
from sidestream.tools.approvals import Decision, PendingApproval
from sidestream.tools.results import json_value
from sidestream.tools.server_side import RemoteMCP, WebSearch

_MAX_OUTPUT = 1 << 62


class Base(Struct, frozen=True, kw_only=True):
    """The history that a request continues."""

    conversation: str | None = None
    """Conversation to continue. None means that the request needs a new one."""
    head: int | None = None
    """Sequence number of the conversation's last record. None means the request continues the conversation as it is."""
    messages: tuple[ChatMessage, ...] = ()
    pending: tuple[PendingApproval, ...] = ()
    """Calls that wait for the client."""


def new_conversation(owner: str, *, is_stored: bool) -> str:
    """Return the store id for a new conversation."""
    return str(ConversationId(owner, f"{'chain_' if is_stored else UNSTORED}{os.urandom(16).hex()}"))


async def find_response(
    server: Server, owner: str, id: str, *, param: str | None = None, code: str = "not_found"
) -> ResponseInfo:
    """Return a stored response of this tenant. Raises RequestError(404) if there is none with this id."""
    if (place := place_of(id)) is not None:
        found = await server.store.find_run(place[0])
        if found is not None and ConversationId.parse(found[0]).owner == owner:
            rows = await server.store.read(found[0])
            for info in responses_in(found[0], rows):
                if info.id == id and info.is_stored:
                    return info
    raise not_found("response", id[:100], param=param, code=code)


async def start(
    server: Server,
    owner: str,
    request: PreparedRequest,
    base: Base,
    sent: Sent,
    *,
    splits: bool = False,
    at: float | None = None,
) -> ResponseInfo:
    """Start the run of a request, or schedule it for `at`.

    Raises RequestError if the input is invalid, and the errors of `Runs.start`.
    """
    try:
        try:
            return await _start(server, owner, request, base, sent, splits=splits, at=at)
        except ConflictError:
            if base.conversation is None or request.body.previous_response_id is None:
                raise
            # Another request has continued the response meanwhile, so this one starts a branch.
            base = replace(base, conversation=None, head=None)
            return await _start(server, owner, request, base, sent, splits=splits, at=at)
    except ConfigurationError as error:
        refused = as_request_error(error)
        refused.param = refused.param or request.tools.param
        raise refused from None


async def _start(
    server: Server, owner: str, request: PreparedRequest, base: Base, sent: Sent, *, splits: bool, at: float | None
) -> ResponseInfo:
    agent = server.agent(request.agent)
    job = _job(request, agent, **({"splits": True} if splits else {}))
    call = _unstored_call(request, job.call_settings(agent))
    try:
        answered = _matched(base.pending, sent.answers)
    except RefusedDecisionError as error:
        if base.conversation is not None:
            await server.runs.log_refusal(base.conversation, error.approval_id, error.message)
        raise
    if answered and base.conversation is not None:
        if at is not None:
            raise RequestError(400, f"answers to calls cannot be scheduled; leave out {AT_HEADER}", param=AT_HEADER)
        for message in sent.messages:
            if message.role != "user":
                raise RequestError(400, "only user messages can be sent with answers to calls", param="input")
        info = await server.runs.resume(agent, base.conversation, answered, job, head=base.head, **call)
        for message in sent.messages:
            await server.runs.steer(base.conversation, message)
        found = await server.store.find_run(info.id)
        return _started(info, found[1] if found is not None else info.start)
    messages = prompt_last([*_results(base.pending, answered), *with_reasoning(sent.messages, agent.model.provider)])
    if not messages or messages[-1].role not in ("user", "tool"):
        raise RequestError(400, "the input must end with a user message or a tool output", param="input")
    *between, last = messages
    conversation = base.conversation or new_conversation(owner, is_stored=request.body.is_stored)
    if base.conversation is None:
        beginning = (*base.messages, *between)
        info = await server.runs.start(agent, conversation, last, job, beginning=beginning, at=at, is_new=True, **call)
    else:
        info = await server.runs.start(agent, conversation, last, job, between=between, at=at, head=base.head, **call)
    return _started(info, info.start)


async def prepare(server: Server, owner: str, request: PreparedRequest, base: Base, sent: Sent) -> ResponseInfo:
    """Record a request without calling a model, and return its empty response, which another request can continue.

    Raises RequestError if the previous response waits for outputs or the conversation is busy.
    """
    if base.pending:
        raise RequestError(400, "the previous response is waiting for outputs", param="generate", code="missing_output")
    agent = server.agent(request.agent)
    job = server.runs.policy.admit(agent, _job(request, agent), (*base.messages, *sent.messages))
    run = f"run_{os.urandom(16).hex()}"
    if base.head is not None and await server.store.read(base.conversation or "", base.head):
        base = replace(base, conversation=None)  # Another request has continued the response meanwhile.
    conversation = base.conversation or new_conversation(owner, is_stored=request.body.is_stored)
    if await server.runs.is_busy(conversation):
        raise RequestError(409, "a response in this conversation is in progress", type="conflict", code="busy")
    added = with_reasoning(sent.messages, agent.model.provider)
    messages = [*(() if base.conversation else base.messages), *added]
    await append(server.store, conversation, [*imported(messages), *empty_run(agent, job)], run)
    rows = await server.store.read(conversation)
    return next(info for info in reversed(responses_in(conversation, rows)) if info.run == run)


def _job(request: PreparedRequest, agent: Agent[Any], **details: Any) -> Job:
    """Return the job of a request, without a web search that its model cannot do without live access to the web."""
    job = request.job(**details)
    tools = tuple(tool for tool in job.tools or () if is_object(tool) and not _is_live_only(tool, agent))
    return job if tools == (job.tools or ()) else replace(job, tools=tools or None)


def _is_live_only(tool: JsonObject, agent: Agent[Any]) -> bool:
    """Return whether the request forbids live access for a search, and the model has no other search."""
    if tool.get("external_web_access") is not False:
        return False
    search = WebSearch(external_web_access=False)
    try:
        agent.model.encode(ModelRequest(messages=(ChatMessage.user("?"),), server_side_tools=(search,)))
    except SidestreamError:
        return True
    return False


def _started(info: RunInfo, first: int) -> ResponseInfo:
    assert info.job is not None
    return ResponseInfo(
        id=response_id(info.id, info.start),
        conversation=info.conversation,
        run=info.id,
        first=first,
        start=info.start,
        job=info.job,
    )


def _unstored_call(request: PreparedRequest, call: CallSettings) -> CallSettings:
    """Return the request's MCP servers with the secrets that are not stored."""
    if not request.tools.secrets:
        return {}
    whole = {tool.label: tool for tool in request.tools.secrets if isinstance(tool, RemoteMCP)}
    tools = [whole.get(tool.label, tool) if isinstance(tool, RemoteMCP) else tool for tool in _hosted(call)]
    return {"server_side_tools": tools}


def _hosted(call: CallSettings) -> Sequence[Any]:
    return [*call.get("server_side_tools", ())]


async def base_of(server: Server, owner: str, request: PreparedRequest) -> Base:
    """Return the history that a request continues.

    Raises RequestError(404) if it is unknown, and RequestError(409) if it is in progress.
    """
    body = request.body
    if body.previous_response_id is not None:
        id, param = body.previous_response_id, "previous_response_id"
        info = await find_response(server, owner, id, param=param, code="previous_response_not_found")
        return await base_after(server, info, is_stored=body.is_stored)
    if (conversation := body.conversation_id) is not None:
        stored = await find_conversation(server, owner, conversation, param="conversation")
        rows = await server.store.read(stored)
        return await _base(server, stored, rows, is_tip=body.is_stored)
    return Base()


async def base_after(server: Server, info: ResponseInfo, *, is_stored: bool) -> Base:
    """Return the history after a response, in its conversation or, if that has moved on, as a copy up to the response.

    Raises RequestError(409) if the response is in progress.
    """
    rows = await server.store.read(info.conversation)
    # Another request may have continued the response since `info` was read.
    info = next((each for each in responses_in(info.conversation, rows) if each.id == info.id), info)
    is_tip = info.end is None
    if is_tip and open_run(rows) is not None:
        message = f"response {info.id} is still in progress"
        raise RequestError(409, message, type="conflict", param="previous_response_id", code="response_in_progress")
    before = [row for row in rows if info.end is None or row.seq < info.end]
    base = await _base(server, info.conversation, before, is_tip=is_tip and info.is_stored == is_stored)
    return base if base.conversation is None else replace(base, head=before[-1].seq)


async def find_conversation(server: Server, owner: str, id: str, *, param: str | None = None) -> str:
    """Return the store id of this tenant's conversation. Raises RequestError(404) if there is none with this id."""
    stored = str(ConversationId(owner, id))
    if not id.startswith("conv_") or (not id.isalnum() and not id.replace("_", "").isalnum()) or len(id) > 100:
        raise not_found("conversation", id[:100], param=param)
    if not await server.store.read(stored):
        raise not_found("conversation", id, param=param)
    return stored


async def _base(server: Server, conversation: str, rows: Sequence[Row], *, is_tip: bool) -> Base:
    state = fold(joined([await server.store.record(row, load=row.kind != "step-finish") for row in rows]))
    pending = state.run_state.approvals if state.status == "waiting" and state.run_state is not None else ()
    return Base(conversation=conversation if is_tip else None, messages=state.messages, pending=pending)


def _matched(pending: Sequence[PendingApproval], answers: Sequence[PlacedAnswer]) -> list[Decision]:
    """Return the decisions on pending calls. Only the decision is taken from the client, not its version of the call.

    Raises RequestError if an answer is for an unknown call or a call has no answer.
    """
    calls, decisions = PendingCalls(pending, approval_item_id), dict[str, Decision]()
    for answer in answers:
        entry = calls.find(answer)
        if entry is None or entry.approval_id in decisions or entry.is_external != (answer.call_id is not None):
            raise _unknown_call(answer)
        decisions[entry.approval_id] = decision_on(entry, answer, needs_digest=False)
    undecided = [entry for entry in pending if entry.approval_id not in decisions]
    if missing := [e.call_id if e.is_external else approval_item_id(e.approval_id) for e in undecided]:
        message = f"missing outputs for the calls {', '.join(missing)}"
        raise RequestError(400, message, param="input", code="missing_output")
    return list(decisions.values())


def _unknown_call(answer: PlacedAnswer) -> RequestError:
    if answer.call_id is not None:
        message = f"call {answer.call_id!r:.100} is not waiting for an output"
        return RequestError(400, message, param=f"{answer.at}.call_id", code="unknown_call")
    message = f"{answer.approval_id!r:.100} is not waiting for a decision; it may have been decided already"
    named, param = (answer.approval_id or "")[:100], f"{answer.at}.approval_request_id"
    return RefusedDecisionError(named, message, param=param, code="nothing_waits")


def _results(pending: Sequence[PendingApproval], decisions: Sequence[Decision]) -> list[ChatMessage]:
    """Return the outputs as messages for a branch. Raises RequestError(409) if a call was decided without an output."""
    if any(decision.output is None for decision in decisions):
        message = "the calls of this response have already been decided"
        raise RequestError(409, message, type="conflict", param="previous_response_id", code="decided")
    parts = [
        ToolResultPart(decision.call_id, decision.tool, json_value(decision.output.value, _MAX_OUTPUT))
        for decision in decisions
        if decision.output is not None
    ]
    return [ChatMessage("tool", tuple(parts))] if parts else []


async def followed(
    server: Server, info: ResponseInfo, dialect: Dialect, fold: ResponseFold | None = None
) -> AsyncGenerator[list[JsonObject]]:
    """Yield the events of a response until its end, in the batches in which the log receives them.

    A steering message gets its own batch, which may be empty. So may a batch with new `waits` of the fold.
    """
    fold = fold or ResponseFold(info, dialect)
    # A run that outlives this response, or runs in the background, must not be stopped when its subscribers leave.
    runs, after = server.runs, info.first - 1
    following = runs.following(info.conversation, after)
    read = following.batches(load=True) if info.outlives_readers else runs.read(info.conversation, after, load=True)
    waits = 0
    try:
        async with aclosing(read) as batches:
            async for batch in batches:
                events: list[JsonObject] = []
                for record in batch:
                    if record.kind == "steer" and events:
                        yield events
                        events = []
                    events += fold.feed(record)
                    if record.kind == "steer":
                        yield events
                        events = []
                    if fold.is_over:
                        break
                if events or len(fold.waits) > waits:
                    waits = len(fold.waits)
                    yield events
                if fold.is_over:
                    return
    except StoreError as error:
        yield fold.failed(redact(f"the run could not be recorded: {error}"))


async def read_response(server: Server, info: ResponseInfo, dialect: Dialect) -> JsonObject:
    """Return the response object in its current state."""
    folded = ResponseFold(info, dialect)
    for row in await server.store.read(info.conversation, info.first - 1):
        folded.feed(await server.store.record(row, load=True))
        if folded.is_over:
            break
    assert folded.response is not None
    if folded.is_queued:
        return {**folded.response, "status": "queued"}
    return folded.response


async def forget(server: Server, info: ResponseInfo) -> None:
    """Stop and delete an unstored response."""
    await server.runs.stop(info.conversation)
    await server.store.delete(info.conversation)
