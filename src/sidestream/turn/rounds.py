"""Rounds of calls, with the questions for the policy, reasons to refuse a call, and parts that report decisions."""

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Protocol

from msgspec import convert, to_builtins
from msgspec.structs import replace

from sidestream.actions.values import SafetyCheck
from sidestream.files import media_types
from sidestream.jsontext import Json, as_object, text_in
from sidestream.limits import Limits
from sidestream.messages.fold import ACKNOWLEDGED, APPROVAL_DECIDED, PASSAGES
from sidestream.messages.message import Numbers
from sidestream.messages.provenance import PAGE, found_urls
from sidestream.parts import (
    Custom,
    Error,
    File,
    Finish,
    Raw,
    ReasoningEnd,
    ReasoningStart,
    ResponseMetadata,
    Steer,
    StepStart,
    StreamPart,
    TextEnd,
    TextStart,
    ToolApprovalRequest,
    ToolCall,
    ToolInputStart,
    ToolResult,
)
from sidestream.providers.protocol import FileRef
from sidestream.tools.approvals import PendingApproval, Question, digest_of
from sidestream.tools.grants import CALL_GRANTED, covering
from sidestream.tools.interruption import InterruptionPolicy
from sidestream.turn.state import TurnState


class ToolFacts(Protocol):
    """The properties of a client tool that the machine needs."""

    @property
    def server_label(self) -> str | None: ...

    @property
    def server_tool(self) -> str | None: ...

    @property
    def pin(self) -> str | None: ...

    @property
    def is_open_world(self) -> bool: ...

    @property
    def reads_outside(self) -> bool: ...

    @property
    def key(self) -> str | None: ...

    @property
    def is_external(self) -> bool: ...

    @property
    def on_interruption(self) -> InterruptionPolicy: ...


def of_server(part: StreamPart, tools: Mapping[str, ToolFacts]) -> StreamPart:
    """Make a call to an MCP server's tool, or to a replacement for a hosted tool, look like a hosted call.

    Other parts are returned unchanged.
    """
    if isinstance(part, ToolInputStart):
        return _input_of_server(part, tools)
    if not isinstance(part, ToolCall) or part.provider_executed or part.action is not None or part.name not in tools:
        return part
    facts = tools[part.name]
    label, key = facts.server_label, facts.key
    if label is None:
        return part if key in (None, part.tool) else replace(part, tool=key)
    marks = {"server_label": label}
    if facts.server_tool not in (None, part.name):
        marks["server_tool"] = facts.server_tool
    metadata = {**(part.provider_metadata or {}), "sidestream": marks}
    return replace(part, tool="mcp", provider_metadata=metadata)


def _input_of_server(part: ToolInputStart, tools: Mapping[str, ToolFacts]) -> StreamPart:
    facts = None if part.provider_executed else tools.get(part.name)
    tool = None if facts is None else facts.key if facts.server_label is None else "mcp"
    return part if tool in (None, part.name) else replace(part, tool=tool)


def function_of(call: ToolCall) -> str:
    """Return the name of the function that answers a call.

    One function answers all members of a provider's own toolset.
    """
    return call.name if call.action is None else call.tool


def arguments_of(call: ToolCall) -> Any:
    """Return the arguments for the function and the approver, in portable form if the call has one."""
    return call.action or call.input


def safety_checks(call: ToolCall) -> tuple[SafetyCheck, ...]:
    """Return what the provider wants the user to see before the call is made."""
    found = None if call.action is None else call.action.get("safety_checks")
    return convert(found, tuple[SafetyCheck, ...]) if found else ()


def questions(state: TurnState, calls: Iterable[ToolCall], tools: Mapping[str, ToolFacts]) -> tuple[Question, ...]:
    """Convert client calls to questions for the policy."""
    asked: list[Question] = []
    for call in calls:
        name = function_of(call)
        facts = tools.get(name)
        asked.append(
            Question(
                call_id=call.id,
                tool=name,
                input=arguments_of(call),
                server_label=None if facts is None else facts.server_label,
                sources=state.sources,
                pin=None if facts is None else facts.pin,
                safety_checks=safety_checks(call),
                is_external=facts is not None and facts.is_external,
            )
        )
    return _with_grants(state, asked)


