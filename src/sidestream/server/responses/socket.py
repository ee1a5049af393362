"""The WebSocket of the Responses API, with multiplexed streams and steering of responses in progress."""

import asyncio
import re
from collections.abc import Mapping
from contextlib import aclosing, suppress

from starlette.websockets import WebSocket, WebSocketDisconnect

from sidestream import jsontext
from sidestream.errors import ConfigurationError, SidestreamError, SteerError
from sidestream.jsontext import Json, JsonObject, as_object, text_in
from sidestream.logs import get_logger
from sidestream.messages.message import ChatMessage
from sidestream.messages.steering import steered_message
from sidestream.protocols.responses.items import approval_item_id
from sidestream.server.errors import RequestError, as_request_error
from sidestream.server.http.requests import checked, owner_of, read_frame, server_of
from sidestream.server.responses.input_items import read_input
from sidestream.server.responses.log import ResponseFold, ResponseInfo, responses_in
from sidestream.server.responses.request import PreparedRequest, ResponsesRequest, dialect_of, error_type, prepared
from sidestream.server.responses.service import Base, base_after, base_of, followed, forget, prepare, start
from sidestream.server.responses.stored_items import known_items, message_items
from sidestream.server.settings import Dialect
from sidestream.store.log.conversation import Conversation
from sidestream.tools.approvals import PendingApproval

MAX_ACTIVE = 16
"""Maximum concurrent responses per socket. Further ones wait."""
MAX_LANES = 32
"""Maximum named streams per socket."""
MAX_WAITING = 64
"""Maximum requests waiting in one stream."""
MAX_RECENT = 64
"""Maximum unstored responses that a socket can still continue."""
MAX_LIFE_S = 3600.0
"""Maximum lifetime of a socket, in seconds."""

_LANE = re.compile(r"[A-Za-z0-9_.-]{1,256}")
_HTTP_FIELDS = ("stream", "stream_options", "background")
"""Fields that the specification forbids on a socket. OpenAI's service ignores the first two."""
_OWN_FIELDS = ("type", "stream_id", "generate", "stream", "stream_options")

_log = get_logger(__name__)


async def responses_socket(websocket: WebSocket) -> None:
    """Serve one socket. Closing it leaves the runs of stored responses in progress."""
    try:
        dialect_of(websocket)
    except RequestError as error:
        await websocket.close(1008, error.close_reason)
        return
    await websocket.accept()
    socket = _Socket(websocket)
    try:
        async with asyncio.timeout(MAX_LIFE_S):
            while True:
                message = await websocket.receive()
                if message["type"] == "websocket.disconnect":
                    return
                await socket.take(message.get("text") or message.get("bytes") or "")
    except TimeoutError:
        error = RequestError(
            400,
            "the socket was open for 60 minutes, the maximum; open another",
            code="websocket_connection_limit_reached",
        )
        await socket.refuse(error, None)
        with suppress(RuntimeError):
            await websocket.close(1001)
    except (WebSocketDisconnect, RuntimeError):
        pass
    finally:
        await socket.aclose()


