"""A real browser on the real page of a real server, all on this machine."""

import os
import shutil
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import pytest
from playwright.async_api import Browser, Locator, Page, async_playwright, expect

from sidestream.server import create_app
from sidestream.server.console.page_files import FOLDER
from sidestream.server.server import Server
from support.places import ROOT
from support.serving import served

AXE = ROOT / "page" / "node_modules" / "axe-core" / "axe.min.js"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
PATIENCE_MS = 30_000
Theme = Literal["light", "dark"]

expect.set_options(timeout=PATIENCE_MS)

_WATCH = """
window.violations = [];
document.addEventListener("securitypolicyviolation", (event) =>
  window.violations.push(`${event.violatedDirective}: ${event.blockedURI} ${event.sample}`));
"""


def need_browser() -> None:
    """Skips a test that cannot be run here; on the machine of the checks, which must run it, it fails."""
    missing = "no Chromium: apt-get install chromium" if CHROMIUM is None else None
    if not (FOLDER / "index.html").is_file():
        missing = "the page was not built: make page"
    if missing is not None:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(missing)


@asynccontextmanager
async def page_server(agents: Any, path: Path, **settings: Any) -> AsyncGenerator[tuple[Server, str]]:
    """A server with the page, and its address."""
    app = create_app(agents, store=path / "talks.db", **settings)
    async with served(app) as origin:
        yield app.state.server, origin


@asynccontextmanager
async def browser() -> AsyncGenerator[Browser]:
    """The machine's Chromium, without a window."""
    need_browser()
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
    opened: Browser,
    origin: str,
    at: str | None = "/",
    *,
    width: int = 1440,
    height: int = 900,
    theme: Theme = "light",
    **settings: Any,
) -> AsyncGenerator[Page]:
    """A page of the server, watched: nothing off its origin, no report of its policy, no error that nobody caught."""
    context = await opened.new_context(
        viewport={"width": width, "height": height},
        color_scheme=theme,
        base_url=origin,
        has_touch=width < 500,
        locale="en-GB",
        **{"reduced_motion": "reduce", **settings},
    )
    context.set_default_timeout(PATIENCE_MS)
    page = await context.new_page()
    outside, errors = await watched(page, origin)
    try:
        if at is not None:
            await page.goto(at)
        yield page
        assert outside == []
        assert errors == []
        assert await page.evaluate("window.violations") == []
    finally:
        await context.close()


async def watched(page: Page, origin: str) -> tuple[list[str], list[str]]:
    """Lists that grow: the requests of a page off its origin, and its errors."""
    outside: list[str] = []
    errors: list[str] = []
    await page.add_init_script(_WATCH)
    page.on("request", lambda request: outside.append(request.url) if _is_outside(request.url, origin) else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda message: errors.append(message.text) if "Content Security" in message.text else None)
    return outside, errors


def _is_outside(url: str, origin: str) -> bool:
    return urlsplit(url).scheme in ("http", "https", "ws", "wss") and not url.startswith(f"{origin}/")


def composer(page: Page) -> Locator:
    """The field in which a message is written."""
    return page.get_by_role("textbox", name="Message", exact=True)


def answers(page: Page) -> Locator:
    """The answers of the thread."""
    return page.locator(".message.answer")


def card(page: Page, words: str) -> Locator:
    """The card of a call whose line holds these words."""
    return page.locator(".card").filter(has=page.locator(".card-title", has_text=words))


async def ask(page: Page, text: str, agent: str | None = None) -> None:
    """Sends a message, to an agent if one is named."""
    if agent is not None:
        await page.get_by_role("combobox", name="Model").select_option(agent)
    await composer(page).fill(text)
    await composer(page).press("Enter")


async def is_over(page: Page) -> None:
    """Waits for the end of the answer."""
    await expect(page.get_by_role("button", name="Send", exact=True)).to_be_visible()
    await expect(answers(page).last).to_have_attribute("aria-busy", "false")


async def until(page: Page, condition: str) -> None:
    """Waits until a JavaScript expression holds. (`wait_for_function` would need `eval`, which the page forbids.)"""
    await page.evaluate(
        """(end, holds = () => (CONDITION)) => new Promise((resolve, reject) => {
          const look = () => {
            if (holds()) resolve();
            else if (performance.now() > end) reject(new Error(String(holds)));
            else requestAnimationFrame(look);
          };
          end += performance.now();
          look();
        })""".replace("CONDITION", condition),
        PATIENCE_MS,
    )


async def violations_of_axe(page: Page) -> list[str]:
    """What an automated check of accessibility objects to."""
    await page.evaluate(AXE.read_text("utf-8"))
    found = await page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{violation['id']}: {' '.join(str(target) for node in violation['nodes'] for target in node['target'])}"
        for violation in found["violations"]
    ]
