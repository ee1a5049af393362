"""Rounds of calls: what a call is asked about, why one must not run, and what is told of decisions."""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Protocol

from msgspec.structs import replace

from sidestream import deliverables
from sidestream.messages.fold import APPROVAL_DECIDED
from sidestream.providers.protocol import FileRef
from sidestream.stream.parts import Custom, File, Source, StreamPart, ToolApprovalRequest, ToolCall, ToolResult
from sidestream.tools.approvals import PendingApproval, Question, Suspended, digest_of, pending
from sidestream.turn.state import Send, TurnState

OPEN_WEB = frozenset({"web_search", "web_fetch", "google_search", "url_context", "computer_use", "mcp"})
"""Tools through which a run reads what strangers wrote."""


def note(state: TurnState, part: StreamPart) -> None:
    """Keeps what the round after this step depends on."""
    match part:
        case ToolCall(provider_executed=False):
            state.calls += (part,)
        case ToolApprovalRequest():
            state.requests += (part,)
        case ToolResult(provider_executed=True) if part.tool in OPEN_WEB:
            read_from(state, f"{part.tool} {part.name}" if part.tool == "mcp" else part.tool)
        case Source(url=str(url)):
            read_from(state, url)
        case File(data=bytes(data)):
            state.digests |= {deliverables.digest(data)}
        case _:
            pass


def read_from(state: TurnState, source: str) -> None:
    """Keeps what the run has read from the open web."""
    if source not in state.sources:
        state.sources += (source,)


class ToolFacts(Protocol):
    """What the machine must know of a client tool."""

    @property
    def server_label(self) -> str | None: ...

    @property
    def pin(self) -> str | None: ...

    @property
    def is_open_world(self) -> bool: ...


def of_server(part: StreamPart, tools: Mapping[str, ToolFacts]) -> StreamPart:
    """The part; a call of an MCP server's tool looks like one that a provider makes of such a server."""
    if not isinstance(part, ToolCall) or part.provider_executed or part.name not in tools:
        return part
    label = tools[part.name].server_label
    if label is None:
        return part
    metadata = {**(part.provider_metadata or {}), "sidestream": {"server_label": label}}
    return replace(part, tool="mcp", provider_metadata=metadata)


def questions(state: TurnState, calls: Iterable[ToolCall], tools: Mapping[str, ToolFacts]) -> tuple[Question, ...]:
    """Client calls, for the policy."""
    return tuple(
        Question(
            call_id=call.id,
            tool=call.name,
            input=call.input,
            server_label=tools[call.name].server_label if call.name in tools else None,
            sources=state.sources,
            pin=tools[call.name].pin if call.name in tools else None,
        )
        for call in calls
    )


def requests(state: TurnState) -> tuple[Question, ...]:
    """What the provider itself asks to be allowed, for the policy."""
    asked, state.requests = state.requests, ()
    return tuple(
        Question(
            call_id=request.approval_id,
            tool=request.name,
            input=request.input,
            server_label=request.server_label,
            sources=state.sources,
            is_remote=True,
        )
        for request in asked
    )


def objection(call: ToolCall, tools: Collection[str] | None) -> dict[str, str] | None:
    """Why a call must not be executed, in words for the model. `tools` is None while they are not known."""
    if call.input_error is not None:
        return {"error": "InvalidArguments", "message": f"The call was not executed: {call.input_error}."}
    return unknown_tool(call.name, tools) if tools is not None and call.name not in tools else None


def unknown_tool(name: str, tools: Iterable[str]) -> dict[str, str]:
    """What a model is told that calls a tool that there is not."""
    known = ", ".join(sorted(tools)) or "none"
    return {"error": "UnknownTool", "message": f"There is no tool {name!r}. The tools are: {known}."}


def fits(entry: PendingApproval, calls: Iterable[ToolCall]) -> bool:
    """True if the call that would run is the one that was asked about."""
    return any(c.id == entry.call_id and digest_of(c.name, c.input) == entry.digest for c in calls)


def ask(state: TurnState, question: Question, new_id: Callable[[], str]) -> list[StreamPart]:
    """Lets a call wait for a person, and tells so."""
    approval_id = question.call_id if question.is_remote else new_id()
    state.waiting += (pending(question, state.run_id, approval_id),)
    if question.is_remote:
        return []  # The provider's own request was told when it came.
    return [_request(approval_id, question.call_id, question)]


def asked_by(call_id: str, suspended: Suspended) -> list[StreamPart]:
    """What a tool that is an agent asks a person, as requests of the run that called it."""
    return [_request(entry.approval_id, call_id, entry) for entry in suspended.approvals]


def _request(approval_id: str, call_id: str, asked: Question | PendingApproval) -> ToolApprovalRequest:
    origin = {"sidestream": {"provenance": asked.provenance}}
    return ToolApprovalRequest(
        approval_id, call_id, asked.tool, asked.input, asked.server_label, provider_metadata=origin
    )


def settled(state: TurnState) -> TurnState:
    """The same state; one that was left in the middle of an answer asks for that answer again.

    An answer in the background stays known: it is fetched then, from its beginning, not asked for a second time.
    """
    if state.is_in_step:
        state.is_in_step = False
        state.step -= 1
        state.calls, state.requests, state.fold = (), (), None
        state.command = Send()
    return state


def decided(approval_id: str, is_approved: bool, reason: str | None = None) -> Custom:
    return Custom(APPROVAL_DECIDED, {"approval_id": approval_id, "is_approved": is_approved, "reason": reason})


def denial(tool: str, reason: str | None = None) -> dict[str, str]:
    return {"error": "Denied", "message": reason or f"The call of {tool} was not allowed. Go on without it."}


def downloaded(ref: FileRef, data: bytes) -> File:
    """A file that was fetched, with the type that its bytes have."""
    mime_type = deliverables.sniff(data, ref.name)
    name = ref.name or f"{ref.id}.{deliverables.extension(mime_type)}"
    return File(ref.id, mime_type, name, data, tool=ref.tool, call_id=ref.call_id)
