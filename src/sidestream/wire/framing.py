"""Connections that keep what came before the framing of a body broke."""

import asyncio
import functools
from typing import Any

import aiohttp
from aiohttp.client_proto import ResponseHandler

_END = b"\r\n\r\n"


class _HeadFirst(ResponseHandler):
    """Parses the head of a response apart from its body.

    aiohttp parses each packet whole: if the framing breaks in the packet that holds the head, the response and its
    events would be lost.
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


def head_first(connector: aiohttp.TCPConnector) -> aiohttp.TCPConnector:
    """The connector, whose connections do that; unchanged if this aiohttp makes its connections in another way."""
    if "_factory" in vars(connector):
        vars(connector)["_factory"] = functools.partial(_HeadFirst, loop=asyncio.get_running_loop())
    return connector
