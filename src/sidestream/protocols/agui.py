"""Encoder of a run as AG-UI 1.0 events.

    encoder = AGUIEncoder("thread_1", "run_1")
    async for part in agent.stream(prompt):
        for event in encoder.feed(part): ...        # one `data:` frame each

It is a projection of the UI message stream, so both protocols show the same. What AG-UI has no event for is sent as
`CUSTOM` events with names that begin with `sidestream.`, a tool's progress as an activity of type `sidestream.tool`,
and unknown provider events as `RAW`.
"""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

from sidestream import jsontext
from sidestream.jsontext import Json, JsonObject, as_object
from sidestream.parts import Finish, Raw, StreamPart, ToolApprovalRequest, Usage
from sidestream.protocols.ai_sdk.content import UrlOf, filled, tokens, with_urls
from sidestream.protocols.ai_sdk.message import Chunk, UIMessageEncoder
from sidestream.tools.approvals import PendingApproval

PROTOCOL_VERSION: Final = "1.0"
DECISION_SCHEMA: Final[JsonObject] = {
    "type": "object",
    "properties": {"approved": {"type": "boolean"}, "reason": {"type": "string"}},
    "required": ["approved"],
}
"""JSON schema of the `payload` of a `resume` entry."""
DENIED = "The call was denied."
NOT_MADE = "The run ended before the call was made."

Event = JsonObject


