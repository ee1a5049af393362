"""Two timelines in a browser: a run is continued from one of its parts, and the fork is compared with its original."""

import re
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, expect

from page.browsing import answers, ask, is_over, page_server, tab, violations_of_axe
from requirements import requirement
from server.serving import agent_of
from sidestream.testing import FakeProvider, ResponsesScript, sse

pytestmark = pytest.mark.asyncio(loop_scope="session")


def price(item: str) -> str:
    """Look up the price of an item."""
    return "1000 euros"


def asking(*texts: str) -> list[Any]:
    call = ResponsesScript(id="r0").function_call("price", {"item": "lamp"}, "call_1")
    said = [ResponsesScript(id=f"r{number}").text(text) for number, text in enumerate(texts, 1)]
    return [sse(script.events()) for script in (call, *said)]


@requirement("R221", "R143", "R144")
async def test_run_continues_from_corrected_result(chromium: Browser, tmp_path: Path):
    async with (
        FakeProvider(asking("A lamp costs 1,000 euros.", "A lamp costs 10 euros.")) as fake,
        page_server({"main": agent_of(fake, tools=[price])}, tmp_path) as (_, origin),
        tab(chromium, origin) as page,
    ):
        await ask(page, "What does a lamp cost?")
        await is_over(page)
        await page.get_by_role("link", name="Timeline").last.click()
        await page.locator(".tl-row.tool").filter(has_text="price").click()
        await page.get_by_role("button", name="Continue from here").click()
        form = page.get_by_role("dialog", name=re.compile("^Continue from record"))
        result = form.get_by_role("textbox", name="Result")
        await expect(form.get_by_role("combobox", name="Change")).to_have_value("0")
        await expect(result).to_have_value("1000 euros")
        await result.fill("10 euros")
        assert await violations_of_axe(page) == []
        before = page.url
        await form.get_by_role("button", name="Continue").click()
        # The fork opens, names its original, and goes on live.
        await expect(page.locator(".tl-origin")).to_contain_text("Forked from another run at record")
        await expect(page.locator(".tl-origin")).to_contain_text("another result")
        assert page.url.partition("?")[0] != before.partition("?")[0]
        # Both timelines, side by side, by keyboard.
        await page.get_by_role("link", name="Compare with the original").focus()
        await page.keyboard.press("Enter")
        old, new = page.get_by_role("region", name="Original"), page.get_by_role("region", name="Fork")
        await expect(old).to_contain_text("A lamp costs 1,000 euros.")
        await expect(new).to_contain_text("A lamp costs 10 euros.")
        await expect(page.locator(".tl-common")).to_contain_text(re.compile(r"^\d+ records in common"))
        for side, value in ((old, "1000 euros"), (new, "10 euros")):
            first = side.get_by_role("listitem").filter(has_text="First difference")
            await expect(first).to_have_count(1)
            await expect(first).to_contain_text(value)
            await expect(side).to_contain_text(re.compile("in, .* out · "))
        await expect(page.locator(".tl-both").get_by_text("What does a lamp cost?")).to_have_count(0)
        assert await violations_of_axe(page) == []
        wide = await old.bounding_box(), await new.bounding_box()
        await page.set_viewport_size({"width": 390, "height": 800})
        narrow = await old.bounding_box(), await new.bounding_box()
        (left, right), (upper, lower) = ([box for box in boxes if box is not None] for boxes in (wide, narrow))
        assert (left["y"], upper["x"]) == (right["y"], lower["x"])
        assert lower["y"] >= upper["y"] + upper["height"]
        await page.set_viewport_size({"width": 1440, "height": 900})
        await expect(page.get_by_role("link", name="Fork: What does a lamp cost?")).to_be_visible()
        await page.get_by_role("link", name="Timeline", exact=True).click()
        await page.get_by_role("link", name="Conversation", exact=True).click()
        await expect(answers(page)).to_contain_text("10 euros")
        results = [entry["output"] for entry in fake.requests[-1].json["input"] if "output" in entry]
        assert (len(fake.requests), results) == (3, ["10 euros"])
