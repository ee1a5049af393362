"""The page for everyone: an automated check of accessibility, keyboard only, narrow windows, dark, right to left, zoom."""

from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, Page, expect

from page.browsing import AXE, Theme, answers, ask, composer, is_over, page_server, picker, tab, violations_of_axe
from page.scenes import scripted, stopped
from requirements import requirement
from server.serving import agent_of
from sidestream import tool
from sidestream.errors import RateLimitedError
from sidestream.messages.message import ThinkingPart
from sidestream.providers.protocol import ModelRequest
from sidestream.testing import FakeProvider, tool_call

pytestmark = pytest.mark.asyncio(loop_scope="session")

TOKEN = "token-of-anna-0123456789"
ARABIC = "أطول مدة للكسوف **قرب الأقصر**: 6 دقائق.\n\n- إسبانيا\n- مصر\n\n> اقتباس\n\n`x = 1`"
TEXT = """\
# Path

| place | duration |
|---|--:|
| Luxor | 6 min |

1. Spain
2. Egypt

> A quote with [a link](https://good.test/).

```python
print("hello" + "x" * 200)  # a line that is longer than the window is wide, which must scroll by itself alone
```
"""


@tool(approval="ask")
def book(train: str, seats: int) -> str:
    """Books."""
    return "booked"


def asks(request: ModelRequest) -> Any:
    """Wants to book, then answers."""
    return tool_call("book", train="SJ 40", seats=2) if request.messages[-1].role == "user" else "Booked."


def agents() -> dict[str, Any]:
    return {
        "text": scripted(lambda _: [ThinkingPart("Let me think."), TEXT]),
        "booking": scripted(asks, tools=[book]),
        "arabic": scripted(lambda _: ARABIC),
        "error": scripted(lambda _: ["It begins well, ", RateLimitedError("slow down", status=429)]),
    }


async def widths(page: Page) -> tuple[int, int]:
    """The width of what the document holds, and of the window."""
    found: list[int] = await page.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
    return found[0], found[1]


@requirement("R143")
@pytest.mark.parametrize("theme", ["light", "dark"])
async def test_routes_have_no_accessibility_violations(chromium: Browser, tmp_path: Path, theme: Theme):
    if not AXE.is_file():
        pytest.skip("axe-core is not installed: make page-check")
    replies, _ = stopped("web_search")
    async with (
        FakeProvider(replies) as fake,
        page_server(
            {"search": agent_of(fake), **agents()}, tmp_path, mcp_file=tmp_path / "mcp.json", allows_admin=True
        ) as (_, origin),
        tab(chromium, origin, theme=theme) as page,
    ):
        found: dict[str, list[str]] = {}

        async def check(name: str) -> None:
            if broken := await violations_of_axe(page):
                found[name] = broken

        await expect(page.locator(".example").first).to_be_visible()
        await check("empty")
        for agent in ("text", "booking", "arabic", "error", "search"):
            await page.goto(f"{origin}/")
            await ask(page, "Hello", agent)
            await is_over(page)
            await check(agent)
        await page.locator(".chip").first.click()
        await expect(page.locator(".inspector")).to_be_visible()
        await check("sources")
        await page.get_by_role("link", name="Timeline").last.click()
        await page.locator(".tl-row").nth(3).click()
        await expect(page.get_by_role("region", name="Part")).to_be_visible()
        await check("timeline")
        for panel in ("models", "mcp", "keys", "look"):
            await page.goto(f"{origin}/settings/{panel}")
            await expect(page.locator(".st-panel :is(li, button, input)").first).to_be_visible()
            await check(f"settings/{panel}")
        await page.get_by_role("link", name="MCP servers").click()
        await page.get_by_role("button", name="Add a server").click()
        await check("form")
    assert found == {}


