"""The AI SDK's WebSocket transport, which carries many requests over one socket, each with its own numbered frames."""

import asyncio
from contextlib import aclosing, suppress
from typing import Literal

from msgspec import Struct
from starlette.websockets import WebSocket, WebSocketDisconnect

from sidestream import jsontext
from sidestream.errors import SidestreamError
from sidestream.jsontext import JsonObject
from sidestream.logs import get_logger
from sidestream.server.chat.branches import read_chat
from sidestream.server.chat.input import ChatBody
from sidestream.server.chat.turns import StreamedTurn, begin_turn, open_turn
from sidestream.server.errors import RequestError, as_request_error
from sidestream.server.http.files_api import links_for
from sidestream.server.http.requests import checked, owner_of, read_frame, server_of
from sidestream.text.redaction import redact

MAX_REQUESTS = 32
"""Maximum open requests per socket."""
_UNSUPPORTED_DATA = 1003

_log = get_logger(__name__)


class ClientFrame(Struct, frozen=True, kw_only=True, rename="camel"):
    """A frame from a client."""

    type: Literal["send", "resume", "abort"]
    request_id: str
    id: str = ""
    trigger: str = "submit-message"
    message_id: str | None = None
    messages: list[JsonObject] = []
    body: JsonObject | None = None


async def chat_socket(websocket: WebSocket) -> None:
    """Serve one socket. Closing it leaves its runs in progress; an `abort` frame stops its request's run."""
    await websocket.accept()
    socket = _Socket(websocket)
    try:
        while True:
            text = await websocket.receive_text()
            try:
                frame = checked(read_frame(text, server_of(websocket).settings.max_body_bytes), ClientFrame)
            except RequestError as error:
                await websocket.close(_UNSUPPORTED_DATA, error.close_reason)
                return
            await socket.take(frame)
    except WebSocketDisconnect:
        pass
    except KeyError:  # A binary frame has no text.
        await websocket.close(_UNSUPPORTED_DATA, "frames must be text")
    finally:
        await socket.aclose()


class _Socket:
    """The open requests of one socket."""

    def __init__(self, websocket: WebSocket) -> None:
        self._websocket = websocket
        self._server = server_of(websocket)
        self._owner = owner_of(websocket)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._turns: dict[str, StreamedTurn] = {}
        """Turns being streamed, by request id."""
        self._aborted: set[str] = set()
        """Ids of requests that were aborted before their turn started."""
        self._is_closed = False

    async def take(self, frame: ClientFrame) -> None:
        """Start or abort a request. A request beyond the limit fails without affecting the others."""
        if frame.type == "abort":
            await self._abort(frame.request_id)
        elif len(self._tasks) >= MAX_REQUESTS:
            reason = f"too many open requests on this socket: the maximum is {MAX_REQUESTS}"
            await self._send({"type": "error", "requestId": frame.request_id, "errorText": reason})
        elif frame.request_id not in self._tasks:
            self._tasks[frame.request_id] = asyncio.create_task(self._serve(frame))

    async def aclose(self) -> None:
        """End all requests but not their runs. A received message is still sent, as over HTTP."""
        self._is_closed = True
        for request_id in self._turns:
            self._tasks[request_id].cancel()
        if self._tasks:
            await asyncio.wait(self._tasks.values())

    async def _abort(self, request_id: str) -> None:
        if (turn := self._turns.get(request_id)) is not None:
            self._tasks[request_id].cancel()
            await self._stop(turn)
        elif request_id in self._tasks:
            self._aborted.add(request_id)

    async def _stop(self, turn: StreamedTurn) -> None:
        try:
            await self._server.runs.stop(turn.conversation)
        except SidestreamError as error:
            _log.warning("conversation %s: could not stop its run: %s", turn.conversation, redact(str(error)))

    async def _serve(self, frame: ClientFrame) -> None:
        request = {"requestId": frame.request_id}
        try:
            turn = await self._turn(frame)
            if turn is None:
                await self._send({"type": "no-active", **request})
                return
            if frame.request_id in self._aborted:
                await self._stop(turn)
            if self._is_closed or frame.request_id in self._aborted:
                return
            self._turns[frame.request_id] = turn
            await self._send({"type": "start", **request})
            features = jsontext.as_list((frame.body or {}).get("features"))
            sequence = 0
            async with aclosing(turn.chunks(self._server, features, links_for(self._websocket))) as batches:
                async for batch in batches:
                    for chunk in batch:
                        await self._send({"type": "chunk", **request, "sequence": sequence, "chunk": chunk})
                        sequence += 1
            await self._send({"type": "end", **request})
        except RequestError as error:
            await self._send({"type": "error", **request, "errorText": error.message})
        except SidestreamError as error:
            await self._send({"type": "error", **request, "errorText": as_request_error(error).message})
        except WebSocketDisconnect:
            pass
        except Exception:
            _log.exception("WebSocket request failed")
            await self._send({"type": "error", **request, "errorText": "internal server error; see the server's log"})
        finally:
            self._tasks.pop(frame.request_id, None)
            self._turns.pop(frame.request_id, None)
            self._aborted.discard(frame.request_id)

    async def _turn(self, frame: ClientFrame) -> StreamedTurn | None:
        if frame.type == "resume":
            self._server.runs.readers.admit(self._owner)
            chat = await read_chat(self._server, self._owner, frame.id)
            return open_turn(chat, chat.leaf(), None) if chat.exists else None
        body = {
            **(frame.body or {}),
            "id": frame.id,
            "messages": frame.messages,
            "trigger": frame.trigger,
            "messageId": frame.message_id,
        }
        return await begin_turn(self._server, self._owner, checked(body, ChatBody))

    async def _send(self, frame: JsonObject) -> None:
        with suppress(WebSocketDisconnect, RuntimeError):  # RuntimeError means the socket was closed meanwhile.
            await self._websocket.send_text(jsontext.dumps(frame).decode())
