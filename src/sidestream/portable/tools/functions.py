"""Toolset of functions that replace a hosted tool, the usual form of a local tool."""

from collections.abc import Awaitable, Callable, Sequence

from sidestream.tools.tool import Tool


async def _nothing() -> None:
    pass


class Functions:
    """Tools that are known from the start. `close` stops everything they have started."""

    warnings: tuple[str, ...] = ()

    def __init__(self, key: str, tools: Sequence[Tool], close: Callable[[], Awaitable[None]] = _nothing) -> None:
        self._key = key
        self._tools = tools
        self._close = close

    @property
    def label(self) -> str:
        """Key of the hosted tool."""
        return self._key

    async def list(self) -> Sequence[Tool]:
        return self._tools

    async def aclose(self) -> None:
        """Stop everything the tools have started. Safe to call twice."""
        await self._close()
