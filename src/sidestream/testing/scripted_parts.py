"""Conversion of a scripted reply's items to parts, and the decoder for them."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from sidestream import jsontext
from sidestream.errors import ConfigurationError, GrammarError
from sidestream.messages import message
from sidestream.messages.tokens import message_tokens, text_tokens
from sidestream.parts import (
    Error,
    File,
    Finish,
    FinishReason,
    InputUsage,
    Json,
    OutputUsage,
    ReasoningDelta,
    ReasoningEnd,
    ReasoningStart,
    ResponseMetadata,
    StepFinish,
    StepOutcome,
    StepStart,
    StreamPart,
    StreamStart,
    TextDelta,
    TextEnd,
    TextStart,
    ToolApprovalRequest,
    ToolCall,
    ToolInputDelta,
    ToolInputEnd,
    ToolInputStart,
    Usage,
)
from sidestream.providers.protocol import ModelRequest
from sidestream.providers.shared.decoding import DecoderState, ResponseDecoder, input_fields, truncated
from sidestream.stream import grammar
from sidestream.testing.replies import words

ReplyItem = str | Mapping[str, Any] | message.MessagePart | StreamPart | Exception | asyncio.Event
"""A string, a JSON object sent as text, a part of a message or of the stream, an error, or an event to wait for."""

PROVIDER = "scripted"


class ScriptedReply(Struct, frozen=True):
    """A scripted reply with its own usage, reason, id or metadata: `ScriptedReply(["cut sh"], reason="length")`."""

    items: Sequence[ReplyItem]
    usage: Usage | None = None
    """Token usage. None means an estimate."""
    reason: FinishReason | None = None
    """Finish reason. None means `tool-calls` or `approval` if there are any, else `stop`."""
    id: str | None = None
    metadata: Mapping[str, Json] = {}
    """Metadata of the model's message."""


def tool_call(name: str, /, **input: Any) -> message.ToolCallPart:
    """Create a client tool call for a scripted reply. Its id is assigned when it is sent."""
    return message.ToolCallPart("", name, input)


def script_of(reply: ScriptedReply, request: ModelRequest, number: int) -> list[StreamPart | Exception | asyncio.Event]:
    """Return a reply's parts, errors and events up to its `finish`. Raises ConfigurationError if they are illegal."""
    script: list[StreamPart | Exception | asyncio.Event] = [
        ResponseMetadata(reply.id or f"scripted_{number}", PROVIDER, provider=PROVIDER)
    ]
    for place, item in enumerate(reply.items):
        script += _parts_of(item, f"{number}_{place}")
    parts = [part for part in script if not isinstance(part, Exception | asyncio.Event)]
    if not isinstance(parts[-1], Finish):
        outcome = StepOutcome(message_metadata=dict(reply.metadata))
        script.append(Finish(_reason(reply, parts), reply.usage or _usage(request, parts), outcome=outcome))
    _check(script)
    return script


class PartsDecoder(ResponseDecoder[DecoderState]):
    """The decoder of a scripted model, which sends parts as JSON, including internal fields."""

    def __init__(self) -> None:
        super().__init__(DecoderState(PROVIDER))
        self._open: dict[str, StreamPart] = {}
        """End parts of the open blocks."""

    def _read_event(self, s: DecoderState, event: Any) -> None:
        self._take(s, msgspec.convert(event, StreamPart))

    def _read_whole(self, s: DecoderState, answer: Any) -> Error | None:
        for event in jsontext.as_list(answer):
            self._take(s, msgspec.convert(event, StreamPart))
        return None

    def _take(self, s: DecoderState, part: StreamPart) -> None:
        match part:
            case TextStart():
                self._open[f"text {part.id}"] = TextEnd(part.id)
            case ReasoningStart():
                self._open[f"reasoning {part.id}"] = ReasoningEnd(part.id)
            case ToolInputStart():
                self._open[f"input {part.id}"] = ToolInputEnd(part.id)
            case TextEnd():
                del self._open[f"text {part.id}"]
            case ReasoningEnd():
                del self._open[f"reasoning {part.id}"]
            case ToolInputEnd():
                del self._open[f"input {part.id}"]
            case Finish():
                s.is_over = True
            case _:
                pass
        s.out.append(part)

    def _end(self, s: DecoderState, error: Error | None) -> None:
        s.out += self._open.values()
        s.end_with_error(error or truncated(), Usage())


def _parts_of(item: ReplyItem, identity: str) -> Iterable[StreamPart | Exception | asyncio.Event]:
    match item:
        case str():
            return _text(item, identity)
        case message.TextPart():
            return _text(item.text, item.id or identity)
        case Mapping():
            return _text(jsontext.dumps(item).decode(), identity)
        case message.ThinkingPart():
            block = item.id or identity
            deltas = [ReasoningDelta(block, word) for word in words(item.text)]
            return [ReasoningStart(block), *deltas, ReasoningEnd(block)]
        case message.ToolCallPart():
            return _call(item, item.id or f"call_{identity}")
        case message.DataPart():
            return [File(f"file_{identity}", item.mime_type, item.name, item.data)]
        case message.LinkPart():
            return [File(f"file_{identity}", item.mime_type or "application/octet-stream", item.name, url=item.url)]
        case message.ToolResultPart() | message.ApprovalPart():
            raise ConfigurationError(f"a model cannot send a {type(item).__name__}; it belongs in the next request")
        case Error():
            return [item, Finish("error", Usage(), item.kind)]
        case _:
            return [item]


def _text(text: str, block: str) -> list[StreamPart]:
    return [TextStart(block), *(TextDelta(block, word) for word in words(text)), TextEnd(block)]


def _call(call: message.ToolCallPart, call_id: str) -> list[StreamPart]:
    text = call.input_text if call.input_text is not None else jsontext.dumps(call.input).decode()
    deltas = [ToolInputDelta(call_id, word) for word in words(text)]
    parts: list[StreamPart] = [ToolInputStart(call_id, call.name, False), *deltas, ToolInputEnd(call_id)]
    return [*parts, ToolCall(call_id, call.name, call.name, False, **input_fields(text))]


def _reason(reply: ScriptedReply, parts: Sequence[StreamPart]) -> FinishReason:
    if reply.reason is not None:
        return reply.reason
    if any(isinstance(part, ToolCall) and not part.provider_executed for part in parts):
        return "tool-calls"
    return "approval" if any(isinstance(part, ToolApprovalRequest) for part in parts) else "stop"


def _usage(request: ModelRequest, parts: Sequence[StreamPart]) -> Usage:
    tools = sum(text_tokens(jsontext.dumps(tool).decode()) for tool in request.tools)
    sent = message_tokens(request.messages) + text_tokens(request.system or "") + tools
    text = text_tokens("".join(part.delta for part in parts if isinstance(part, TextDelta | ToolInputDelta)))
    reasoning = text_tokens("".join(part.delta for part in parts if isinstance(part, ReasoningDelta)))
    return Usage(InputUsage(sent, sent), OutputUsage(text + reasoning, text, reasoning))


def _check(script: Sequence[StreamPart | Exception | asyncio.Event]) -> None:
    """Check that a model could send these parts. Raises ConfigurationError if not."""
    parts = [part for part in script if not isinstance(part, Exception | asyncio.Event)]
    finish = parts.pop()
    assert isinstance(finish, Finish)
    step = [StreamStart(()), StepStart(0), *parts, StepFinish(0, finish.reason, finish.usage)]
    try:
        grammar.check([*step, Finish("error" if finish.reason == "error" else "stop", finish.usage)])
    except GrammarError as error:
        raise ConfigurationError(f"the scripted reply is not a legal step: {error}") from error
