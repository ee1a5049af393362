"""A real browser on the real page of a real server, all on this machine."""

import asyncio
import shutil
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import pytest
import uvicorn
from playwright.async_api import Browser, Page, async_playwright

from sidestream.server import create_app
from sidestream.server.core import Server
from sidestream.server.page_files import FOLDER
from sidestream.server.serving import bound_socket

ROOT = Path(__file__).resolve().parents[2]
AXE = ROOT / "page" / "node_modules" / "axe-core" / "axe.min.js"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
PATIENCE_MS = 20_000
Theme = Literal["light", "dark"]

needs_browser = [
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine"),
    pytest.mark.skipif(not (FOLDER / "index.html").is_file(), reason="the page was not built: make page"),
]

_WATCH = """
window.violations = [];
document.addEventListener("securitypolicyviolation", (event) =>
  window.violations.push(`${event.violatedDirective}: ${event.blockedURI} ${event.sample}`));
"""


@asynccontextmanager
async def page_server(agents: Any, path: Path, **settings: Any) -> AsyncGenerator[tuple[Server, str]]:
    """A server with the page, and its address."""
    app = create_app(agents, store=path / "talks.db", **settings)
    listening = bound_socket("127.0.0.1", 0)
    config = uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=2)
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    try:
        while not server.started:
            await asyncio.sleep(0.01)
            if serving.done():
                await serving
        yield app.state.server, f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        await serving
        listening.close()


@asynccontextmanager
async def browser() -> AsyncGenerator[Browser]:
    """The machine's Chromium, without a window."""
    async with async_playwright() as playwright:
        opened = await playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
        )
        try:
            yield opened
        finally:
            await opened.close()


@asynccontextmanager
async def tab(
    opened: Browser, origin: str, *, width: int = 1440, height: int = 900, theme: Theme = "light"
) -> AsyncGenerator[Page]:
    """A page of the server, watched: nothing off its origin, no report of its policy, no error that nobody caught."""
    context = await opened.new_context(
        viewport={"width": width, "height": height},
        color_scheme=theme,
        base_url=origin,
        has_touch=width < 500,
        locale="en-GB",
        reduced_motion="reduce",
    )
    context.set_default_timeout(PATIENCE_MS)
    page = await context.new_page()
    await page.add_init_script(_WATCH)
    outside: list[str] = []
    errors: list[str] = []
    page.on("request", lambda request: outside.append(request.url) if _is_outside(request.url, origin) else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda message: errors.append(message.text) if "Content Security" in message.text else None)
    try:
        yield page
        assert outside == []
        assert errors == []
        assert await page.evaluate("window.violations") == []
    finally:
        await context.close()


def _is_outside(url: str, origin: str) -> bool:
    return urlsplit(url).scheme in ("http", "https", "ws", "wss") and not url.startswith(f"{origin}/")


async def violations_of_axe(page: Page) -> list[str]:
    """What an automated check of accessibility objects to."""
    await page.evaluate(AXE.read_text("utf-8"))
    found = await page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{violation['id']}: {' '.join(str(target) for node in violation['nodes'] for target in node['target'])}"
        for violation in found["violations"]
    ]
