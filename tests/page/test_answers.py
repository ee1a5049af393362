"""What an answer looks like in a browser: tools through their stages, code, images, citations and files."""

import asyncio
import json
from pathlib import Path

import pytest
from aiohttp import web
from msgspec.structs import replace
from playwright.async_api import Browser, expect

from page.browsing import answers, ask, card, is_over, page_server, pick, picker, tab, until, violations_of_axe
from page.scenes import has, scripted, stopped
from requirements import requirement
from server.serving import agent_of
from sidestream import FileSearch, WebFetch
from sidestream.evidence import Evidence
from sidestream.parts import File, Source, TextDelta, TextEnd, TextStart
from sidestream.testing import FakeProvider, ResponsesScript, error_reply, json_reply, pixel_png
from support.citations import citing
from support.web_pages import serve

pytestmark = pytest.mark.asyncio(loop_scope="session")

QUOTE = "The greatest duration is 6 minutes 23 seconds, near Luxor."


def cited() -> list[object]:
    """A text with two sources, of which the first is cited twice."""
    text = "It lasts 6 min 23 s near Luxor. Spain sees less. Longest at Luxor."
    nasa = {"kind": "url", "url": "https://eclipse.test/2027", "title": "NASA: Total Eclipse", "text_id": "t1"}
    wiki = {"kind": "url", "url": "https://wiki.test/Eclipse", "title": "Eclipse of 2027", "text_id": "t1"}
    return [
        TextStart("t1"),
        TextDelta("t1", text),
        Source("s1", start=0, end=30, cited_text=QUOTE, **nasa),
        Source("s2", start=32, end=47, cited_text="In Spain: 4 minutes.", **wiki),
        Source("s3", start=49, end=65, **nasa),
        TextEnd("t1"),
        Source("s4", "url", url="https://read.test/only", title="Only read"),
    ]


@requirement("R143")
async def test_search_shows_stages_and_ends_as_line_with_pages(chromium: Browser, tmp_path: Path):
    replies, (searching, answering) = stopped("web_search", has("web_search_call.completed"), has("output_text.delta"))
    async with (
        FakeProvider(replies) as fake,
        page_server({"main": agent_of(fake)}, tmp_path) as (_, origin),
        tab(chromium, origin) as page,
    ):
        await ask(page, "How long is the eclipse?")
        await expect(card(page, "Searching…")).to_be_visible()
        fake.release(searching)
        search = card(page, "Searched “total solar eclipse 2 August 2027 maximum duration totality” · 3 pages")
        await expect(search).to_be_visible()
        await expect(search.locator(".card-where")).to_contain_text("OpenAI")
        await expect(card(page, "Opened en.wikipedia.org")).to_be_visible()
        fake.release(answering)
        await is_over(page)
        await search.locator(".card-head").click()
        await expect(search.locator(".pages li")).to_have_count(3)
        # Thinking that is not shown has no line: the line of the next call notes it.
        await expect(search.get_by_title("Thought first, not shown by OpenAI")).to_be_visible()
        await expect(page.locator(".reasoning")).to_have_count(0)
        # Chips stand in the text by the spans of their sources, and bear the numbers of the footnotes.
        await expect(answers(page).locator(".chip")).to_have_text(
            ["1 eclipse.gsfc.nasa.gov", "2 en.wikipedia.org", "2 en.wikipedia.org"]
        )
        await expect(answers(page).locator(".footnotes li")).to_have_count(2)
        await expect(page.locator(".facts")).to_contain_text("gpt-5.6")
        await expect(page.locator(".facts")).not_to_contain_text("tokens")
        await page.locator(".facts").hover()
        await expect(page.get_by_role("tooltip")).to_contain_text("9,412 tokens in (3,840 cached)")


