"""A page that an operator names and restricts, and the names, pins and search of its conversations."""

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, Page as Tab, expect
from starlette.requests import HTTPConnection

from page.browsing import answers, ask, card, composer, is_over, page_server, tab, violations_of_axe
from page.scenes import scripted, slow
from requirements import requirement
from sidestream import tool
from sidestream.providers.protocol import ModelRequest
from sidestream.server import Page
from sidestream.testing import tool_call

pytestmark = pytest.mark.asyncio(loop_scope="session")

ICON = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 8 8"><circle cx="4" cy="4" r="4" fill="#a33"/></svg>'
SEARCH = "Search conversations"


def echo(request: ModelRequest) -> str:
    return f"You said: {request.messages[-1].text}"


async def user_of(connection: HTTPConnection) -> str | None:
    """The app's own users: a cookie is a name."""
    return connection.cookies.get("user")


async def option(page: Tab, title: str, name: str) -> None:
    """Chooses from the menu of a conversation."""
    await page.locator(".rail-row").filter(has_text=title).first.hover()
    await page.get_by_role("button", name=f"Options: {title}").click()
    await page.locator(".row-menu:popover-open").get_by_role("button", name=name).click()


@requirement("R215")
async def test_users_see_operators_page_and_nothing_else(chromium: Browser, tmp_path: Path):
    (tmp_path / "acme.svg").write_text(ICON)
    page_options = Page(
        title="Acme help",
        icon=str(tmp_path / "acme.svg"),
        greeting="What can we help with?",
        examples=["Where is my order?"],
        panels=["settings", "runs"],
        sign_in_url="/login",
        sign_out_url="/logout",
    )
    settings: dict[str, Any] = {"page": page_options, "auth": user_of, "index_folders": [str(tmp_path)]}
    async with page_server({"support": scripted(echo)}, tmp_path, **settings) as (_, origin):
        async with tab(chromium, origin) as page:
            # Before anyone signs in, the page has its name and says where to sign in.
            assert await page.title() == "Acme help"
            await expect(page.get_by_role("alert")).to_contain_text("You are not signed in.")
            link = page.get_by_role("alert").get_by_role("link", name="Sign in")
            await expect(link).to_have_attribute("href", "/login")
            await page.context.add_cookies([{"name": "user", "value": "Anna", "url": origin}])
            await page.reload()
            await expect(page.get_by_role("heading", name="What can we help with?")).to_be_visible()
            await expect(page.locator(".rail-brand")).to_have_text("Acme help")
            assert await page.locator(".rail-brand img").evaluate("image => image.complete && image.naturalWidth > 0")
            await expect(page.locator(".rail-user")).to_contain_text("Anna")
            await expect(page.get_by_role("link", name="Sign out")).to_have_attribute("href", "/logout")
            await expect(page.locator(".example")).to_have_text(["Where is my order?"])
            assert await violations_of_axe(page) == []
            # Neither a model to choose nor tools, and only the panels that the operator names.
            await expect(page.locator(".picker").get_by_text(re.compile("support|Tools|Thinking"))).not_to_be_visible()
            await page.locator(".example").click()
            await is_over(page)
            assert await page.title() == "Where is my order? · Acme help"
            await page.get_by_role("link", name="Settings").click()
            await expect(page.locator(".st-nav a")).to_have_text(["Runs", "Appearance"])
            await page.goto(f"{origin}/settings/keys")
            await expect(page.locator(".st-nav a[aria-current]")).to_have_text("Runs")
            await expect(page.get_by_text("No runs in progress.")).to_be_visible()
            # A conversation says the same once the user has signed out.
            await page.context.clear_cookies()
            await page.goto(f"{origin}/c/some-conversation")
            await expect(page.get_by_role("alert").get_by_role("link", name="Sign in")).to_be_visible()
        async with tab(chromium, origin, None, width=768, theme="dark") as page:
            await page.context.add_cookies([{"name": "user", "value": "Ben", "url": origin}])
            await page.goto(origin)
            await expect(page.locator(".rail-icons img")).to_have_attribute("alt", "Acme help")
            await page.get_by_role("button", name="Conversations").click()
            drawer = page.get_by_role("dialog", name="Conversations")
            await expect(drawer.get_by_text("No conversations yet")).to_be_visible()
            await expect(drawer.locator(".rail-user")).to_contain_text("Ben")
            assert await violations_of_axe(page) == []