def requests(state: TurnState) -> tuple[Question, ...]:
    """Convert calls that the provider wants to make itself to questions for the policy."""
    if not state.requests:
        return ()
    asked = (
        Question(
            call_id=request.approval_id,
            tool=request.name,
            input=request.input,
            server_label=request.server_label,
            sources=state.sources,
            is_remote=True,
            pin=state.listed.get(request.server_label or "", {}).get(request.name),
        )
        for request in state.requests
    )
    return _with_grants(state, asked)


def _with_grants(state: TurnState, asked: Iterable[Question]) -> tuple[Question, ...]:
    grants = state.grants
    if not grants:
        return tuple(asked)
    return tuple(replace(question, grant=covering(question, grants)) for question in asked)


def objection(call: ToolCall, tools: Collection[str] | None) -> dict[str, str] | None:
    """Return why a call must not run, in words for the model, or None.

    `tools` is None while they are unknown.
    """
    if call.input_error is not None:
        return {"error": "InvalidArguments", "message": f"The call was not executed: {call.input_error}."}
    name = function_of(call)
    return unknown_tool(name, tools) if tools is not None and name not in tools else None


def refusals(state: TurnState, calls: Iterable[ToolCall], tools: Collection[str] | None) -> list[StreamPart]:
    """Return the results of calls that must not run. A call with an external output needs no tool here."""
    refused: list[StreamPart] = []
    for call in calls:
        problem = objection(call, tools)
        if problem is not None and call.id not in state.outputs:
            refused.append(tool_result(call, problem, is_error=True))
    return refused


def is_changed(state: TurnState, call: ToolCall, tools: Mapping[str, ToolFacts]) -> bool:
    """Return whether the tool of an approved call has changed, or has become external, since the approval."""
    facts = tools.get(function_of(call))
    pin = facts.pin if facts is not None else None
    lacks_output = facts is not None and facts.is_external and call.id not in state.outputs
    return lacks_output or pin != state.pins.get(call.id, pin)


def limit_reached(state: TurnState, limits: Limits) -> tuple[str, float | None] | None:
    """Return the limit that forbids another step, with the value that reached it. None means there is none."""
    tokens = state.usage.input.total + state.usage.output.total
    if state.step + 1 >= limits.max_steps:
        return "max_steps", state.step + 1
    if limits.max_total_tokens is not None and tokens >= limits.max_total_tokens:
        return "max_total_tokens", tokens
    # An unknown cost may be any amount: do not continue on the chance that it is low.
    if limits.max_cost is not None and (state.usage.cost is None or state.usage.cost >= limits.max_cost):
        return "max_cost", state.usage.cost
    return None


def unknown_tool(name: str, tools: Iterable[str]) -> dict[str, str]:
    """Return the result of a call to an unknown tool."""
    known = ", ".join(sorted(tools)) or "none"
    return {"error": "UnknownTool", "message": f"There is no tool {name!r}. The tools are: {known}."}


def fits(entry: PendingApproval, calls: Iterable[ToolCall]) -> bool:
    """Return whether the call that would run is the one that was approved."""
    return any(c.id == entry.call_id and digest_of(function_of(c), arguments_of(c)) == entry.digest for c in calls)


def approval_request(approval: PendingApproval, call_id: str | None = None) -> ToolApprovalRequest:
    """Build the part that reports a pending approval.

    `call_id` is this run's call, if a subagent requests the approval.
    """
    details: dict[str, Json] = {"provenance": approval.provenance}
    if approval.safety_checks:
        details["safety_checks"] = list(to_builtins(approval.safety_checks))
    if approval.form is not None:
        details["form"] = approval.form
    return ToolApprovalRequest(
        approval.approval_id,
        call_id or approval.call_id,
        approval.tool,
        approval.input,
        approval.server_label,
        approval.is_external,
        provider_metadata={"sidestream": details},
    )


