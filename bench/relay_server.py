"""`python -m bench.relay_server KIND PORT URL`: serve our server, or a minimal Starlette relay, in front of URL."""

import sys
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from bench.processes import allow_many_files


def ours(url: str) -> Any:
    """Return our server with one agent and a SQLite store."""
    from sidestream import Agent
    from sidestream.server import Caps, create_app

    agent = Agent("openai", base_url=f"{url}/v1", api_key="none")
    store = Path(tempfile.mkdtemp(prefix="sidestream-bench-")) / "log.db"
    caps = Caps(max_concurrent_runs=None, max_open_streams=None)
    return create_app({"main": agent}, store=store, caps=caps)


def bare(url: str) -> Any:
    """Return a Starlette app that relays bytes unchanged."""
    import aiohttp
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response, StreamingResponse
    from starlette.routing import Route

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncGenerator[None]:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as app.state.session:
            yield

    async def relay(request: Request) -> Response:
        body = await request.body()
        session: aiohttp.ClientSession = request.app.state.session

        async def pieces() -> AsyncGenerator[bytes]:
            headers = {"Content-Type": "application/json"}
            async with session.post(f"{url}/v1/chat/completions", data=body, headers=headers) as response:
                async for piece in response.content.iter_any():
                    yield piece

        return StreamingResponse(pieces(), media_type="text/event-stream")

    return Starlette(routes=[Route("/v1/chat/completions", relay, methods=["POST"])], lifespan=lifespan)


def main() -> None:
    kind, port, url = sys.argv[1:]
    from sidestream.server.uvicorn_runner import bound_socket, serve

    allow_many_files()
    app = ours(url) if kind == "ours" else bare(url)
    serve(app, bound_socket("127.0.0.1", int(port)), exit_now=sys.exit)


if __name__ == "__main__":
    main()