class AGUIEncoder:
    """An encoder of one turn's parts, and of the few state transitions that no part reports, as events.

    A run that waits for approvals ends with an interrupt for each. The run that resumes the turn starts a new stream,
    with the same encoder. `url_of` returns the URLs of blobs. Approvals expire `approval_s` seconds after the request.
    """

    def __init__(
        self,
        thread_id: str,
        run_id: str,
        message_id: str | None = None,
        *,
        url_of: UrlOf | None = None,
        approval_s: float | None = None,
    ) -> None:
        self._ids = {"threadId": thread_id, "runId": run_id}
        self._prefix = message_id or run_id
        self._chunks = UIMessageEncoder(message_id, url_of=url_of, steering=True, approval_s=approval_s)
        self._url_of = url_of
        self._is_over = True
        """Whether no run is open, which is so before a run and after it."""
        self._step = 0
        self._parent: str | None = None
        """Id of the message of this step that calls belong to."""
        self._open: dict[tuple[str, str], None] = {}
        """Open texts, reasoning and calls, by family and id."""
        self._written: set[str] = set()
        """Ids of calls whose arguments have been streamed."""
        self._unanswered: dict[str, bool] = {}
        """Whether the provider makes the call, by id of a call without a result."""
        self._is_in_step = False
        self._blocks: list[str] = []
        """Ids of this step's messages."""
        self._approvals: dict[str, JsonObject] = {}
        """Pending approvals, by approval id."""
        self._external: dict[str, None] = {}
        """Ids of calls that the client executes."""
        self._reasons: dict[str, str] = {}
        """Reasons for denials, by call id."""
        self._model: JsonObject = {}
        self._usage: list[JsonObject] = []

    def feed(self, part: StreamPart, at: float | None = None, seq: int | None = None) -> list[Event]:
        """Return the events of the next part, recorded at time `at` with sequence number `seq`."""
        match part:
            case Finish():
                self._usage = self._used(part.usage)
            case ToolApprovalRequest(is_external=True):
                self._external[self._chunks.tools.id_of(part.id)] = None
            case _:
                pass
        events = self._events(self._chunks.feed(part, at, seq))
        if isinstance(part, Raw):
            events.append(filled(type="RAW", event=with_urls(part.event, self._url_of), source=part.provider))
        return events

    def asked(self, approval: PendingApproval, at: float | None = None) -> list[Event]:
        """Add the details of a pending approval, whose request may come before or after them."""
        return self._events(self._chunks.asked(approval, at))

    def decided(self, approval_id: str, is_approved: bool, reason: str | None = None) -> list[Event]:
        """Return the events of a user's decision."""
        return self._events(self._chunks.decided(approval_id, is_approved, reason))

    def began(self, provider: str) -> list[Event]:
        """Record the run's provider."""
        return self._events(self._chunks.began(provider))

    def resumed(self, *, after_restart: bool = False) -> list[Event]:
        """Resume the turn, either in a new run after decisions or where another process stopped."""
        begun = self._begin() if self._is_over else []
        return [*begun, *self._events(self._chunks.resumed(after_restart=after_restart))]

    def cancelled(self, reason: str = "stopped") -> list[Event]:
        """End the run as cancelled."""
        return self._events(self._chunks.cancelled(reason))

    def failed(self, message: str) -> list[Event]:
        """End the run with an error."""
        return self._events(self._chunks.failed(message))

    def rejoined(self) -> list[Event]:
        """Return no events, because clients always read a run from its beginning."""
        return []

    def _events(self, chunks: list[Chunk]) -> list[Event]:
        events: list[Event] = []
        for chunk in chunks:
            kind: str = chunk["type"]
            handler = _HANDLERS.get(kind)
            if handler is not None:
                events += handler(self, chunk)
            elif kind.startswith("data-"):
                events.append(_custom(kind.removeprefix("data-"), chunk["data"]))
        return events

    # Runs and steps

    def start(self, chunk: Chunk) -> list[Event]:
        return self._begin()

    def _begin(self) -> list[Event]:
        self._is_over = False
        self._external = {}
        return [{"type": "RUN_STARTED", **self._ids, "protocolVersion": PROTOCOL_VERSION}]

    def finish(self, chunk: Chunk) -> list[Event]:
        finished = {"type": "RUN_FINISHED", **self._ids, "outcome": self._outcome(), "usage": self._usage}
        return self._unanswered_results() + self._end(finished)

    def abort(self, chunk: Chunk) -> list[Event]:
        return self._end({"type": "RUN_FINISHED", **self._ids, "outcome": {"type": "cancelled"}})

    def error(self, chunk: Chunk) -> list[Event]:
        return self._end({"type": "RUN_ERROR", "message": chunk["errorText"], "usage": self._usage})

    def _end(self, event: Event) -> list[Event]:
        self._is_over = True
        events = [*self._close(), *self._end_step()]
        return [*events, {key: value for key, value in event.items() if value != []}]

    def _unanswered_results(self) -> list[Event]:
        """Return results for calls without one, because clients would take those for calls to answer."""
        waiting = {one["toolCallId"] for one in self._approvals.values()} | self._external.keys()
        calls = {call: executed for call, executed in self._unanswered.items() if call not in waiting}
        ends = [event for call in calls if ("call", call) in self._open for event in _ENDS["call"](call)]
        for call in calls:
            self._open.pop(("call", call), None)
        return ends + [
            event
            for call, executed in calls.items()
            for event in self._result(call, "" if executed else NOT_MADE, None if executed else {"isError": True})
        ]

    def _outcome(self) -> JsonObject:
        if self._approvals:
            return {"type": "interrupt", "interrupts": [_interrupt(one) for one in self._approvals.values()]}
        return filled(type="success", pendingToolCallIds=list(self._external) or None)

    def step_start(self, chunk: Chunk) -> list[Event]:
        self._step += 1
        self._is_in_step = True
        self._parent, self._blocks = None, []
        return [{"type": "STEP_STARTED", "stepName": f"step {self._step}"}]

    def step_end(self, chunk: Chunk) -> list[Event]:
        return [*self._close(), *self._end_step()]

    def step_reset(self, chunk: Chunk) -> list[Event]:
        """Name the messages that the repeated step replaces, because AG-UI cannot retract them."""
        replaced = _custom("reset", {"messageIds": self._blocks})
        return [*self._close(), replaced, *self._end_step(), *self.step_start(chunk)]

    def _end_step(self) -> list[Event]:
        ended: list[Event] = [{"type": "STEP_FINISHED", "stepName": f"step {self._step}"}] if self._is_in_step else []
        self._is_in_step = False
        return ended

    def _close(self) -> list[Event]:
        """Return the events that end all open texts, reasoning and calls."""
        ends = [event for family, id in list(self._open) for event in _ENDS[family](id)]
        self._open = {}
        return ends

    # Text and reasoning

    def block_start(self, chunk: Chunk) -> list[Event]:
        family, id = _family(chunk), self._message(chunk)
        self._open[family, id] = None
        self._blocks.append(id)
        if family == "text":
            self._parent = id
            return [{"type": "TEXT_MESSAGE_START", "messageId": id, "role": "assistant"}]
        start = {"type": "REASONING_MESSAGE_START", "messageId": id, "role": "reasoning"}
        return [{"type": "REASONING_START", "messageId": id}, start]

    def block_delta(self, chunk: Chunk) -> list[Event]:
        kind = "TEXT_MESSAGE_CONTENT" if chunk["type"] == "text-delta" else "REASONING_MESSAGE_CONTENT"
        return [{"type": kind, "messageId": self._message(chunk), "delta": chunk["delta"]}] if chunk["delta"] else []

    def block_end(self, chunk: Chunk) -> list[Event]:
        family, id = _family(chunk), self._message(chunk)
        self._open.pop((family, id), None)
        details = as_object(as_object(chunk.get("providerMetadata")).get("sidestream"))
        final = [_custom("text", {"messageId": id, "text": details["text"]})] if "text" in details else []
        return [*final, *_ENDS[family](id)]

    def _message(self, chunk: Chunk) -> str:
        return f"{self._prefix}-{chunk['id']}"

    def steering(self, chunk: Chunk) -> list[Event]:
        """Convert a steering message."""
        text = "\n".join(part["text"] for part in chunk["parts"] if part["type"] == "text")
        files = [_custom("steer-file", part) for part in chunk["parts"] if part["type"] == "file"]
        id = {"messageId": chunk["id"]}
        return [
            {"type": "TEXT_MESSAGE_START", **id, "role": "user"},
            {"type": "TEXT_MESSAGE_CONTENT", **id, "delta": text},
            {"type": "TEXT_MESSAGE_END", **id},
            *files,
        ]

    # Tools

    def call_start(self, chunk: Chunk) -> list[Event]:
        call = chunk["toolCallId"]
        if self._parent is None:
            self._parent = f"{self._prefix}-s{self._step}"
            self._blocks.append(self._parent)
        self._open["call", call] = None
        self._written.discard(call)
        self._unanswered[call] = chunk.get("providerExecuted", False)
        start = {"type": "TOOL_CALL_START", "toolCallId": call, "toolCallName": chunk["toolName"]}
        marks = _marked({"providerExecuted": True} if self._unanswered[call] else None)
        return [{**start, "parentMessageId": self._parent, **marks}]

    def call_delta(self, chunk: Chunk) -> list[Event]:
        return self._arguments(chunk["toolCallId"], chunk["inputTextDelta"])

    def call(self, chunk: Chunk) -> list[Event]:
        call = chunk["toolCallId"]
        out = [] if ("call", call) in self._open else self.call_start(chunk)
        if call not in self._written:
            given = chunk["input"]
            out += self._arguments(call, given if isinstance(given, str) else jsontext.dumps(given).decode())
        self._open.pop(("call", call), None)
        return [*out, *_ENDS["call"](call)]

    def _arguments(self, call: str, delta: str) -> list[Event]:
        if not delta:
            return []
        self._written.add(call)
        return [{"type": "TOOL_CALL_ARGS", "toolCallId": call, "delta": delta}]

    def output(self, chunk: Chunk) -> list[Event]:
        call, output = chunk["toolCallId"], chunk["output"]
        if chunk.get("preliminary"):
            return [_custom("preview", {"toolCallId": call, "output": output})]
        return self._result(call, output if isinstance(output, str) else jsontext.dumps(output).decode())

    def output_error(self, chunk: Chunk) -> list[Event]:
        return self._result(chunk["toolCallId"], chunk["errorText"], {"isError": True})

    def denied(self, chunk: Chunk) -> list[Event]:
        call = chunk["toolCallId"]
        reason = self._reasons.get(call)
        return self._result(call, f"{DENIED} {reason}" if reason else DENIED, {"isError": True, "isDenied": True})

    def _result(self, call: str, content: str, marks: JsonObject | None = None) -> list[Event]:
        self._unanswered.pop(call, None)
        result = {"type": "TOOL_CALL_RESULT", "messageId": f"{call}-result", "toolCallId": call, "content": content}
        return [result | _marked(marks)]

    def activity(self, chunk: Chunk) -> list[Event]:
        content = {"toolCallId": chunk["data"]["call"], **chunk["data"]}
        id = f"{self._prefix}-{chunk['id']}-progress"
        kind = {"activityType": "sidestream.tool", "content": content, "replace": True}
        return [{"type": "ACTIVITY_SNAPSHOT", "messageId": id, **kind}]

    # Approvals

    def approval_request(self, chunk: Chunk) -> list[Event]:
        known = self._approvals.setdefault(chunk["approvalId"], {})
        known |= {"id": chunk["approvalId"], "toolCallId": chunk["toolCallId"]}
        return []

    def approval_data(self, chunk: Chunk) -> list[Event]:
        if (known := self._approvals.get(chunk["id"])) is not None:
            known["data"] = chunk["data"]
        return []

    def approval_response(self, chunk: Chunk) -> list[Event]:
        known = self._approvals.pop(chunk["approvalId"], {})
        if "toolCallId" in known and chunk.get("reason"):
            self._reasons[known["toolCallId"]] = chunk["reason"]
        return [_custom("approval", filled(**{key: chunk.get(key) for key in ("approvalId", "approved", "reason")}))]

    # The rest

    def run(self, chunk: Chunk) -> list[Event]:
        self._model |= {key: chunk["data"][key] for key in ("provider", "model") if key in chunk["data"]}
        return [_custom("run", chunk["data"])]

    def whole(self, chunk: Chunk) -> list[Event]:
        """Convert a source or a file."""
        name = "source" if chunk["type"].startswith("source-") else "file"
        fields = {key: value for key, value in chunk.items() if key not in ("type", "providerMetadata")}
        details = as_object(as_object(chunk.get("providerMetadata")).get("sidestream"))
        return [_custom(name, {**details, **fields})]

    def custom(self, chunk: Chunk) -> list[Event]:
        details = as_object(as_object(chunk.get("providerMetadata")).get("sidestream"))
        return [{"type": "CUSTOM", "name": chunk["kind"], "value": details.get("data")}]

    def _used(self, usage: Usage) -> list[JsonObject]:
        return [] if usage.is_empty else [{**self._model, **tokens(usage)}]


