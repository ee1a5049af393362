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

from sidestream.errors import ConfigurationError, ProviderError, RunError
from sidestream.jsontext import dumps
from sidestream.limits import Limits
from sidestream.messages.message import ChatMessage
from sidestream.providers.protocol import Decoder, Encoded, FileRef, ModelRequest, Recovery
from sidestream.providers.registry import providers
from sidestream.providers.shared.hosting import require_hosted
from sidestream.replay.provider import decoder_of
from sidestream.replay.recording import Exchange, RecordedRequest, RecordedResponse
from sidestream.testing.replies import ScriptBuilder, encode_events
from sidestream.testing.scripted_parts import PROVIDER, PartsDecoder, ReplyItem, ScriptedReply, script_of
from sidestream.tools.server_side import ServerSideTool
from sidestream.transport.calls import HttpCall, HttpResponse, Transport
from sidestream.wire.sse import Splitter

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