class _Socket:
    """One socket with its multiplexed streams, the responses in progress and its unstored responses."""

    def __init__(self, websocket: WebSocket) -> None:
        self._websocket = websocket
        self._server = server_of(websocket)
        self._owner = owner_of(websocket)
        self._dialect: Dialect = dialect_of(websocket)
        self._lanes: dict[str | None, asyncio.Queue[JsonObject]] = {}
        self._workers: list[asyncio.Task[None]] = []
        self._free = asyncio.Semaphore(MAX_ACTIVE)
        self._active: dict[str, tuple[ResponseInfo, str | None]] = {}
        """Responses in progress with their stream ids, by response id."""
        self._recent: dict[str, ResponseInfo] = {}
        """Latest unstored responses, by id."""
        self._unstored: dict[str, ResponseInfo] = {}
        """One unstored response per conversation, by conversation id, to delete when the socket closes."""
        self._accepted: set[str] = set()
        """Ids of steering messages already reported as accepted, because a resumed run reports them again."""
        self._steers = 0
        """Number of steering events so far, which have their own sequence."""

    async def take(self, data: str | bytes) -> None:
        """Handle a frame."""
        lane: str | None = None
        try:
            frame = read_frame(data, self._server.settings.max_body_bytes)
            given = frame.get("stream_id")
            if given is not None:
                if not isinstance(given, str) or not _LANE.fullmatch(given):
                    raise RequestError(
                        400,
                        "stream_id must be 1 to 256 of A-Z a-z 0-9 _ . -",
                        param="stream_id",
                        code="invalid_stream_id",
                    )
                lane = given
            match frame.get("type"):
                case "response.create":
                    self._queue(lane).put_nowait(frame)
                case "response.steer":
                    await self._steer(frame)
                case kind:
                    raise RequestError(400, f"unknown event type {kind!r:.80}", param="type", code="unknown_event")
        except asyncio.QueueFull:
            await self.refuse(
                RequestError(429, "too many requests are waiting in this stream", code="rate_limit_exceeded"), lane
            )
        except RequestError as error:
            await self.refuse(error, lane)

    async def refuse(self, error: RequestError, lane: str | None) -> None:
        """Report an error, keeping the socket open."""
        kind = error_type(error, self._dialect)
        fields: JsonObject = {"type": kind, "code": error.code, "message": error.message, "param": error.param}
        await self._send({"type": "error", "status": error.status, "error": fields}, lane)

    async def aclose(self) -> None:
        """Detach from the responses and delete unstored ones."""
        for worker in self._workers:
            worker.cancel()
        if self._workers:
            await asyncio.wait(self._workers)
        for info in self._unstored.values():
            with suppress(SidestreamError):
                await forget(self._server, info)

    def _queue(self, lane: str | None) -> asyncio.Queue[JsonObject]:
        if lane in self._lanes:
            return self._lanes[lane]
        if lane is not None and sum(name is not None for name in self._lanes) >= MAX_LANES:
            message = f"too many streams on this socket: the maximum is {MAX_LANES}"
            raise RequestError(400, message, param="stream_id", code="websocket_stream_limit_reached")
        queue = self._lanes[lane] = asyncio.Queue(MAX_WAITING)
        self._workers.append(asyncio.create_task(self._work(queue, lane)))
        return queue

    async def _work(self, queue: asyncio.Queue[JsonObject], lane: str | None) -> None:
        """Answer the requests of a stream one after another."""
        while True:
            frame = await queue.get()
            async with self._free:
                try:
                    await self._create(frame, lane)
                except RequestError as error:
                    self._evict(frame)
                    await self.refuse(error, lane)
                except SidestreamError as error:
                    self._evict(frame)
                    await self.refuse(as_request_error(error), lane)
                except WebSocketDisconnect:
                    return
                except Exception:
                    _log.exception("WebSocket request failed")
                    message = "internal server error; see the server's log"
                    await self.refuse(RequestError(500, message, type="server_error"), lane)

    async def _create(self, frame: JsonObject, lane: str | None) -> None:
        given = {name: value for name, value in frame.items() if name not in _OWN_FIELDS}
        if self._dialect == "open-responses":
            for name in _HTTP_FIELDS:
                if frame.get(name) is not None:
                    raise RequestError(
                        400, f"{name} is not supported on a WebSocket", param=name, code="unsupported_parameter"
                    )
        body = checked(given, ResponsesRequest)
        if body.background:
            raise RequestError(
                400, "background is not supported on a WebSocket", param="background", code="unsupported_parameter"
            )
        request = prepared(given, body, self._server.settings, self._dialect)
        base = await self._base(request)
        known = await known_items(self._server, self._owner, body.input, base.conversation)
        sent = read_input(body.input, known)
        prewarms = as_object(frame.get("prompt_cache_options")).get("prewarm") is True
        if frame.get("generate") is False or prewarms:
            info = await prepare(self._server, self._owner, request, base, sent)
        else:
            info = await start(self._server, self._owner, request, base, sent, splits=True)
        next_one: ResponseInfo | None = info
        while next_one is not None:
            next_one = await self._follow(next_one, lane)

    async def _base(self, request: PreparedRequest) -> Base:
        parent = self._recent.get(request.body.previous_response_id or "")
        if parent is None:
            return await base_of(self._server, self._owner, request)
        return await base_after(self._server, parent, is_stored=request.body.is_stored)

    def _evict(self, frame: JsonObject) -> None:
        """Drop the parent of a failed continuation, which cannot be continued again unless it is stored."""
        self._recent.pop(text_in(frame, "previous_response_id") or "", None)

    async def _follow(self, info: ResponseInfo, lane: str | None) -> ResponseInfo | None:
        """Send the events of a response. Return the response that follows it because of a steering message, if any."""
        fold = ResponseFold(info, self._dialect)
        self._active[info.id] = (info, lane)
        if not info.is_stored:
            self._remember(info)
        try:
            async with aclosing(followed(self._server, info, self._dialect, fold)) as batches:
                async for batch in batches:
                    await self._report(fold, info, lane)
                    for event in batch:
                        await self._send(_nested(event), lane)
        finally:
            self._active.pop(info.id, None)
        await self._report(fold, info, lane)
        failed = fold.encoder is not None and fold.encoder.error is not None
        if failed and (parent := text_in(as_object(info.details.get("request")), "previous_response_id")) is not None:
            self._recent.pop(parent, None)
        rows = await self._server.store.read(info.conversation)
        following = next((each for each in responses_in(info.conversation, rows) if each.parent == info.id), None)
        if following is None and fold.steers:
            await self._unapplied(fold, info, lane)
        return following

    def _remember(self, info: ResponseInfo) -> None:
        self._recent[info.id] = self._unstored[info.conversation] = info
        while len(self._recent) > MAX_RECENT:
            self._recent.pop(next(iter(self._recent)))

    async def _steer(self, frame: JsonObject) -> None:
        id, given = frame.get("previous_response_id"), frame.get("input")
        try:
            if not isinstance(id, str) or id not in self._active:
                raise _SteerRefused("response_not_active", "no response with this id is in progress on this socket")
            info = self._active[id][0]
            try:
                await self._server.runs.steer(info.conversation, _message(given))
            except SteerError as error:
                raise _SteerRefused("response_already_completed", str(error)) from None
            except ConfigurationError as error:
                raise _SteerRefused("invalid_input", str(error)) from None
        except _SteerRefused as error:
            known = self._active.get(id) if isinstance(id, str) else None
            steer: JsonObject = {"previous_response_id": id, "input": given}
            await self._failed(error.code, error.message, steer, known[1] if known is not None else None)

    async def _report(self, fold: ResponseFold, info: ResponseInfo, lane: str | None) -> None:
        """Report the steering messages that the log has accepted."""
        for id in fold.accepted:
            if id not in self._accepted:
                self._accepted.add(id)
                steer = {"id": id, "previous_response_id": info.id}
                await self._send({"type": "response.steer.accepted", "steer": steer, **self._numbered()}, lane)

    async def _unapplied(self, fold: ResponseFold, info: ResponseInfo, lane: str | None) -> None:
        """Report the steering messages that no model request included before the response ended."""
        state = await Conversation(self._server.store, info.conversation).state()
        pending = state.run_state.approvals if state.status == "waiting" and state.run_state is not None else ()
        for id, steer in fold.steers.items():
            named: JsonObject = {"id": id, "previous_response_id": info.id}
            if pending:
                needed = [_required(entry) for entry in pending]
                reason = {"reason": "waiting_for_required_input", "required_input": needed}
                await self._send({"type": "response.steer.pending", "steer": named, **reason, **self._numbered()}, lane)
            else:
                message = "the response ended before the message could be applied"
                content = message_items(steered_message(steer), info.id, id)
                await self._failed("successor_creation_failed", message, {**named, "input": content}, lane)

    async def _failed(self, code: str, message: str, steer: JsonObject, lane: str | None) -> None:
        error = {"type": "invalid_request_error", "code": code, "message": message}
        await self._send({"type": "response.steer.failed", "error": error, "steer": steer, **self._numbered()}, lane)

    def _numbered(self) -> JsonObject:
        number, self._steers = self._steers, self._steers + 1
        return {"sequence_number": number}

    async def _send(self, event: Mapping[str, Json], lane: str | None) -> None:
        whole = event if lane is None else {**event, "stream_id": lane}
        with suppress(RuntimeError):  # The socket was closed meanwhile.
            await self._websocket.send_text(jsontext.dumps(whole).decode())


class _SteerRefused(Exception):
    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def _message(given: Json) -> ChatMessage:
    try:
        sent = read_input(given if isinstance(given, str) else jsontext.objects(given))
    except RequestError as error:
        raise _SteerRefused("invalid_input", error.message) from None
    if sent.answers or not sent.messages or any(message.role != "user" for message in sent.messages):
        raise _SteerRefused("invalid_input", "input must contain only user messages")
    return ChatMessage("user", tuple(part for message in sent.messages for part in message.parts))


def _required(entry: PendingApproval) -> JsonObject:
    if entry.is_external:
        return {"type": "function_call_output", "call_id": entry.call_id, "name": entry.tool}
    return {"type": "mcp_approval_response", "approval_request_id": approval_item_id(entry.approval_id)}


def _nested(event: JsonObject) -> JsonObject:
    """Convert an event to the socket format, which nests errors in both dialects."""
    if event["type"] != "error" or "error" in event:
        return event
    fields = {name: value for name, value in event.items() if name in ("code", "message", "param")}
    error = {"type": "server_error", **fields}
    return {"type": "error", "sequence_number": event["sequence_number"], "status": 500, "error": error}