@requirement("R215")
async def test_conversations_are_renamed_pinned_and_found(chromium: Browser, tmp_path: Path):
    gate = asyncio.Event()
    script: list[Any] = [echo, echo, slow("It goes on. It ends.", gate)]
    async with page_server({"main": scripted(script)}, tmp_path) as (_, origin), tab(chromium, origin) as page:
        for text in ("About trains", "About ships"):
            await page.goto(origin)
            await ask(page, text)
            await is_over(page)
        rows, titles = page.locator(".rail-row"), page.locator(".rail-title")
        await expect(titles).to_have_text(["About ships", "About trains"])
        await option(page, "About trains", "Pin")
        await expect(page.get_by_role("region", name="Pinned").locator(".rail-title")).to_have_text("About trains")
        await expect(titles).to_have_text(["About trains", "About ships"])
        # A name changes while an answer is being written, and the answer goes on.
        await ask(page, "And boats?")
        await expect(answers(page).last).to_contain_text("It goes on")
        await option(page, "About ships", "Rename")
        dialog = page.get_by_role("dialog", name="Rename conversation")
        assert await violations_of_axe(page) == []
        await dialog.get_by_role("textbox").fill("My voyage")
        await dialog.get_by_role("textbox").press("Enter")
        await expect(page.get_by_role("heading", level=1)).to_have_text("My voyage")
        gate.set()
        await is_over(page)
        await expect(answers(page).last).to_contain_text("It ends.")
        await page.reload()
        await expect(page.get_by_role("heading", level=1)).to_have_text("My voyage")
        await expect(titles).to_have_text(["About trains", "My voyage"])
        # A search shows the words around those found, and finds names too.
        await page.get_by_role("searchbox", name=SEARCH).fill("said: about TRAINS")
        await expect(rows).to_have_count(1)
        await expect(rows.locator("mark")).to_have_text(["said: About trains"])
        await expect(rows.locator(".rail-snippet")).to_have_text("You said: About trains")
        assert await violations_of_axe(page) == []
        await page.get_by_role("searchbox", name=SEARCH).fill("voyage")
        await expect(rows.locator("mark")).to_have_text(["voyage"])
        await page.get_by_role("searchbox", name=SEARCH).fill("")
        await option(page, "About trains", "Unpin")
        await expect(page.get_by_role("region", name="Pinned")).to_have_count(0)
        # Without a name, the first question is the title again.
        await option(page, "My voyage", "Rename")
        await dialog.get_by_role("textbox").fill("")
        await dialog.get_by_role("button", name="Save").click()
        await expect(titles).to_have_text(["About ships", "About trains"])


@requirement("R215")
async def test_retry_of_older_branch_is_shown_after_reload(chromium: Browser, tmp_path: Path):
    count = iter(range(1, 9))
    model = scripted(lambda _: f"Answer {next(count)}.")
    async with page_server({"main": model}, tmp_path) as (_, origin), tab(chromium, origin) as page:
        await ask(page, "Hello")
        await is_over(page)
        await answers(page).get_by_role("button", name="Try again").click()
        await expect(answers(page)).to_contain_text("Answer 2.")
        await is_over(page)
        await page.get_by_role("button", name="Previous branch").click()
        await expect(answers(page)).to_contain_text("Answer 1.")
        await expect(page).to_have_url(re.compile(r"leaf=1$"))
        await answers(page).get_by_role("button", name="Try again").click()
        await expect(answers(page)).to_contain_text("Answer 3.")
        await is_over(page)
        await page.reload()
        await expect(answers(page)).to_contain_text("Answer 3.")
        await expect(page).to_have_url(re.compile(r"/c/[^?]+$"))


@requirement("R215")
@pytest.mark.filterwarnings("ignore::sidestream.tools.outcome.ToolWarning")
async def test_failed_tool_says_where_its_traceback_is(
    chromium: Browser, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    @tool
    def look() -> str:
        """Looks."""
        raise ValueError("the eye is closed")

    model = scripted([tool_call("look"), "It failed."], tools=[look])
    async with page_server({"main": model}, tmp_path) as (_, origin), tab(chromium, origin) as page:
        await ask(page, "Look.")
        await is_over(page)
        await expect(card(page, "look")).to_contain_text("ValueError. The server's log has the traceback.")
        await expect(composer(page)).to_be_visible()
    assert "the eye is closed" in caplog.text
    assert "Traceback" in caplog.text