def _family(chunk: Chunk) -> str:
    return chunk["type"].partition("-")[0]


def _custom(name: str, value: Json) -> Event:
    return {"type": "CUSTOM", "name": f"sidestream.{name}", "value": value}


def _marked(marks: JsonObject | None) -> JsonObject:
    return {} if marks is None else {"metadata": {"sidestream": marks}}


def _interrupt(approval: JsonObject) -> JsonObject:
    data = as_object(approval.get("data"))
    form, expires = as_object(data.get("form")), data.get("expires")
    schema = DECISION_SCHEMA
    if "schema" in form:
        schema = {**DECISION_SCHEMA, "properties": {**DECISION_SCHEMA["properties"], "answers": form["schema"]}}
    return filled(
        id=approval["id"],
        reason="input_required" if form else "tool_call",
        message=form.get("message") or data.get("origin"),
        toolCallId=approval["toolCallId"],
        responseSchema=schema,
        expiresAt=None if expires is None else datetime.fromtimestamp(expires, UTC).isoformat(),
        metadata={"sidestream": data},
    )


_ENDS: dict[str, Callable[[str], list[Event]]] = {
    "text": lambda id: [{"type": "TEXT_MESSAGE_END", "messageId": id}],
    "reasoning": lambda id: [
        {"type": "REASONING_MESSAGE_END", "messageId": id},
        {"type": "REASONING_END", "messageId": id},
    ],
    "call": lambda id: [{"type": "TOOL_CALL_END", "toolCallId": id}],
}
"""Family → events that end it."""


