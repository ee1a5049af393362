"""A toolset of functions that stand in for a hosted tool: the usual form of a tool that runs here."""

from collections.abc import Awaitable, Callable, Sequence

from sidestream.tools.tool import Tool


async def _nothing() -> None:
    pass


class Functions:
    """Tools that are known from the start. `close` stops what they have started."""

    warnings: tuple[str, ...] = ()

    def __init__(self, key: str, tools: Sequence[Tool], close: Callable[[], Awaitable[None]] = _nothing) -> None:
        self._key = key
        self._tools = tools
        self._close = close

    @property
    def label(self) -> str:
        """The key of the hosted tool."""
        return self._key

    async def list(self) -> Sequence[Tool]:
        """The tools."""
        return self._tools

    async def aclose(self) -> None:
        """Stops what they have started. Safe to call twice."""
        await self._close()
