"""Functions for the stateless APIs, whose requests carry the whole history and whose runs end with the response."""

import os
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from hashlib import sha256
from typing import Any, Protocol, TypeGuard
from urllib.parse import quote

from msgspec.structs import replace
from starlette.requests import Request

from sidestream.agent.agent import Agent
from sidestream.durable.log.jobs import Job
from sidestream.jsontext import JsonObject, as_object, object_in, without_none
from sidestream.messages.message import ChatMessage, MessagePart, TextPart, ToolCallPart, ToolResultPart
from sidestream.parts import Error, File, StepStart, StreamPart, TextDelta, TextEnd, ToolApprovalRequest
from sidestream.server.errors import RequestError
from sidestream.server.http.event_stream import parts_of, wait_comment
from sidestream.server.http.request_functions import prompt_last, with_reasoning
from sidestream.server.http.requests import RUN_HEADER, owner_of, server_of, stored_id
from sidestream.server.runs.decisions import Answer, RefusedDecisionError, decisions_on
from sidestream.server.runs.service import RunInfo
from sidestream.store.ids import STATELESS, ConversationId
from sidestream.tools.approvals import APPROVAL_TOOL, ApprovalCall, PendingApproval


class Encoder(Protocol):
    """Encodes parts as the events of an API."""

    error: Error | None

    def feed(self, part: StreamPart) -> list[JsonObject]:
        """Return the events of a part."""
        ...


def settings_of(settings: Mapping[str, Any]) -> JsonObject:
    """Return the settings that are set. Unsupported ones only warn, as the client may be written for another model."""
    return {**without_none(settings), "unsupported": "warn"}


def text_in(parts: Iterable[MessagePart]) -> str:
    """Join the text among these parts."""
    return "".join(part.text for part in parts if isinstance(part, TextPart))


def name_of(call_id: str, names: Mapping[str, str], at: str, *, what: str = "call") -> str:
    """Return the tool name of an earlier call. Raises RequestError if no call has this id."""
    if call_id not in names:
        raise RequestError(400, f"no earlier {what} has the id {call_id!r}", param=at)
    return names[call_id]


async def started(request: Request, agent: Agent[Any], messages: Sequence[ChatMessage], job: Job) -> RunInfo:
    """Start a run in a new conversation, on a history whose last message the model answers.

    If that message answers approvals, their run continues instead. Raises RequestError if the last message, apart from
    instructions, is neither the user's nor a tool result, or if an answer is refused.
    """
    messages = prompt_last(messages)
    if messages and any(map(_is_answer, messages[-1].parts)):
        return await _resumed(request, messages[-1])
    await _check_answers_come_alone(request, messages)
    messages = _without_approvals(messages)
    if not messages or messages[-1].role not in ("user", "tool"):
        raise RequestError(400, "the last message must be a user message or a tool result", param="messages")
    conversation = stored_id(request, f"{STATELESS}{os.urandom(12).hex()}")
    *beginning, last = with_reasoning(messages, agent.model.provider)
    return await server_of(request).runs.start(agent, conversation, last, job, beginning=beginning)


def file_url(request: Request, file: File) -> str:
    """Return a file's signed URL on this server, or the provider's URL if that is all there is."""
    if file.data is None:
        return file.url or ""
    name = f"&name={quote(file.name, safe='')}" if file.name else ""
    return server_of(request).links.signed(request, sha256(file.data).hexdigest()) + name


async def frames_of(
    request: Request, info: RunInfo, encoder: Encoder, encode: Callable[[JsonObject], bytes]
) -> AsyncGenerator[bytes]:
    """Yield the events of a run as frames, in the batches in which they arrive. Waits are comments."""
    async with aclosing(parts_of(server_of(request).runs, info)) as batches:
        async for parts in batches:
            frames = [wait_comment(part) + b"".join(map(encode, encoder.feed(part))) for part in parts]
            if data := b"".join(frames):
                yield data


async def all_events(
    request: Request, info: RunInfo, encoder: Encoder, failed: Callable[[Error], RequestError]
) -> list[JsonObject]:
    """Return all events of a run. Raises RequestError if the run failed."""
    async with aclosing(parts_of(server_of(request).runs, info)) as batches:
        parts = [part async for batch in batches for part in batch]
    events = [event for part in _settled(parts) for event in encoder.feed(part)]
    if encoder.error is not None:
        refused = failed(encoder.error)
        refused.headers |= {RUN_HEADER: info.id}
        raise refused
    return events


# Approvals, which these APIs do not have. A pending one is a call to a tool that only this server knows.


