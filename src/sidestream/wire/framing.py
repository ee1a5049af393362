"""Where aiohttp's own ways are not enough: what came before broken framing, and messages without a detour."""

import asyncio
import functools
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import aiohttp
from aiohttp.client_proto import ResponseHandler

_END = b"\r\n\r\n"


class _HeadFirst(ResponseHandler):
    """Parses the head of a response apart from its body, tells readers of broken framing, and resumes what was paused.

    aiohttp parses each packet whole: if the framing breaks in the packet that holds the head, the response and its
    events would be lost. If it breaks later, whoever reads the body would wait for the next timeout. And it resumes its
    parser after each piece that is read, which costs as much as parsing one.
    """

    _awaits_head = True

    def set_response_params(self, *args: Any, **options: Any) -> None:
        self._awaits_head = True
        super().set_response_params(*args, **options)

    def data_received(self, data: bytes) -> None:
        if self._awaits_head and (end := data.find(_END)) >= 0:
            self._awaits_head = False
            end += len(_END)
            super().data_received(data[:end])
            data = data[end:]
            if not data:
                return
        super().data_received(data)

    def set_exception(self, exc: BaseException, *cause: Any, **options: Any) -> None:
        super().set_exception(exc, *cause, **options)
        body = self._payload
        if body is not None and not body.is_eof() and body.exception() is None:
            body.set_exception(aiohttp.ClientPayloadError())

    def resume_reading(self, *args: Any, **options: Any) -> None:
        if self._reading_paused:
            super().resume_reading(*args, **options)


def head_first(connector: aiohttp.TCPConnector) -> aiohttp.TCPConnector:
    """The connector, whose connections do that; unchanged if this aiohttp makes its connections in another way."""
    if "_factory" in vars(connector):
        vars(connector)["_factory"] = functools.partial(_HeadFirst, loop=asyncio.get_running_loop())
    return connector


def arrived_messages(socket: Any) -> tuple[Sequence[Any], Callable[[], Awaitable[Any]]]:
    """The messages of a WebSocket that have arrived, each first in its tuple, and how to take the next one.

    `receive()` costs more than routing an event does. Nothing, if this aiohttp keeps its messages in another way.
    """
    queue = getattr(socket, "_reader", None)
    return getattr(queue, "_buffer", ()), getattr(queue, "read", socket.receive)
