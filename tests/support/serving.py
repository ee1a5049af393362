"""A real server for tests: uvicorn on loopback, in the event loop of the test."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import uvicorn

from sidestream.server.uvicorn_runner import bound_socket, serving_config
from support.waiting import eventually

STARTED_S = 30.0
OPEN: dict[str, Any] = {
    "allows_tools": True,
    "allows_functions": True,
    "allows_instructions": True,
    "allows_settings": True,
}
"""Settings of a server whose agents accept everything that a request adds."""


def printed_address(line: bytes | str) -> tuple[str, dict[str, str]]:
    """The URL that a command printed, without its token, and the header that has the token."""
    text = line.decode() if isinstance(line, bytes) else line
    url, _, token = text.strip().partition("#token=")
    return url, {"Authorization": f"Bearer {token}"} if token else {}


@asynccontextmanager
async def served(app: Any) -> AsyncGenerator[str]:
    """Serves an app until the block ends; its address, without a slash at the end."""
    config = serving_config(app)
    config.timeout_graceful_shutdown = 1
    server = uvicorn.Server(config)
    listening = bound_socket("127.0.0.1", 0)
    serving = asyncio.create_task(server._serve([listening]))  # without its handlers of signals
    try:
        await eventually(lambda: serving.done() or server.started, within_s=STARTED_S, pause_s=0.005)
        if serving.done():
            serving.result()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        await serving
        listening.close()