_HANDLERS: dict[str, Callable[[AGUIEncoder, Any], list[Event]]] = {
    "start": AGUIEncoder.start,
    "start-step": AGUIEncoder.step_start,
    "finish-step": AGUIEncoder.step_end,
    "reset-step": AGUIEncoder.step_reset,
    "finish": AGUIEncoder.finish,
    "abort": AGUIEncoder.abort,
    "error": AGUIEncoder.error,
    "text-start": AGUIEncoder.block_start,
    "text-delta": AGUIEncoder.block_delta,
    "text-end": AGUIEncoder.block_end,
    "reasoning-start": AGUIEncoder.block_start,
    "reasoning-delta": AGUIEncoder.block_delta,
    "reasoning-end": AGUIEncoder.block_end,
    "steering-message": AGUIEncoder.steering,
    "tool-input-start": AGUIEncoder.call_start,
    "tool-input-delta": AGUIEncoder.call_delta,
    "tool-input-available": AGUIEncoder.call,
    "tool-input-error": AGUIEncoder.call,
    "tool-output-available": AGUIEncoder.output,
    "tool-output-error": AGUIEncoder.output_error,
    "tool-output-denied": AGUIEncoder.denied,
    "tool-approval-request": AGUIEncoder.approval_request,
    "tool-approval-response": AGUIEncoder.approval_response,
    "source-url": AGUIEncoder.whole,
    "source-document": AGUIEncoder.whole,
    "file": AGUIEncoder.whole,
    "custom": AGUIEncoder.custom,
    "data-run": AGUIEncoder.run,
    "data-tool": AGUIEncoder.activity,
    "data-approval": AGUIEncoder.approval_data,
}
"""Chunk type → handler. Other `data-*` chunks become `CUSTOM` events unchanged."""
