"""Conversion of subagents' calls to data parts that name the subagent's call as their parent.

A tool forwards the parts of a subagent's run as its events. UIs get the calls, each as `data-call` (an AI SDK part) and
`data-tool` (its progress), and the subagent's number of steps and cost. They do not get its text, because the last one
is the result of its call.
"""

from collections.abc import Callable
from typing import Any, get_args

from msgspec import ValidationError, convert

from sidestream import jsontext, parts
from sidestream.jsontext import JsonObject
from sidestream.messages.fold import APPROVAL_DECIDED
from sidestream.protocols.ai_sdk.content import UrlOf, data_part, filled
from sidestream.protocols.ai_sdk.snapshot import UIMessageFold
from sidestream.protocols.ai_sdk.tools import ToolChunks
from sidestream.tools import grants

Chunk = JsonObject


class AgentChunks:
    """The nested runs behind the calls of one message, or of one subagent in it.

    `name_of` returns the id of a call in the UI.
    """

    def __init__(self, tools: ToolChunks, url_of: UrlOf | None, name_of: Callable[[str], str] | None = None) -> None:
        self._tools = tools
        self._url_of = url_of
        self._name_of = name_of or tools.id_of
        self._runs: dict[str, _NestedRun] = {}
        """Nested runs, by call id."""
        self._programs: dict[str, str] = {}
        """Id of the program's call, by id of a call that the program made."""

    def event(self, part: parts.ToolEvent) -> list[Chunk] | None:
        """Return the chunks of a part that a tool forwards, or None for an event of the tool itself."""
        stage = part.provider_stage
        if stage is None or stage not in _FORWARDED or part.call_id is None:
            return None
        event = jsontext.as_object(part.event)
        if event.get("type") != stage:
            return None
        if stage not in _HANDLERS:
            return []
        try:
            nested: parts.StreamPart = convert(event, parts.StreamPart)
        except ValidationError:
            return None
        return self._nested(part.call_id, nested)

    def program(self, part: parts.StreamPart) -> list[Chunk] | None:
        """Return the chunks of a part that belongs to a program's call, or None for other parts."""
        match part:
            case parts.ToolCall() if (program := parts.program_of(part)) is not None and self._tools.knows(program):
                self._programs[part.id] = program
                return self._nested(program, part)
            case parts.ToolResult() if part.id in self._programs:
                return self._nested(self._programs[part.id], part)
            case parts.ToolEvent() if part.call_id in self._programs:
                return self._nested(self._programs[part.call_id], part)
            case parts.Custom(kind=grants.CALL_GRANTED):
                call_id = str(jsontext.as_object(part.data).get("call_id"))
                return self._nested(self._programs[call_id], part) if call_id in self._programs else None
            case _:
                return None

    def owner_of(self, call_id: str) -> str:
        """Return the call whose card shows this call: the program that made it, or the call itself."""
        return self._programs.get(call_id, call_id)

    def _nested(self, call_id: str, part: parts.StreamPart) -> list[Chunk]:
        """Return the chunks of a part of the run behind a call."""
        run = self._runs.get(call_id)
        if run is None:
            run = self._runs[call_id] = _NestedRun(self._name_of(call_id), self._url_of)
        run.tools.at, run.tools.now, run.tools.seq = self._tools.at, self._tools.now, self._tools.seq
        known = run.facts
        out = _HANDLERS[part.type](run, part)
        return [*self._tools.agent(call_id, run.facts), *out] if run.facts != known else out

    def decided(self, approval_id: str, is_approved: bool, reason: str | None) -> list[Chunk]:
        """Return the chunks of a decision on a subagent's call."""
        return [chunk for run in self._runs.values() for chunk in run.decided(approval_id, is_approved, reason)]

    def cut_off(self) -> list[Chunk]:
        """Return the states of calls that a stopped run leaves without a result."""
        return [chunk for run in self._runs.values() for chunk in run.cut_off()]

    def reopened(self) -> list[Chunk]:
        """Return the code being written, from its beginning."""
        return [chunk for run in self._runs.values() for chunk in run.reopened()]


