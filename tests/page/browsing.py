"""A real browser on the real page of a real server, all on this machine."""

import os
import shutil
from collections.abc import AsyncGenerator, Callable
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
from support.serving import OPEN, served

AXE = ROOT / "page" / "node_modules" / "axe-core" / "axe.min.js"
# The headless shell draws no windows, and takes three fifths of the processor time of the others.
BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
CHROMIUM = next(filter(None, map(shutil.which, BROWSERS)), None)
SWITCHES = [
    "--no-sandbox",
    "--disable-dev-shm-usage",
    "--disable-gpu",
    # One process for all pages: starting one for each server of a test is a quarter of what a test costs.
    "--in-process-gpu",
    "--disable-site-isolation-trials",
    "--renderer-process-limit=1",
]
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
    missing = "no Chromium: apt-get install chromium-headless-shell (or chromium)" if CHROMIUM is None else None
    if not (FOLDER / "index.html").is_file():
        missing = "the page was not built: make page"
    if missing is not None:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(missing)


@asynccontextmanager
async def page_server(agents: Any, path: Path, **settings: Any) -> AsyncGenerator[tuple[Server, str]]:
    """A server with the page, and its address."""
    app = create_app(agents, store=path / "talks.db", **{**OPEN, **settings})
    async with served(app) as origin:
        yield app.state.server, origin


@asynccontextmanager
async def browser() -> AsyncGenerator[Browser]:
    """The machine's Chromium, without a window."""
    need_browser()
    async with async_playwright() as playwright:
        opened = await playwright.chromium.launch(executable_path=CHROMIUM, args=SWITCHES)
        try:
            yield opened
        finally:
            _idle.pop(opened, None)
            await opened.close()


_idle: dict[Browser, dict[str, list[Page]]] = {}
"""Pages that a test has left, by their settings: a new context takes a second of the processor, a used one a third."""


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
    settings = {"reduced_motion": "reduce", "has_touch": width < 500, **settings}
    idle = _idle.setdefault(opened, {}).setdefault(repr(sorted(settings.items())), [])
    page = idle.pop() if idle else await _new_page(opened, settings)
    await page.set_viewport_size({"width": width, "height": height})
    await page.emulate_media(color_scheme=theme)
    outside, errors, unwatch = watched(page, origin)
    try:
        if at is not None:
            await page.goto(f"{origin}{at}")
        yield page
        assert outside == []
        assert errors == []
        assert await page.evaluate("window.violations") == []
        unwatch()
        await _emptied(page, origin)
    except BaseException:
        await page.context.close()
        raise
    idle.append(page)


async def _new_page(opened: Browser, settings: dict[str, Any]) -> Page:
    context = await opened.new_context(locale="en-GB", **settings)
    context.set_default_timeout(PATIENCE_MS)
    await context.add_init_script(_WATCH)
    return await context.new_page()


async def _emptied(page: Page, origin: str) -> None:
    """Take from a page all that a test has left in it."""
    context = page.context
    await page.unroute_all()
    await page.goto("about:blank")
    for other in context.pages:
        if other is not page:
            await other.close()
    session = await context.new_cdp_session(page)
    await session.send("Storage.clearDataForOrigin", {"origin": origin, "storageTypes": "all"})
    await session.detach()
    await context.clear_cookies()
    await context.clear_permissions()


def watched(page: Page, origin: str) -> tuple[list[str], list[str], Callable[[], None]]:
    """Lists that grow: the requests of a page off its origin, and its errors; and what ends this."""
    outside: list[str] = []
    errors: list[str] = []
    handlers: dict[Any, Callable[[Any], None]] = {
        "request": lambda request: outside.append(request.url) if _is_outside(request.url, origin) else None,
        "pageerror": lambda error: errors.append(str(error)),
        "console": lambda message: errors.append(message.text) if "Content Security" in message.text else None,
    }
    for name, handler in handlers.items():
        page.on(name, handler)

    def unwatch() -> None:
        for name, handler in handlers.items():
            page.remove_listener(name, handler)

    return outside, errors, unwatch


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


def picker(page: Page, kind: Literal["model", "thinking", "tools"]) -> Locator:
    """A button that opens a list of choices, and the list."""
    return page.locator(f'.pick[data-pick="{kind}"]')


async def pick(page: Page, kind: Literal["model", "thinking"], value: str) -> None:
    """Chooses from a list of which one entry holds."""
    await picker(page, kind).locator("summary").click()
    await picker(page, kind).locator(f'input[value="{value}"]').click()
    await expect(picker(page, kind).locator(".pick-list")).to_be_hidden()


async def ask(page: Page, text: str, agent: str | None = None) -> None:
    """Sends a message, to an agent if one is named."""
    if agent is not None:
        await pick(page, "model", agent)
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
