"""Encoder of a run as the AI SDK's UI message stream, version 1, which an unmodified `useChat` can read.

    encoder = UIMessageEncoder("msg_1")
    async for part in agent.stream(prompt):
        for chunk in encoder.feed(part): ...        # one `data:` frame each, then `data: [DONE]`

The encoder is a pure fold of the part stream. All runs of a turn become one message. What the protocol has no chunk
for is sent as `data-*` parts: `data-run`, `data-step`, `data-tool`, `data-approval`, `data-steer`, `data-notice`,
`data-waiting` while the run waits, `data-call` for the calls of subagents, and transient `data-code` for the code of
tools while it is written.
"""

from collections.abc import Callable
from typing import Any, Final

from msgspec import convert
from msgspec.structs import replace

from sidestream import jsontext, parts
from sidestream.jsontext import Json, JsonObject
from sidestream.messages.fold import APPROVAL_DECIDED
from sidestream.messages.message import Content, TextPart
from sidestream.protocols.ai_sdk.agents import AgentChunks
from sidestream.protocols.ai_sdk.blocks import BlockChunks
from sidestream.protocols.ai_sdk.content import (
    UrlOf,
    data_part,
    error_fields,
    filled,
    tokens,
    url_of_file,
    user_parts,
    with_urls,
)
from sidestream.protocols.ai_sdk.tools import ToolChunks
from sidestream.results.content import is_hit
from sidestream.stream.errors import redacted
from sidestream.tools.approvals import PendingApproval
from sidestream.tools.grants import CALL_GRANTED
from sidestream.transport.waits import WAITING

UI_MESSAGE_HEADERS: Final = {
    "Content-Type": "text/event-stream",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
    "X-Vercel-AI-UI-Message-Stream": "v1",
}
"""Headers for a response with this stream."""
DONE: Final = b"data: [DONE]\n\n"

FINISH_REASONS: Final = {
    "stop": "stop",
    "length": "length",
    "content-filter": "content-filter",
    "tool-calls": "tool-calls",
    "approval": "tool-calls",
    "limit": "other",
    "error": "error",
    "other": "other",
}
"""Our finish reason → the AI SDK's. `data-run` has the exact one."""
_STATUSES = {"approval": "waiting", "error": "failed"}
"""Finish reason → status of the run in the log. Other reasons mean complete."""

MAX_CUSTOM_BYTES = 4096
"""Maximum bytes of a provider-specific part's data that are forwarded. The log keeps all of it."""

Chunk = JsonObject