def decided(approval_id: str, is_approved: bool, reason: str | None = None, *, is_automatic: bool = False) -> Custom:
    """Build the part that reports a decision on a provider call, by a user or, if automatic, by a policy."""
    data: dict[str, Json] = {"approval_id": approval_id, "is_approved": is_approved, "reason": reason}
    return Custom(APPROVAL_DECIDED, data | {"is_automatic": True} if is_automatic else data)


def granted(question: Question, call_id: str) -> Custom:
    """Build the part that reports that a remembered approval covers a call.

    `call_id` is the call's id in the stream.
    """
    return Custom(CALL_GRANTED, {"call_id": call_id, "name": question.tool, "grant": question.grant})


def denial(tool: str, reason: str | None = None) -> dict[str, str]:
    """Return the result of a denied call."""
    return {"error": "Denied", "message": reason or f"The call of {tool} was denied. Continue without it."}


def tool_result(
    call: ToolCall,
    result: Json,
    is_error: bool,
    *,
    facts: ToolFacts | None = None,
    source: str | None = None,
    approved: Collection[str] = (),
    cites: Numbers | None = None,
    error: tuple[str, str] | None = None,
) -> ToolResult:
    """Build the part with a client tool's result.

    `facts` means that the tool has run, so what it read from outside is noted. `source` is an untrusted source that the
    tool itself names. `approved` are the calls that a user approved; the result of such a call acknowledges its safety
    checks. `cites` are the numbers that the run gave to passages in it. `error` is the type and message of what the
    tool raised.
    """
    label = facts.server_label if facts is not None else server_label(call)
    marks: dict[str, Json] = {} if label is None else {"server_label": label}
    if call.id in approved and safety_checks(call):
        marks[ACKNOWLEDGED] = True
    if source is not None or (facts is not None and facts.is_open_world):
        marks["source"] = source or f"{label or 'the tool'} {call.name}"
    if facts is not None and facts.reads_outside and not is_error:
        if facts.key == PAGE:
            marks["page"] = True
        elif urls := found_urls(result, [call.input, call.input_text], hits_only=facts.key is not None):
            marks["urls"] = [*urls]
    if cites is not None:
        marks[PASSAGES] = list(cites)
    metadata = {"sidestream": marks} if marks else None
    kind, message = error or (None, None)
    return ToolResult(
        call.id,
        call.name,
        call.tool,
        result,
        is_error,
        False,
        error_type=kind,
        error_message=message,
        provider_metadata=metadata,
    )


def server_label(call: ToolCall) -> str | None:
    """Return the label of the call's MCP server, noted by `of_server`.

    A result without it would look like one from an older log.
    """
    if call.provider_metadata is None:
        return None
    return text_in(as_object(call.provider_metadata.get("sidestream")), "server_label")


def downloaded(ref: FileRef, data: bytes) -> File:
    """Build the part for a downloaded file, with the type that its bytes have."""
    mime_type = media_types.sniff(data, ref.name)
    name = ref.name or f"{ref.id}.{media_types.extension(mime_type)}"
    return File(ref.id, mime_type, name, data, tool=ref.tool, call_id=ref.call_id)


_ENDING_ROUND = frozenset({StepStart, Finish})


def ends_round(part: StreamPart) -> bool:
    """Return whether this part must follow the message of the round that it ends."""
    return type(part) in _ENDING_ROUND or (type(part) is Steer and part.status == "applied")


_SILENT = frozenset({ResponseMetadata, Raw, TextStart, ReasoningStart, ReasoningEnd, Error, Finish})


def is_output(part: StreamPart) -> bool:
    """Return whether the user may have seen some of the answer after this part."""
    match part:
        case Custom():
            return not part.kind.startswith("sidestream.")
        case TextEnd():
            return part.text is not None
        case _:
            return type(part) not in _SILENT


_OUTAGES = frozenset({"rate-limit", "timeout", "truncated"})


def is_outage(error: Error) -> bool:
    """Return whether another provider may answer the same request.

    True if the provider is overloaded, failing or unreachable. False for a refused request, a rejected key and our own
    limits.
    """
    failed = error.retryable or (error.status is not None and error.status >= 500)
    return error.kind in _OUTAGES or (error.kind == "provider" and failed)