@requirement("R143")
async def test_code_is_streamed_with_output_and_file(chromium: Browser, tmp_path: Path):
    replies, (writing, running) = stopped("code_run", has("matplotlib"), has("code_interpreter_call.interpreting"))
    async with (
        FakeProvider(replies) as fake,
        page_server({"main": agent_of(fake)}, tmp_path) as (_, origin),
        tab(chromium, origin) as page,
    ):
        await ask(page, "Plot the length of the day.")
        code = card(page, "Writing code…")
        await expect(code.locator("pre")).to_have_text("import numpy as np\nimport")
        fake.release(writing)
        code = card(page, "Running…")
        await expect(code.locator("pre")).to_contain_text("day_length.png")
        fake.release(running)
        await is_over(page)
        code = card(page, "Ran Python")
        # Done: the code is folded, what it printed is not.
        await expect(code.locator(".output")).to_contain_text("Berlin   7.4 to 16.6 hours")
        await expect(code.locator("figure.code")).to_have_count(0)
        await code.locator(".card-head").click()
        await expect(code.locator("figure.code pre")).to_contain_text("import matplotlib.pyplot as plt")
        file = answers(page).locator("figure.file")
        await expect(file.locator(".file-name")).to_have_text("day_length.png")
        assert await file.locator("img").evaluate("image => image.decode().then(() => image.naturalWidth)") > 100
        async with page.expect_download() as download:
            await file.get_by_role("link", name="Download").click()
        assert (await download.value).suggested_filename == "day_length.png"


@requirement("R143")
async def test_previews_and_image_share_box(chromium: Browser, tmp_path: Path):
    replies, (first, done) = stopped(
        "image", has("image_generation_call.partial_image"), has("generation_call.completed")
    )
    async with (
        FakeProvider(replies) as fake,
        page_server({"main": agent_of(fake)}, tmp_path) as (_, origin),
        tab(chromium, origin) as page,
    ):
        await ask(page, "Paint a fjord.")
        box = page.locator(".picture")
        await expect(card(page, "Making an image…").locator(".picture")).to_be_visible()
        fake.release(first)
        await expect(card(page, "Preview 2")).to_be_visible()
        await box.locator("img").evaluate("image => image.decode()")
        preview = await box.bounding_box()
        source = await box.locator("img").get_attribute("src")
        fake.release(done)
        await is_over(page)
        await expect(card(page, "Made an image").locator(".picture img")).to_have_attribute("alt", "image_1.png")
        assert await box.locator("img").get_attribute("src") != source
        await box.locator("img").evaluate("image => image.decode()")
        assert preview is not None
        assert await box.bounding_box() == preview
        await expect(answers(page).get_by_role("link", name="Download")).to_have_count(1)


@requirement("R143")
async def test_mcp_call_arguments_are_visible_without_opening(chromium: Browser, tmp_path: Path):
    replies, _ = stopped("mcp")
    async with (
        FakeProvider(replies) as fake,
        page_server({"main": agent_of(fake)}, tmp_path) as (_, origin),
        tab(chromium, origin) as page,
    ):
        await ask(page, "Which train?")
        await is_over(page)
        call = card(page, "timetable: departures")
        await expect(call.locator(".values")).to_have_text("fromUppsala CtoStockholm Cafter17:30limit3")
        await call.get_by_text("Output", exact=True).click()
        await expect(call.locator(".output")).to_contain_text("17:39")
        thought = card(page, "Thought")
        await expect(thought.locator(".card-body")).to_be_hidden()
        await thought.locator(".card-head").click()
        await expect(thought.locator(".card-body")).to_contain_text("Looking")


