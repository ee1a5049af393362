"""The tool calls of a program: bounded, answered as their tools return, and timed."""

import asyncio
from collections.abc import Awaitable, Callable

import msgspec

from sidestream import jsontext
from sidestream.limits import SandboxLimits
from sidestream.portable.sandbox.frames import EndedError
from sidestream.portable.sandbox.port import CallTool

Send = Callable[[bytes, bytes], Awaitable[None]]
"""Sends the number of a call and its answer into the container. Raises EndedError."""


class Calls:
    """The calls of one program. What it sends was not checked: code inside can write frames of its own."""

    def __init__(self, limits: SandboxLimits, call_tool: CallTool, send: Send) -> None:
        self._limits = limits
        self._call_tool = call_tool
        self._send = send
        self._clock = asyncio.get_running_loop().time
        self._made = 0
        self._working = 0
        """Calls whose tools work."""
        self._waited_s = self._waits_since = 0.0
        self._writing = asyncio.Lock()
        self.pending: dict[asyncio.Task[None], int] = {}
        """Calls whose answers were not read yet → the bytes of their arguments."""

    @property
    def shares(self) -> tuple[int, int]:
        """Pending calls and bytes of their arguments that the kernel stays within.

        They are half of the limits: of an answer that the kernel has read, this side may not know yet.
        """
        return self._limits.pending_calls // 2, self._limits.argument_bytes // 2

    @property
    def waited_s(self) -> float:
        """Seconds in which at least one tool worked. An answer that is not read is not waited for."""
        return self._waited_s + (self._clock() - self._waits_since if self._working else 0.0)

    def begin(self, number: bytes, name: bytes, arguments: bytes) -> None:
        """Begin to answer a call. Raises EndedError for more than a program may have."""
        self._made += 1
        limits = self._limits
        if (
            self._made > limits.calls
            or len(self.pending) >= limits.pending_calls
            or sum(self.pending.values()) + len(arguments) > limits.argument_bytes
        ):
            raise EndedError("flood")
        answering = asyncio.create_task(self._answer(number, name, arguments))
        self.pending[answering] = len(arguments)
        answering.add_done_callback(self.pending.pop)

    async def cancel(self) -> None:
        """Cancel what the program has not waited for."""
        left = list(self.pending)
        for answering in left:
            answering.cancel()
        if left:
            await asyncio.wait(left)

    async def _answer(self, number: bytes, name: bytes, arguments: bytes) -> None:
        try:
            given = None if jsontext.is_too_deep(arguments) else jsontext.loads(arguments)
        except ValueError:
            given = None
        self._waits_since = self._waits_since if self._working else self._clock()
        self._working += 1
        try:
            answer = await self._call_tool(name.decode("utf-8", "replace"), given)
        finally:
            self._waited_s = self.waited_s
            self._waits_since = self._clock()
            self._working -= 1
        try:
            # One after the other, so that only one of them is in memory as bytes.
            async with self._writing:
                await self._send(number, msgspec.json.encode(answer))
        except EndedError:
            return