@requirement("R143")
async def test_everything_is_reached_by_keyboard(chromium: Browser, tmp_path: Path):
    async with page_server(agents(), tmp_path) as (_, origin), tab(chromium, origin) as page:
        await expect(composer(page)).to_be_focused()
        await page.keyboard.type("What is the path?")
        await page.keyboard.press("Enter")
        await is_over(page)
        # A new line is Shift+Enter; an arrow up in an empty field edits the last question.
        await page.keyboard.press("ArrowUp")
        await expect(composer(page)).to_have_value("What is the path?")
        await page.keyboard.press("Shift+Enter")
        await page.keyboard.type("Quickly.")
        await expect(composer(page)).to_have_value("What is the path?\nQuickly.")
        await page.keyboard.press("Escape")
        await page.keyboard.press("Alt+ArrowUp")
        await expect(answers(page)).to_be_focused()
        thought = page.locator(".reasoning .card-head")
        await page.keyboard.press("o")
        await expect(thought).to_have_attribute("aria-expanded", "true")
        await page.keyboard.press("?")
        await expect(page.get_by_role("dialog", name="Keyboard shortcuts")).to_be_visible()
        await page.keyboard.press("Escape")
        await expect(page.get_by_role("dialog")).to_have_count(0)
        await page.keyboard.press("g")
        await page.keyboard.press("t")
        await expect(page.get_by_role("heading", name="Timeline")).to_be_visible()
        await expect(page.locator(".tl-row").first).to_be_visible()  # the records are there
        await page.keyboard.press("j")
        await expect(page.get_by_role("region", name="Part")).to_be_visible()
        await page.go_back()
        await expect(answers(page)).to_be_visible()
        await page.locator("#main").focus()
        await page.keyboard.press("/")
        await expect(page.get_by_role("searchbox", name="Search conversations")).to_be_focused()
        # By tab alone: every stop has a visible focus, and the way leads through rail, thread and composer.
        stops = set[str]()
        for _ in range(40):
            await page.keyboard.press("Tab")
            stops.add(
                await page.evaluate(
                    "document.activeElement.closest('nav, .thread-content, .composer')?.className ?? ''"
                )
            )
        assert {"rail", "thread-content", "composer"} <= stops


@requirement("R143")
async def test_narrow_window_has_one_column_with_composer_in_view(chromium: Browser, tmp_path: Path):
    async with page_server(agents(), tmp_path) as (_, origin), tab(chromium, origin, width=390, height=844) as page:
        for agent in ("text", "booking", "error"):
            await page.goto(f"{origin}/")
            await ask(page, "Hello", agent)
            await is_over(page)
            held, width = await widths(page)
            assert held <= width, agent
            await expect(composer(page)).to_be_in_viewport()
        await page.get_by_role("button", name="Menu").click()
        await expect(page.get_by_role("dialog", name="Conversations")).to_be_visible()
        await page.keyboard.press("Escape")
        await page.locator("#main").focus()
        await page.keyboard.press("/")  # The search is in the drawer.
        await expect(page.get_by_role("dialog").get_by_role("searchbox")).to_be_focused()
        await page.get_by_role("dialog").get_by_role("link", name="Hello Waiting for you").click()
        await expect(page.get_by_role("dialog")).to_have_count(0)
        await page.get_by_role("button", name="Review").click()
        allow = page.get_by_role("button", name="Allow once")
        await expect(allow).to_be_in_viewport()
        box = await allow.bounding_box()
        assert box is not None
        assert box["height"] >= 44
        await page.goto(f"{origin}/settings/models")
        await expect(page.locator(".st-item").first).to_be_visible()
        held, width = await widths(page)
        assert held <= width


@requirement("R143")
async def test_right_to_left_text_fits_at_320_pixels(chromium: Browser, tmp_path: Path):
    async with page_server(agents(), tmp_path) as (_, origin), tab(chromium, origin, width=320, height=600) as page:
        await ask(page, "كم تدوم؟", "arabic")
        await is_over(page)
        answer = answers(page)
        assert await answer.locator("p").first.evaluate("p => getComputedStyle(p).direction") == "rtl"
        assert await answer.locator("code").evaluate("code => getComputedStyle(code).direction") == "ltr"
        assert await page.locator(".said").evaluate("p => getComputedStyle(p).direction") == "rtl"
        # The marks of a list stand within the column, and the bar of a quotation on its side.
        for block in ("ul", "blockquote"):
            found = answer.locator(block)
            assert await found.evaluate("block => getComputedStyle(block).direction") == "rtl", block
            assert await found.evaluate("block => parseFloat(getComputedStyle(block).paddingRight)") > 0, block
        held, width = await widths(page)
        assert held <= width
        await expect(composer(page)).to_be_in_viewport()
        await composer(page).fill("مرحبا")
        assert await composer(page).evaluate("field => getComputedStyle(field).direction") == "rtl"


