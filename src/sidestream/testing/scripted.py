"""An in-process model that answers from a script or a function, without a socket.

model = ScriptedModel([tool_call("get_weather", city="Oslo"), "It is sunny."])
with agent.override(model=model):
    ...
"""

import asyncio
import inspect
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, cast

import msgspec
from msgspec import Struct

from sidestream import jsontext
from sidestream.errors import ConfigurationError, GrammarError, ProviderError, RunError
from sidestream.jsontext import dumps
from sidestream.limits import Limits
from sidestream.messages import message
from sidestream.messages.message import ChatMessage
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
from sidestream.providers.protocol import Decoder, Encoded, FileRef, ModelRequest, Recovery
from sidestream.providers.registry import providers
from sidestream.providers.shared.decoding import DecoderState, ResponseDecoder, input_fields, truncated
from sidestream.providers.shared.hosting import require_hosted
from sidestream.replay.provider import decoder_of
from sidestream.replay.recording import Exchange, RecordedRequest, RecordedResponse
from sidestream.stream import grammar
from sidestream.testing.replies import ScriptBuilder, encode_events, words
from sidestream.tools.server_side import ServerSideTool
from sidestream.transport.calls import HttpCall, HttpResponse, Transport
from sidestream.wire.sse import Splitter

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


ModelReply = ReplyItem | Sequence[ReplyItem] | ChatMessage | ScriptBuilder | ScriptedReply
"""One reply of a scripted model."""
Respond = Callable[[ModelRequest], ModelReply | Awaitable[ModelReply]]
"""A function from the request to the reply, sync or async."""


class ScriptedModel:
    """A model that answers from a script or a function, in this process.

    ```python
    model = ScriptedModel([tool_call("stock", item="lamp"), "There are 7 lamps."])
    result = await Agent(model, tools=[stock]).send("How many lamps do we have?")
    assert result.output == "There are 7 lamps."
    ```

    Each entry of the script answers one request. It is a string, a `tool_call`, an error, a list of such items, a
    script builder such as `ResponsesScript()`, or a function from the request to one of these. A function in place of
    the script answers every request. `requests` holds the received requests, `files` the files that its tools have
    created, by id, and `context_window` the number of tokens the model claims to read.

    `hosts` are the server-side tools that the model claims to host. None means those of the providers whose script
    builders are in the script. All other tools run locally, as with any model that does not host them.
    """

    provider = PROVIDER

    def __init__(
        self,
        script: Iterable[ModelReply | Respond] | Respond,
        *,
        name: str = "model",
        files: Mapping[str, bytes] | None = None,
        context_window: int | None = None,
        hosts: Collection[type[ServerSideTool]] | None = None,
    ) -> None:
        if isinstance(script, str | ScriptBuilder | ScriptedReply | ChatMessage):
            raise ConfigurationError("script must be a list with one entry per request: ScriptedModel([reply, …])")
        self.name = name
        self.context_window = context_window
        self.requests: list[ModelRequest] = []
        self._respond = script if callable(script) else None
        self._script = deque[ModelReply | Respond](() if callable(script) else script)
        self._hosts = set[type[ServerSideTool]](hosts or ())
        self._hosts_fixed = hosts is not None
        self._note_hosts(self._script)
        self._files = dict(files or {})
        """Contents of files that tools created, by file id."""

    def __repr__(self) -> str:
        return f"ScriptedModel({len(self.requests)} requests, {len(self._script)} replies left)"

    def add(self, *replies: ModelReply | Respond) -> None:
        """Append to the script."""
        self._script.extend(replies)
        self._note_hosts(replies)

    @property
    def hosted_tools(self) -> frozenset[type[ServerSideTool]]:
        """The server-side tools that the model claims to host."""
        return frozenset(self._hosts)

    @property
    def remaining(self) -> int:
        """The number of replies not used yet."""
        return len(self._script)

    def encode(self, request: ModelRequest) -> Encoded:
        """Wrap the request, whose reply is chosen when it is sent.

        Raises NotHostedError for a server-side tool that the model does not host.
        """
        require_hosted(request.server_side_tools, self._hosts, "this ScriptedModel")
        exchange = _Exchange(request)
        return Encoded(
            call=_Call(url=f"{PROVIDER}:", stream=request.stream, exchange=exchange), decoder=exchange.decoder
        )

    def recover(self, error: RunError) -> Recovery | None:
        """Return None, because a scripted error is final."""
        return None

    def download(self, ref: FileRef) -> HttpCall:
        """Return the call that downloads one of `files`."""
        return HttpCall(method="GET", url=f"{PROVIDER}:{ref.id}")

    def transport(self) -> Transport:
        """Return a transport that passes requests to this model."""
        return _Transport(self._reply_to, self._files)

    def _note_hosts(self, replies: Iterable[ModelReply | Respond]) -> None:
        """Claim the tools of the providers whose responses the script holds."""
        if not self._hosts_fixed:
            for path in {reply.path for reply in replies if isinstance(reply, ScriptBuilder)}:
                self._hosts |= providers()[_decoder_at(path)[0]].server_side_tools

    async def _reply_to(self, request: ModelRequest) -> ModelReply:
        self.requests.append(request)
        if self._respond is None and not self._script:
            raise ConfigurationError(
                f"the script has no reply left for request {len(self.requests)}; add one to ScriptedModel([…])"
            )
        entry = self._respond if self._respond is not None else self._script.popleft()
        reply = entry(request) if callable(entry) else entry
        return await reply if inspect.isawaitable(reply) else reply