def asking(
    request: Request, info: RunInfo, *, can_answer: bool
) -> Callable[[ToolApprovalRequest], ApprovalCall | Error]:
    """Return a function that asks the client of a run for an approval.

    It returns an error that says where to decide, if the client cannot answer: one that sends no tools expects no call.
    """
    chat = ConversationId.parse(info.conversation).chat

    def ask(part: ToolApprovalRequest) -> ApprovalCall | Error:
        what = part.name if part.server_label is None else f"{part.name} of {part.server_label}"
        if not can_answer:
            message = (
                f"the call to {what} needs an approval ({part.approval_id}, run {info.id}); decide it at "
                f"{request.base_url}c/{chat}, or send tools to be asked with a call to {APPROVAL_TOOL}"
            )
            return Error("provider", message, code="approval_required", status=403)
        message = f'Approve the call to {what}? Answer {{"approved": true}} or {{"approved": false, "reason": "…"}}.'
        given: JsonObject = {"call_id": part.id, "tool": part.name, "input": part.input, "message": message}
        return ApprovalCall(f"{part.approval_id}_{info.id.removeprefix('run_')}", given)

    return ask


def _is_answer(part: MessagePart) -> TypeGuard[ToolResultPart]:
    return isinstance(part, ToolResultPart) and part.name == APPROVAL_TOOL


async def _resumed(request: Request, message: ChatMessage) -> RunInfo:
    """Continue the run whose approvals a message answers, together with the results of the client's functions."""
    results = [part for part in message.parts if isinstance(part, ToolResultPart)]
    runs = {_run_of(part) for part in results if _is_answer(part)}
    if len(runs) > 1:
        raise RequestError(400, f"answer the calls to {APPROVAL_TOOL} of one run at a time", param="messages")
    server = server_of(request)
    info, pending = await _pending(request, runs.pop())
    answers = [_answer(part) if _is_answer(part) else _output(part) for part in results]
    try:
        decisions = decisions_on(pending, answers, needs_digest=False)
    except RefusedDecisionError as error:
        await server.runs.log_refusal(info.conversation, error.approval_id, error.message)
        raise
    assert info.job is not None
    job = replace(info.job, attempt=1)
    return await server.runs.resume(server.agent(job.agent), info.conversation, decisions, job)


async def _pending(request: Request, run: str) -> tuple[RunInfo, Sequence[PendingApproval]]:
    """Return a run of the tenant and its pending approvals. Raises RequestError(404) if there is no such run."""
    server = server_of(request)
    info = await server.runs.find(owner_of(request), run)
    state = await server.store.conversation(info.conversation).state()
    if state.status != "waiting" or state.run_state is None:
        return info, ()
    return info, state.run_state.approvals


def _run_of(part: ToolResultPart) -> str:
    return f"run_{part.id.rpartition('_')[2]}"


def _approval_of(part: ToolResultPart) -> str:
    return part.id.rpartition("_")[0]


def _answer(part: ToolResultPart) -> Answer:
    """Convert the result of an approval call. An error of the client's tool denies the call.

    Raises RequestError if the result does not say whether the call is approved.
    """
    approval = _approval_of(part)
    if part.is_error:
        return Answer(approval_id=approval, approved=False, reason=str(part.result) or None)
    given = object_in(part.result) if isinstance(part.result, str) else None
    match given:
        case {"approved": bool(approved)}:
            reason, values = given.get("reason"), given.get("answers")
            return Answer(
                approval_id=approval,
                approved=approved,
                reason=reason if isinstance(reason, str) else None,
                values=as_object(values) if values is not None else None,
            )
        case _:
            message = f'the result of {APPROVAL_TOOL} must be {{"approved": true}} or {{"approved": false}} as JSON'
            raise RequestError(400, message, param="messages", code="invalid_approval")


def _output(part: ToolResultPart) -> Answer:
    return Answer(call_id=part.id, output=part.result, is_error=part.is_error)


async def _check_answers_come_alone(request: Request, messages: Sequence[ChatMessage]) -> None:
    """Raise RequestError if a user message follows an answer that its run still waits for."""
    before = messages[-2].parts if len(messages) > 1 and messages[-1].role == "user" else ()
    for part in filter(_is_answer, before):
        try:
            _, pending = await _pending(request, _run_of(part))
        except RequestError:
            continue  # It has been deleted.
        if any(entry.approval_id == _approval_of(part) for entry in pending):
            message = f"answer {APPROVAL_TOOL} without other content, and send the message in the next request"
            raise RequestError(400, message, param="messages", code="invalid_approval")


def _without_approvals(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """Return the history without approval calls and their answers, which the model has not made."""
    kept: list[ChatMessage] = []
    for message in messages:
        parts = tuple(
            part
            for part in message.parts
            if not isinstance(part, ToolCallPart | ToolResultPart) or part.name != APPROVAL_TOOL
        )
        if len(parts) == len(message.parts):
            kept.append(message)
        elif parts:
            kept.append(replace(message, parts=parts))
    return kept


def _settled(parts: list[StreamPart]) -> list[StreamPart]:
    """Return the parts without text that a final part has replaced."""
    settled: list[StreamPart] = []
    replaced: set[str] = set()
    for part in reversed(parts):
        if isinstance(part, StepStart):
            replaced.clear()  # Ids are unique within a step.
        elif isinstance(part, TextEnd) and part.text is not None:
            replaced.add(part.id)
        if not isinstance(part, TextDelta) or part.id not in replaced:
            settled.append(part)
    return settled[::-1]