@requirement("R143")
async def test_citation_chip_shows_quote_and_links_footnote_and_source(chromium: Browser, tmp_path: Path):
    async with page_server({"main": scripted([cited()])}, tmp_path) as (_, origin), tab(chromium, origin) as page:
        await ask(page, "How long?")
        await is_over(page)
        chips = answers(page).locator(".chip")
        # The same source has the same number, in the order of first use; chip 1 is footnote 1.
        await expect(chips).to_have_text(["1 eclipse.test", "2 wiki.test", "1 eclipse.test"])
        notes = answers(page).locator(".footnotes li")
        await expect(notes).to_have_text(["NASA: Total Eclipse eclipse.test", "Eclipse of 2027 wiki.test"])
        assert await answers(page).locator(".markdown p").inner_text() == (
            "It lasts 6 min 23 s near Luxor1 eclipse.test. Spain sees less2 wiki.test. Longest at Luxor1 eclipse.test."
        )
        await chips.first.hover()
        await expect(page.get_by_role("tooltip")).to_contain_text(QUOTE)
        await expect(page.get_by_role("tooltip")).to_contain_text("not checked")
        await page.mouse.move(0, 0)
        await expect(page.get_by_role("tooltip")).to_have_count(0)
        await chips.nth(1).focus()
        await expect(page.get_by_role("tooltip")).to_contain_text("In Spain: 4 minutes.")
        await chips.nth(1).press("Enter")
        await expect(page.locator(".inspector .current")).to_contain_text("Eclipse of 2027")
        await expect(page.locator(".inspector .current blockquote")).to_have_text("In Spain: 4 minutes.")
        await page.keyboard.press("Escape")
        await page.get_by_role("button", name="1 more page read").click()
        await expect(page.locator(".inspector li")).to_have_count(3)
        await page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        await answers(page).get_by_role("button", name="Copy", exact=True).click()
        copied = await page.evaluate("navigator.clipboard.readText()")
        assert copied.startswith("It lasts 6 min 23 s near Luxor[1]. Spain sees less[2].")
        assert copied.endswith(
            "[1] NASA: Total Eclipse: https://eclipse.test/2027\n[2] Eclipse of 2027: https://wiki.test/Eclipse"
        )


@requirement("R143")
async def test_quote_missing_from_source_is_marked(chromium: Browser, tmp_path: Path):
    found = Source("s1", "url", url="https://a.test/", start=0, end=4, cited_text="True.", text_id="t1")
    found = replace(found, evidence=Evidence("quoted", "the source has the quoted words"))
    missing = replace(found, id="s2", url="https://b.test/", start=6, end=12, cited_text="Invented.")
    missing = replace(missing, evidence=Evidence("not-found", "the quoted words are not in the source"))
    reply = [TextStart("t1"), TextDelta("t1", "True. Invented."), found, missing, TextEnd("t1")]
    async with page_server({"main": scripted([reply])}, tmp_path) as (_, origin), tab(chromium, origin) as page:
        await ask(page, "Is it so?")
        await is_over(page)
        for _ in range(2):
            good, bad = answers(page).locator(".chip").first, answers(page).locator(".chip").nth(1)
            await expect(good).to_have_accessible_name("Source 1, a.test, quoted from the source")
            await expect(bad).to_have_accessible_name("Source 2, b.test, not found in the source")
            await expect(bad.locator("svg")).to_be_visible()
            await expect(good.locator("svg")).to_have_count(0)
            await bad.hover()
            await expect(page.get_by_role("tooltip")).to_contain_text("not found in the source")
            await expect(answers(page).locator(".footnotes li").nth(1)).to_contain_text("not found in the source")
            await page.reload()


@requirement("R231")
async def test_citation_of_file_is_checked_on_request(chromium: Browser, tmp_path: Path):
    claim = "The bridge is 1,780 metres long."
    note = {"type": "file_citation", "file_id": "file-1", "filename": "facts.txt", "index": len(claim)}
    script = ResponsesScript().file_search("bridge").text(claim, annotations=[note])
    stored = {"data": [{"type": "text", "text": "The bridge is 1,870 metres long."}], "has_more": False}
    tools = [WebFetch(), FileSearch(stores=["vs_1"])]
    async with FakeProvider([script.reply()]) as fake:
        fake.on("GET", "/v1/vector_stores/vs_1/files/file-1/content", json_reply(stored))
        async with (
            page_server({"main": agent_of(fake, server_side_tools=tools)}, tmp_path) as (_, origin),
            tab(chromium, origin) as page,
        ):
            await ask(page, "How long is it?")
            await is_over(page)
            button = answers(page).get_by_role("button", name="Check citations")
            await button.click()
            await expect(answers(page).get_by_role("button", name="contradicted by the source")).to_be_visible()
            await expect(answers(page).get_by_role("status")).to_have_text("0 of 1 source confirmed")
            await expect(button).to_have_count(0)