class UIMessageEncoder:
    """An encoder of one turn's parts, and of the few state transitions that no part reports, as chunks.

    `url_of` returns the URLs of blobs, if records were read without them; otherwise files become `data:` URLs.
    `steering` means that the client understands `steering-message` (`ai` 7.0.163); older clients fail on it. Approvals
    expire `approval_s` seconds after their request; None means never.
    """

    def __init__(
        self,
        message_id: str | None = None,
        *,
        run: str | None = None,
        url_of: UrlOf | None = None,
        steering: bool = False,
        approval_s: float | None = None,
    ) -> None:
        self.message_id = message_id
        self.blocks = BlockChunks()
        self.tools = ToolChunks(url_of, approval_s)
        self._agents = AgentChunks(self.tools, url_of)
        self._run: JsonObject = filled(run=run, status="running")
        self._url_of = url_of
        self._has_steering = steering
        self._is_started = False
        self._is_in_step = False
        self._is_reset = False
        """Whether a `reset-step` was emitted and the repeated step has not begun."""
        self._step = -1
        """Index of the last step that began; -1 means none."""
        self._began: float | None = None
        self._step_began: float | None = None
        self._at: float | None = None
        self._notices = 0
        self._unknown = 0
        self._error: str | None = None
        self._wait: JsonObject | None = None
        """The wait that is not over."""

    def feed(self, part: parts.StreamPart, at: float | None = None, seq: int | None = None) -> list[Chunk]:
        """Return the chunks of the next part.

        `at` is the part's time in seconds since 1970, `seq` the sequence number of its record.
        """
        if at is not None:
            self._began = at if self._began is None else self._began
            self._at = at
            self.tools.at, self.tools.now = at - self._began, at
        if seq is not None:
            self._run["seq"] = self.tools.seq = seq
        return _HANDLERS[type(part)](self, part)

    def asked(self, approval: PendingApproval, at: float | None = None) -> list[Chunk]:
        """Add the details of an approval pending since `at`, whose request may come before or after them."""
        return self.tools.pending(approval, at, list(self.blocks.read))

    def decided(self, approval_id: str, is_approved: bool, reason: str | None = None) -> list[Chunk]:
        """Return the chunks of a user's decision."""
        return self._decided(approval_id, is_approved, reason)

    def began(self, provider: str) -> list[Chunk]:
        """Record the run's provider, which no part names if the first request fails."""
        self._run.setdefault("provider", provider)
        self.tools.provider = self._run["provider"]
        return []

    def resumed(self, *, after_restart: bool = False) -> list[Chunk]:
        """Resume the turn, resetting an interrupted step because it will be repeated."""
        self._run["status"] = "running"
        out = [*self._waited(), *(self._begin() if after_restart else ())]
        step = self._step if self._is_in_step else self._step + 1
        if self._is_in_step:
            self._end_step()
            self._is_reset = True
            out.append({"type": "reset-step"})
        if after_restart:
            out += self._notice("restart", f"Server restarted; run resumed at step {step + 1}")
        return out

    def cancelled(self, reason: str = "stopped") -> list[Chunk]:
        """End the message of a stopped run."""
        out = [*self._begin(), *self._waited(), *self._close(), *self.tools.cut_off(), *self._agents.cut_off()]
        self._run["status"] = "cancelled"
        return [*out, self._run_data(), {"type": "abort", "reason": reason}]

    def failed(self, message: str) -> list[Chunk]:
        """End the message with an error."""
        return [*self._begin(), *self._close(), {"type": "error", "errorText": message}]

    def rejoined(self) -> list[Chunk]:
        """Return chunks that reopen all open blocks and inputs, for a client that has everything so far.

        A block gets another id and keeps its name in `providerMetadata.sidestream.block`, so that the UI can join them.
        """
        if not self._is_started:
            return []
        start = filled(type="start", messageId=self.message_id)
        return [start, *self.blocks.reopened(), *self.tools.reopened(), *self._agents.reopened()]

    # Beginnings and ends

    def _begin(self) -> list[Chunk]:
        if self._is_started:
            return []
        self._is_started = True
        metadata = filled(run=self._run.get("run"), createdAt=self._began)
        start = filled(type="start", messageId=self.message_id, messageMetadata=metadata or None)
        return [start, self._run_data()]

    def on_stream_start(self, part: parts.StreamStart) -> list[Chunk]:
        out = self._begin()
        return [*out, *(chunk for warning in part.warnings for chunk in self._notice("warning", warning))]

    def on_metadata(self, part: parts.ResponseMetadata) -> list[Chunk]:
        known = filled(model=part.model, provider=part.provider)
        if known.items() <= self._run.items():
            return []
        self._run |= known
        self.tools.provider = self._run.get("provider", self.tools.provider)
        return [*self._begin(), self._run_data()]

    def on_step_start(self, part: parts.StepStart) -> list[Chunk]:
        self.tools.states(part)
        out = self._begin()
        if not self._is_reset:
            out.append({"type": "start-step"})
        self._is_in_step, self._is_reset = True, False
        self._step, self._step_began = part.step, self._at
        self.blocks.step = part.step
        return out

    def on_step_finish(self, part: parts.StepFinish) -> list[Chunk]:
        step = data_part(
            "step",
            f"s{part.step}",
            step=part.step,
            reason=part.reason,
            usage=tokens(part.usage),
            cost=part.usage.cost,
            ms=self._ms(self._step_began),
        )
        self.tools.states(part)
        out = self._close(step, self._run_data())
        self._end_step()
        return out

    def on_finish(self, part: parts.Finish) -> list[Chunk]:
        out = [*self._begin(), *self._waited(), *self._close(), *self.tools.states(part)]
        self._run |= filled(
            status=_STATUSES.get(part.reason, "complete"),
            reason=part.reason,
            cost=part.usage.cost,
            unknown=self._unknown or None,
            limit=part.metadata.get("limit"),
            ms=self._ms(self._began),
        )
        out.append(self._run_data())
        metadata = filled(
            model=self._run.get("model"), usage=tokens(part.usage), cost=part.usage.cost, reason=part.reason
        )
        if self._error is not None:
            failure = {"type": "error", "errorText": self._error}
            return [*out, {"type": "message-metadata", "messageMetadata": metadata}, failure]
        return [*out, {"type": "finish", "finishReason": FINISH_REASONS[part.reason], "messageMetadata": metadata}]

    def _close(self, *data: Chunk) -> list[Chunk]:
        """End the open blocks and the step, with `data` between them."""
        out = [*self.blocks.close(), *data]
        if self._is_in_step:
            out.append({"type": "finish-step"})
        self._is_in_step = False
        return out

    def _end_step(self) -> None:
        self.blocks.end_step()
        self.tools.end_step()

    # Files, steering, notices and other parts

    def on_file(self, part: parts.File) -> list[Chunk]:
        if part.call_id is not None:
            part = replace(part, call_id=self._agents.owner_of(part.call_id))
        call = self.tools.id_of(part.call_id) if part.call_id is not None else None
        details = filled(id=part.id, name=part.name, tool=part.tool, call=call)
        if part.url is not None and is_hit(part):
            page = {"sidestream": {**details, "kind": "page"}}
            return [filled(type="source-url", sourceId=part.id, url=part.url, title=part.name, providerMetadata=page)]
        url = url_of_file(part, self._url_of)
        chunk = {"type": "file", "url": url, "mediaType": part.mime_type, "providerMetadata": {"sidestream": details}}
        return [*self.tools.states(part), chunk]

    def on_steer(self, part: parts.Steer) -> list[Chunk]:
        step = self._step + 1 if part.status == "applied" else None
        fields = filled(id=part.id, status=part.status, text=part.text, step=step, reason=part.reason)
        state = data_part("steer", part.id, **fields)
        if part.status != "applied" or not self._has_steering:
            return [state]
        content = convert(part.content, tuple[Content, ...]) if part.content else (TextPart(part.text),)
        return [state, {"type": "steering-message", "id": part.id, "parts": user_parts(content, self._url_of)}]

    def on_custom(self, part: parts.Custom) -> list[Chunk]:
        data = jsontext.as_object(part.data)
        if part.kind == APPROVAL_DECIDED:
            is_automatic, approval = data.get("is_automatic") is True, str(data.get("approval_id"))
            is_approved = data.get("is_approved") is True
            return self._decided(approval, is_approved, data.get("reason"), is_automatic=is_automatic)
        if part.kind == CALL_GRANTED:
            nested = self._agents.program(part)
            return self.tools.states(part) if nested is None else nested
        if part.kind == WAITING:
            self._wait = None if data.get("over") is True else data
            return [*self._begin(), data_part("waiting", "waiting", **data)]
        vendor, _, name = part.kind.partition(".")
        message = data.get("message")
        if vendor == "sidestream" and isinstance(message, str):
            return self._notice(name, message)
        chunk: Chunk = {"type": "custom", "kind": part.kind}
        if part.data is not None and len(jsontext.dumps(part.data)) <= MAX_CUSTOM_BYTES:
            chunk["providerMetadata"] = {"sidestream": {"data": with_urls(part.data, self._url_of)}}
        return [chunk]

    def _decided(
        self, approval_id: str, is_approved: bool, reason: str | None, *, is_automatic: bool = False
    ) -> list[Chunk]:
        nested = self._agents.decided(approval_id, is_approved, reason)
        return [*self.tools.decided(approval_id, is_approved, reason, is_automatic=is_automatic), *nested]

    def on_call(self, part: parts.ToolCall) -> list[Chunk]:
        nested = self._agents.program(part)
        return self.tools.call(part) if nested is None else nested

    def on_result(self, part: parts.ToolResult) -> list[Chunk]:
        nested = self._agents.program(part)
        return self.tools.result(part) if nested is None else nested

    def on_tool_event(self, part: parts.ToolEvent) -> list[Chunk]:
        forwarded = self._agents.program(part)
        if forwarded is None:
            forwarded = self._agents.event(part)
        return self.tools.event(part) if forwarded is None else forwarded

    def on_raw(self, part: parts.Raw) -> list[Chunk]:
        self._unknown += 1
        return []

    def on_error(self, part: parts.Error) -> list[Chunk]:
        part = redacted(part)
        if part.kind != "tool":
            self._error = part.message
        return self._notice("error" if part.kind != "tool" else "tool", part.message, error=error_fields(part))

    def _notice(self, kind: str, words: str, **more: Json) -> list[Chunk]:
        self._notices += 1
        return [data_part("notice", f"n{self._notices}", kind=kind, words=words, **more)]

    def _waited(self) -> list[Chunk]:
        """End a wait whose end was not reported, such as one in a queue or in a process that was killed."""
        wait, self._wait = self._wait, None
        return [] if wait is None else [data_part("waiting", "waiting", **{**wait, "over": True})]

    def _run_data(self) -> Chunk:
        return {"type": "data-run", "id": "run", "data": dict(self._run)}

    def _ms(self, since: float | None) -> int | None:
        return None if since is None or self._at is None else round((self._at - since) * 1000)