@requirement("R143")
async def test_wide_table_scrolls_and_breaks_no_words(chromium: Browser, tmp_path: Path):
    row = "|" + "|".join(f" value {number} " for number in range(14)) + "|"
    table = f"{row}\n|{'---|' * 14}\n{row}\n| {'x' * 3000} |"
    async with (
        page_server({"main": scripted([table])}, tmp_path) as (_, origin),
        tab(chromium, origin, width=390, height=844) as page,
    ):
        await ask(page, "Compare.")
        await is_over(page)
        held, width = await widths(page)
        assert held <= width
        cell = await answers(page).locator("td").nth(13).bounding_box()
        assert cell is not None
        assert cell["height"] < 60
        scrolled, shown = await answers(page).locator(".table").evaluate("box => [box.scrollWidth, box.clientWidth]")
        assert shown < scrolled < 3000


@requirement("R143")
async def test_answer_is_announced_once_at_start_and_end(chromium: Browser, tmp_path: Path):
    async with page_server(agents(), tmp_path) as (_, origin), tab(chromium, origin) as page:
        await ask(page, "Hello", "arabic")
        await is_over(page)
        status = page.get_by_role("status")
        await expect(status).to_have_text("Answer finished, 12 words")
        await page.reload()
        await expect(answers(page)).to_be_visible()
        await expect(status).to_have_text("")
        await expect(page.get_by_role("log")).to_have_attribute("aria-live", "off")


@requirement("R143")
@pytest.mark.parametrize("width", [360, 720])
async def test_narrow_window_names_controls_and_shows_whole_tools(chromium: Browser, tmp_path: Path, width: int):
    async with page_server(agents(), tmp_path) as (_, origin), tab(chromium, origin, width=width) as page:
        await ask(page, "Show me.", "text")
        await is_over(page)
        assert await violations_of_axe(page) == []
        await picker(page, "tools").locator("summary").click()
        box = await picker(page, "tools").locator(".pick-list").bounding_box()
        assert box is not None
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= width
        assert await violations_of_axe(page) == []
        await page.goto(f"{origin}/view/file")
        await expect(page.get_by_text("Open a parts file")).to_be_visible()
        assert await violations_of_axe(page) == []


@requirement("R143", "R144")
async def test_missing_token_explains_how_to_open_web_ui(chromium: Browser, tmp_path: Path):
    async with page_server(agents(), tmp_path, tokens=[TOKEN]) as (_, origin):
        for path in ("/", "/c/abc"):
            async with tab(chromium, origin, path) as page:
                await expect(page.get_by_role("main").get_by_role("alert")).to_contain_text("It ends with #token=")
                # Where the page is open already, only the fragment changes, and the page loads itself again.
                async with page.expect_event("load"):
                    await page.goto(f"{origin}{path}#token=wrong")
                await expect(page.get_by_role("main").get_by_role("alert")).to_contain_text("It ends with #token=")
                assert "wrong" not in page.url
                async with page.expect_event("load"):
                    await page.goto(f"{origin}{path}#token={TOKEN}")
                await expect(page.get_by_text("No conversations yet")).to_be_visible()
                await expect(page.get_by_text("It ends with #token=")).to_have_count(0)
                assert TOKEN not in page.url
        for address in (f"/#token={TOKEN}", f"/?token={TOKEN}"):
            async with tab(chromium, origin, address) as page:
                await ask(page, "Show me.", "text")
                await is_over(page)
                assert TOKEN not in page.url
                assert TOKEN not in await page.evaluate("document.cookie")
