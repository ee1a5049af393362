"""Clients of npm as child processes: a test sends commands and gets replies, line by line."""

import asyncio
import json
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from support.npm_packages import environment, node

CLIENTS = Path(__file__).resolve().parent / "node_clients"
REPLY_S = 60.0
LINE_BYTES = 64 * 1024 * 1024


class ClientError(Exception):
    """What a client threw."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(error["message"])
        self.status = error["status"]


class NodeClient:
    """One process. Commands may overlap; each has its own reply."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._replies: dict[int, asyncio.Future[Any]] = {}
        self._count = 0
        self._reading = asyncio.create_task(self._read())
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def __call__(self, op: str, **given: Any) -> Any:
        """The reply to a command. Raises ClientError with what the client threw."""
        self._count += 1
        number = self._count
        reply = self._replies[number] = asyncio.get_running_loop().create_future()
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"n": number, "op": op, **given}).encode() + b"\n")
        await self._process.stdin.drain()
        async with asyncio.timeout(REPLY_S):
            return await reply

    async def _read(self) -> None:
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            reply = json.loads(line)
            if "ready" in reply:
                self.ready.set_result(None)
            elif "error" in reply:
                self._replies.pop(reply["n"]).set_exception(ClientError(reply["error"]))
            else:
                self._replies.pop(reply["n"]).set_result(reply["value"])
        assert self._process.stderr is not None
        said = (await self._process.stderr.read()).decode()
        for waiting in (*self._replies.values(), self.ready):
            if not waiting.done():
                waiting.set_exception(AssertionError(f"node has ended: {said[-2000:]}"))

    async def aclose(self) -> None:
        """Ends the process."""
        with suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()
        await self._reading


@asynccontextmanager
async def driving(script: str, modules: Path, url: str) -> AsyncGenerator[NodeClient]:
    """A client for the server at this address, with the packages of `modules`."""
    process = await asyncio.create_subprocess_exec(
        node(),
        CLIENTS / script,
        modules.parent,
        url,
        stdin=PIPE,
        stdout=PIPE,
        stderr=PIPE,
        env=environment(),
        limit=LINE_BYTES,
    )
    client = NodeClient(process)
    try:
        async with asyncio.timeout(REPLY_S):
            await client.ready
        yield client
    finally:
        await client.aclose()