class _Exchange:
    """A request, and the decoder for its reply once that is known."""

    def __init__(self, request: ModelRequest) -> None:
        self.request = request
        self.decoder_of_reply: Callable[[], Decoder] = PartsDecoder

    def decoder(self) -> Decoder:
        return self.decoder_of_reply()


class _Call(HttpCall, frozen=True, kw_only=True):
    exchange: _Exchange


class _Transport:
    def __init__(self, reply_to: Callable[[ModelRequest], Awaitable[ModelReply]], files: Mapping[str, bytes]) -> None:
        self._reply_to = reply_to
        self._files = files
        self._count = 0

    async def open(self, call: HttpCall, limits: Limits) -> HttpResponse:
        if not isinstance(call, _Call):
            raise ConfigurationError(f"a scripted model answers only its own requests, not {call!r}")
        exchange = call.exchange
        self._count += 1
        reply = await self._reply_to(exchange.request)
        if isinstance(reply, ScriptBuilder):
            exchange.decoder_of_reply = lambda: _decoder_of(reply)
            return _Response(*_wire_of(reply, limits), is_stream=call.stream)
        script = script_of(_as_reply(reply), exchange.request, self._count)
        events = [item if isinstance(item, Exception | asyncio.Event) else dumps(item) for item in script]
        # The first part only identifies the response, so an error right after it replaces the response.
        if isinstance(events[1], Exception):
            raise events[1]
        return _Response(events, None, is_stream=call.stream)

    async def download(self, call: HttpCall, limits: Limits) -> bytes:
        identity = call.url.removeprefix(f"{PROVIDER}:")
        if identity not in self._files:
            raise ProviderError(f"ScriptedModel(files=…) has no file {identity!r}", status=404, code="not-scripted")
        return self._files[identity]


class _Response:
    """A reply that is being read. An error among its events ends it there."""

    status = 200
    headers: Mapping[str, str] = {}

    def __init__(
        self, events: Sequence[bytes | Exception | asyncio.Event], whole: bytes | None, *, is_stream: bool
    ) -> None:
        self.is_stream = is_stream
        self._events = deque(events)
        self._whole = whole
        self._gate: asyncio.Task[bool] | None = None

    async def events(self) -> list[bytes]:
        await asyncio.sleep(0)  # Yield to other tasks, as reading from a socket would.
        while self._events:
            event = self._events.popleft()
            if isinstance(event, bytes):
                return [event]
            await self._take(event)
        return []

    def ignored(self) -> None:
        """Do nothing, because there is no idle timeout."""

    async def body(self) -> bytes:
        if self._whole is not None:
            return self._whole
        parts: list[bytes] = []
        while self._events:
            event = self._events.popleft()
            if isinstance(event, bytes):
                parts.append(event)
            else:
                await self._take(event)
        return b"[%b]" % b",".join(parts)

    async def aclose(self) -> None:
        self._events.clear()
        if self._gate is not None:
            self._gate.cancel()

    complete = aclose

    async def _take(self, event: Exception | asyncio.Event) -> None:
        """Raise an error, or wait until a gate opens or the response is closed."""
        if isinstance(event, Exception):
            raise event
        self._gate = asyncio.create_task(event.wait())
        try:
            await asyncio.wait([self._gate])
        finally:
            self._gate.cancel()


def _as_reply(reply: Any) -> ScriptedReply:
    match reply:
        case ScriptedReply():
            return reply
        case ChatMessage():
            return ScriptedReply(reply.parts, metadata=reply.metadata)
        case list() | tuple():
            return ScriptedReply(cast("Sequence[ReplyItem]", reply))
        case _:
            return ScriptedReply((reply,))


def _wire_of(script: ScriptBuilder, limits: Limits) -> tuple[list[bytes], bytes]:
    """Return a builder's reply as its events' data and as one body."""
    splitter = Splitter(limits.max_event_bytes)
    reply = script.reply()
    return [*splitter.feed(encode_events(reply.body)), *splitter.flush()], dumps(reply.whole)


def _decoder_of(script: ScriptBuilder) -> Decoder:
    """Return the decoder of the provider whose API the builder scripts."""
    return _decoder_at(script.path)[1]


def _decoder_at(path: str) -> tuple[str, Decoder]:
    """Return the provider whose API has this path, and a decoder of its responses."""
    found = decoder_of(Exchange(RecordedResponse(), RecordedRequest("POST", path, {})))
    assert found is not None
    return found