class _NestedRun:
    """The calls of a subagent, or of a program that calls tools."""

    def __init__(self, parent: str, url_of: UrlOf | None) -> None:
        self.tools = ToolChunks(url_of)
        self.facts: JsonObject = {}
        """Steps and cost of a subagent; empty for a program."""
        self._parent = parent
        self._agents = AgentChunks(self.tools, url_of, lambda call_id: self._key(self.tools.id_of(call_id)))
        self._fold = UIMessageFold()
        self._step = 0
        self._keys: dict[str, tuple[int, str]] = {}
        """Step and UI id of calls, by call id. Models may reuse an id in a later step."""
        self._count = 0
        self._approvals: dict[str, str] = {}
        """Call ids, by approval id."""
        self._code: dict[str, list[str]] = {}
        """Code written so far, by UI id of the call."""

    def start(self, part: parts.StreamStart) -> list[Chunk]:
        """Begin or resume the subagent, marking calls that an earlier attempt left open as unfinished."""
        self.facts = self.facts or {"steps": 0}
        self._code.clear()
        return self._shown(self.tools.states(parts.Finish("approval", parts.Usage())))

    def metadata(self, part: parts.ResponseMetadata) -> list[Chunk]:
        self.tools.provider = part.provider or self.tools.provider
        return []

    def step(self, part: parts.StepStart) -> list[Chunk]:
        self._step = part.step
        self.facts = {**self.facts, "steps": part.step + 1}
        self._fold.feed([{"type": "start-step"}])
        return self._shown(self.tools.states(part))

    def step_end(self, part: parts.StepFinish) -> list[Chunk]:
        self.tools.end_step()
        return []

    def finish(self, part: parts.Finish) -> list[Chunk]:
        if self.facts:
            self.facts = {**self.facts, **filled(cost=part.usage.cost)}
        return self._shown(self.tools.states(part))

    def event(self, part: parts.ToolEvent) -> list[Chunk]:
        forwarded = self._agents.program(part)
        if forwarded is None:
            forwarded = self._agents.event(part)
        return self._shown(self.tools.event(part)) if forwarded is None else self._shown(forwarded)

    def custom(self, part: parts.Custom) -> list[Chunk]:
        if part.kind != APPROVAL_DECIDED:
            nested = self._agents.program(part)
            return self._shown(self.tools.states(part) if nested is None else nested)
        data = jsontext.as_object(part.data)
        is_automatic = data.get("is_automatic") is True
        approval_id, is_approved = str(data.get("approval_id")), data.get("is_approved") is True
        return self._shown(self.tools.decided(approval_id, is_approved, data.get("reason"), is_automatic=is_automatic))

    def decided(self, approval_id: str, is_approved: bool, reason: str | None) -> list[Chunk]:
        chunks = self._shown(self.tools.decided(approval_id, is_approved, reason))
        return [*chunks, *self._agents.decided(approval_id, is_approved, reason)]

    def cut_off(self) -> list[Chunk]:
        return [*self._shown(self.tools.cut_off()), *self._agents.cut_off()]

    def reopened(self) -> list[Chunk]:
        code = [
            {"type": "data-code", "data": {"call": key, "delta": "".join(deltas), "whole": True}, "transient": True}
            for key, deltas in self._code.items()
        ]
        return [*code, *self._agents.reopened()]

    def _shown(self, chunks: list[Chunk]) -> list[Chunk]:
        """Convert the chunks of calls to data parts under the subagent's call."""
        return [shown for chunk in chunks for shown in self._data(chunk)]

    def _data(self, chunk: Chunk) -> list[Chunk]:
        kind: str = chunk["type"]
        data = jsontext.as_object(chunk.get("data"))
        if "parent" in data:
            return [chunk]  # From a nested subagent.
        if kind == "data-tool":
            key = self._key(chunk["id"])
            return [data_part("tool", key, **{**data, "call": key, "parent": self._parent})]
        if kind == "data-code":
            key = self._key(data["call"])
            self._code.setdefault(key, []).append(data["delta"])
            return [{**chunk, "data": {**data, "call": key, "parent": self._parent}}]
        return self._call(kind, chunk) if kind.startswith("tool-") else []

    def _call(self, kind: str, chunk: Chunk) -> list[Chunk]:
        if kind == "tool-input-delta":
            return []
        if kind == "tool-approval-request":
            self._approvals[chunk["approvalId"]] = chunk["toolCallId"]
        call = self._approvals[chunk["approvalId"]] if kind == "tool-approval-response" else chunk["toolCallId"]
        key = self._key(call, is_call=kind.startswith("tool-input-"))
        self._fold.feed([chunk])
        if kind in ("tool-input-available", "tool-input-error"):
            self._code.pop(key, None)
        part = {**self._fold.call(call), "toolCallId": key}
        return [data_part("call", key, call=key, parent=self._parent, part=part)]

    def _key(self, call: str, *, is_call: bool = False) -> str:
        known = self._keys.get(call)
        if known is None or (is_call and known[0] != self._step):
            self._count += 1
            known = self._keys[call] = (self._step, f"{self._parent}/{self._count}")
        return known[1]

    def input_start(self, part: parts.ToolInputStart) -> list[Chunk]:
        return self._shown(self.tools.input_start(part))

    def input_delta(self, part: parts.ToolInputDelta) -> list[Chunk]:
        return self._shown(self.tools.input_delta(part))

    def input_end(self, part: parts.ToolInputEnd) -> list[Chunk]:
        return self._shown(self.tools.input_end(part))

    def call(self, part: parts.ToolCall) -> list[Chunk]:
        nested = self._agents.program(part)
        return self._shown(self.tools.call(part) if nested is None else nested)

    def result(self, part: parts.ToolResult) -> list[Chunk]:
        nested = self._agents.program(part)
        return self._shown(self.tools.result(part) if nested is None else nested)

    def request(self, part: parts.ToolApprovalRequest) -> list[Chunk]:
        return self._shown(self.tools.request(part, []))


_FORWARDED = frozenset(part.type for part in get_args(parts.StreamPart))
"""Stages of events that hold forwarded parts."""
_HANDLERS: dict[str, Callable[[_NestedRun, Any], list[Chunk]]] = {
    parts.StreamStart.type: _NestedRun.start,
    parts.ResponseMetadata.type: _NestedRun.metadata,
    parts.StepStart.type: _NestedRun.step,
    parts.StepFinish.type: _NestedRun.step_end,
    parts.Finish.type: _NestedRun.finish,
    parts.ToolInputStart.type: _NestedRun.input_start,
    parts.ToolInputDelta.type: _NestedRun.input_delta,
    parts.ToolInputEnd.type: _NestedRun.input_end,
    parts.ToolCall.type: _NestedRun.call,
    parts.ToolEvent.type: _NestedRun.event,
    parts.ToolResult.type: _NestedRun.result,
    parts.ToolApprovalRequest.type: _NestedRun.request,
    parts.Custom.type: _NestedRun.custom,
}
"""Type of a forwarded part → handler. UIs do not show other parts."""