@requirement("R231")
async def test_citations_are_checked_on_request(chromium: Browser, tmp_path: Path):
    asked, answered = asyncio.Event(), asyncio.Event()

    async def facts(request: web.Request) -> web.Response:
        asked.set()
        await answered.wait()
        return web.Response(text="<main><p>The bridge is 1,870 metres long.</p></main>", content_type="text/html")

    async with serve({"/facts": facts, "/more": web.Response(status=410)}) as site:
        claims = [("The bridge is 1,780 metres long.", "/facts"), ("It is old.", "/more")]
        script = citing((claim, site.url(path), path.strip("/")) for claim, path in claims)
        tools = [WebFetch(allow_hosts=[site.host])]
        async with (
            FakeProvider([script.reply()]) as fake,
            page_server({"main": agent_of(fake, server_side_tools=tools)}, tmp_path) as (_, origin),
            tab(chromium, origin) as page,
        ):
            await ask(page, "How long is it?")
            await is_over(page)
            button = answers(page).get_by_role("button", name="Check citations")
            await button.click()
            await asked.wait()
            await expect(answers(page).get_by_role("button", name="Checking 2 sources…")).to_be_disabled()
            answered.set()
            for _ in range(2):
                await expect(answers(page).get_by_role("status")).to_have_text("0 of 2 sources confirmed")
                await expect(button).to_have_count(0)
                mark = answers(page).get_by_role("button", name="contradicted by the source")
                box = await mark.bounding_box()
                assert box is not None
                await page.mouse.move(box["x"] - 40, box["y"] - 40)
                await page.mouse.move(box["x"] + 9, box["y"] + 9, steps=9)
                await expect(page.get_by_role("tooltip")).to_contain_text("“1,780 metres”, the source “1,870 metres”")
                await page.mouse.move(0, 0)
                await expect(page.get_by_role("tooltip")).to_have_count(0)
                await answers(page).get_by_role("button", name="source could not be read").focus()
                await expect(page.get_by_role("tooltip")).to_contain_text("the page was removed")
                assert await violations_of_axe(page) == []
                await page.reload()
            await page.get_by_role("link", name="Timeline").last.click()
            await expect(page.get_by_text("Citations checked: 0 of 2 confirmed")).to_be_visible()


@requirement("R143")
async def test_files_are_viewed_and_downloaded(chromium: Browser, tmp_path: Path):
    table = b"city,hours\nOslo,18.8\n"
    reply = [
        "Here they are.",
        File("f1", "text/csv", name="hours.csv", data=table),
        File("f2", "image/png", name="dot.png", data=pixel_png(200)),
        File("f3", "application/zip", name="all.zip", data=b"PK\x03\x04" + bytes(40)),
    ]
    async with page_server({"main": scripted([reply])}, tmp_path) as (_, origin), tab(chromium, origin) as page:
        await ask(page, "Give me the files.")
        await is_over(page)
        files = answers(page).locator("figure.file")
        await expect(files.locator(".file-name")).to_have_text(["hours.csv", "dot.png", "all.zip"])
        # The text beside the thread, the image in full; an archive is only downloaded.
        await expect(files.get_by_role("button", name="View")).to_have_count(2)
        await files.first.get_by_role("button", name="View").click()
        await expect(page.locator(".inspector")).to_contain_text("Oslo,18.8")
        await expect(files.locator("img")).to_have_count(1)
        async with page.expect_download() as download:
            await files.first.get_by_role("link", name="Download").click()
        path = await (await download.value).path()
        assert await asyncio.to_thread(path.read_bytes) == table