_HANDLERS: dict[type, Callable[[UIMessageEncoder, Any], list[Chunk]]] = {
    parts.StreamStart: UIMessageEncoder.on_stream_start,
    parts.ResponseMetadata: UIMessageEncoder.on_metadata,
    parts.TextStart: lambda encoder, part: encoder.blocks.start(part),
    parts.TextDelta: lambda encoder, part: encoder.blocks.delta(part),
    parts.TextEnd: lambda encoder, part: encoder.blocks.end(part),
    parts.ReasoningStart: lambda encoder, part: encoder.blocks.start(part),
    parts.ReasoningDelta: lambda encoder, part: encoder.blocks.delta(part),
    parts.ReasoningEnd: lambda encoder, part: encoder.blocks.end(part),
    parts.ToolInputStart: lambda encoder, part: encoder.tools.input_start(part),
    parts.ToolInputDelta: lambda encoder, part: encoder.tools.input_delta(part),
    parts.ToolInputEnd: lambda encoder, part: encoder.tools.input_end(part),
    parts.ToolCall: UIMessageEncoder.on_call,
    parts.ToolEvent: UIMessageEncoder.on_tool_event,
    parts.ToolResult: UIMessageEncoder.on_result,
    parts.ToolApprovalRequest: lambda encoder, part: encoder.tools.request(part, list(encoder.blocks.read)),
    parts.Source: lambda encoder, part: encoder.blocks.source(part),
    parts.File: UIMessageEncoder.on_file,
    parts.Custom: UIMessageEncoder.on_custom,
    parts.Raw: UIMessageEncoder.on_raw,
    parts.Steer: UIMessageEncoder.on_steer,
    parts.StepStart: UIMessageEncoder.on_step_start,
    parts.StepFinish: UIMessageEncoder.on_step_finish,
    parts.Error: UIMessageEncoder.on_error,
    parts.Finish: UIMessageEncoder.on_finish,
}
"""Part type → handler."""
