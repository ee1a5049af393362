"""A web server on loopback for the tests of fetching and searching: paths → answers, and what was requested."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web

Answer = web.Response | Callable[[web.Request], web.Response | Awaitable[web.Response]]


@dataclass
class Site:
    """Where it listens, and the requests that arrived."""

    port: int = 0
    requests: list[web.Request] = field(default_factory=list)

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    def url(self, path: str) -> str:
        return f"http://{self.host}{path}"


@asynccontextmanager
async def serve(pages: Mapping[str, Answer]) -> AsyncGenerator[Site]:
    """Serves the pages until the block ends."""
    site = Site()

    async def answer(request: web.Request) -> web.Response:
        site.requests.append(request)
        found = pages.get(request.path)
        if found is None:
            return web.Response(status=404, text="not here")
        if isinstance(found, web.Response):
            return web.Response(status=found.status, body=found.body, headers=found.headers)
        made = found(request)
        return made if isinstance(made, web.Response) else await made

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app, shutdown_timeout=1)
    await runner.setup()
    listener = web.TCPSite(runner, "127.0.0.1", 0)
    await listener.start()
    site.port = runner.addresses[0][1]
    try:
        yield site
    finally:
        await runner.cleanup()


def page(html: str, **headers: str) -> web.Response:
    """An HTML page."""
    return web.Response(body=html.encode(), headers={"Content-Type": "text/html; charset=utf-8", **headers})