@requirement("R143")
async def test_refused_key_names_variable_and_links_to_keys(chromium: Browser, tmp_path: Path):
    refusal = error_reply(401, "invalid_api_key", "Incorrect API key provided")
    async with (
        FakeProvider([refusal]) as fake,
        page_server({"main": agent_of(fake)}, tmp_path) as (_, origin),
        tab(chromium, origin) as page,
    ):
        await ask(page, "Hello")
        error = answers(page).get_by_role("alert")
        await expect(error).to_contain_text("OpenAI rejected the API key (401). Check OPENAI_API_KEY.")
        await error.get_by_role("link", name="Keys").click()
        await expect(page.get_by_role("dialog", name="Settings")).to_contain_text("OPENAI_API_KEY is not set")
        await page.keyboard.press("Escape")
        await expect(page.get_by_role("dialog")).to_have_count(0)
        await expect(error).to_be_visible()


@requirement("R143")
async def test_model_picker_shows_hosted_tools_and_missing_keys(
    chromium: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-canary-51f0a7c2d94e4b6f")
    replies, _ = stopped("web_search")
    async with FakeProvider(replies) as fake:
        monkeypatch.setenv("OPENAI_BASE_URL", fake.base_url)
        async with page_server("openai-responses", tmp_path) as (_, origin), tab(chromium, origin) as page:
            await picker(page, "model").locator("summary").click()
            missing = picker(page, "model").locator(".option", has_text="needs ANTHROPIC_API_KEY").first
            await expect(missing.get_by_role("radio")).to_be_disabled()
            await page.keyboard.press("Escape")
            # The examples name the tools that they use.
            await expect(page.locator(".example").first).to_contain_text("uses web search")
            await pick(page, "thinking", "low")
            await picker(page, "tools").locator("summary").click()
            await expect(page.get_by_role("radio", name="Server default")).to_be_checked()
            await page.get_by_role("checkbox", name="web search hosted").check()
            await expect(page.get_by_role("radio", name="Server default")).not_to_be_checked()
            await expect(page.get_by_role("checkbox", name="web fetch here")).to_be_enabled()
            await page.keyboard.press("Escape")
            await expect(picker(page, "tools").locator(".pick-list")).to_be_hidden()
            await ask(page, "How long is the eclipse?")
            await is_over(page)
        sent = json.loads(fake.requests[0].body)
        assert [tool["type"] for tool in sent["tools"]] == ["web_search"]
        assert sent["reasoning"]["effort"] == "low"


@requirement("R143")
async def test_card_in_view_does_not_fold(chromium: Browser, tmp_path: Path):
    replies, (running,) = stopped("code_run", has("code_interpreter_call.interpreting"))
    async with (
        FakeProvider(replies) as fake,
        page_server({"main": agent_of(fake)}, tmp_path) as (_, origin),
        tab(chromium, origin, height=480) as page,
    ):
        await ask(page, "Plot the length of the day.")
        await expect(card(page, "Running…").locator("pre")).to_contain_text("day_length.png")
        view = page.locator(".thread-view")
        await view.hover(position={"x": 10, "y": 10})  # beside the code, which scrolls by itself
        end = await view.evaluate("view => view.scrollTop")
        await page.mouse.wheel(0, -end)
        await until(page, "document.querySelector('.thread-view').scrollTop === 0")
        before = await page.locator("figure.code").bounding_box()
        fake.release(running)
        await is_over(page)
        await expect(card(page, "Ran Python")).to_be_visible()
        assert before is not None
        assert await page.locator("figure.code").bounding_box() == before
        # Once it is off the screen, it folds.
        await page.get_by_role("button", name="Jump to latest").click()
        await expect(page.locator("figure.code")).to_have_count(0)


@requirement("R143")
async def test_image_opens_full_size(chromium: Browser, tmp_path: Path):
    image = File("f1", "image/png", "chart.png", pixel_png())
    async with (
        page_server({"main": scripted([["Look:", image]])}, tmp_path) as (_, origin),
        tab(chromium, origin) as page,
    ):
        await ask(page, "Draw.")
        await is_over(page)
        view = answers(page).get_by_role("button", name="View")
        await view.click()
        large = page.get_by_role("dialog", name="chart.png").get_by_role("img", name="chart.png")
        await expect(large).to_be_visible()
        assert await violations_of_axe(page) == []
        await page.keyboard.press("Escape")
        await expect(large).to_have_count(0)
        await expect(view).to_be_focused()
