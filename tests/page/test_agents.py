"""Agents that run as tools, in a browser: what they do while they run, after a reload, and once they have answered."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, Locator, Page, expect

from page.browsing import answers, ask, card, is_over, page_server, tab, violations_of_axe
from page.scenes import scripted
from requirements import requirement
from sidestream import Agent, Price
from sidestream.errors import ProviderError
from sidestream.parts import (
    InputUsage,
    ToolCall,
    ToolEvent,
    ToolInputDelta,
    ToolInputEnd,
    ToolInputStart,
    ToolResult,
    Usage,
)
from sidestream.testing import ScriptedModel, ScriptedReply, tool_call

pytestmark = pytest.mark.asyncio(loop_scope="session")

PAGES = {"sources": [{"url": "https://a.test/eclipse", "title": "Eclipses"}, {"url": "https://b.test/"}]}


def search(*before_its_end: asyncio.Event) -> list[Any]:
    """A search of the provider, which stops before its end."""
    return [
        ToolCall("ws_1", "web_search", "web_search", True, input={"query": "eclipse 2027"}),
        ToolEvent("web_search", "running", {"type": "web_search_call.searching"}, call_id="ws_1"),
        *before_its_end,
        ToolResult("ws_1", "web_search", "web_search", PAGES, False, True),
    ]


def code(*while_it_is_written: asyncio.Event) -> list[Any]:
    """Code of the provider, which stops while it is written."""
    return [
        ToolInputStart("ci_1", "code_interpreter", provider_executed=True),
        ToolInputDelta("ci_1", '{"code": "print(6 *'),
        *while_it_is_written,
        ToolInputDelta("ci_1", ' 64)"}'),
        ToolInputEnd("ci_1"),
        ToolCall("ci_1", "code_interpreter", "code_interpreter", True, input={"code": "print(6 * 64)"}),
        ToolResult("ci_1", "code_interpreter", "code_interpreter", {"logs": "384"}, False, True),
    ]


def minutes(seconds: int) -> str:
    """Seconds in words."""
    return f"{seconds // 60} min {seconds % 60} s"


def asking(*script: Any, **settings: Any) -> Agent[Any]:
    """An agent that asks a researcher, which plays this script."""
    priced = [ScriptedReply(reply, usage=Usage(InputUsage(total=5000, no_cache=5000))) for reply in script]
    prices = {"scripted:child": Price(input=1, output=1)}
    inner = Agent(ScriptedModel(priced, name="child"), tools=[minutes], prices=prices, **settings)
    tool = inner.as_tool("researcher", "Looks things up.")
    return scripted([tool_call("researcher", task="How long is the eclipse of 2027?"), "It is long."], tools=[tool])


def lines(page: Page) -> Locator:
    """The lines of the cards within the researcher's."""
    return page.locator(".nested .card-title")


@requirement("R143")
async def test_agent_calls_are_shown_live_after_reload_and_at_end(chromium: Browser, tmp_path: Path):
    searching, writing, answering = gates = [asyncio.Event() for _ in range(3)]
    agent = asking(
        [*search(searching), tool_call("minutes", seconds=383)], code(writing), [answering, "6 min 23 s, near Luxor."]
    )
    try:
        async with page_server({"main": agent}, tmp_path) as (_, origin), tab(chromium, origin) as page:
            await ask(page, "How long?")
            for _ in range(2):
                await expect(page.locator(".card-title").first).to_have_text("Asking researcher…")
                await expect(lines(page)).to_have_text(["Searching “eclipse 2027”…"])
                await page.reload()
            searching.set()
            for _ in range(2):
                await expect(lines(page)).to_have_text(
                    ["Searched “eclipse 2027” · 2 pages", "minutes", "Writing code…"]
                )
                await expect(card(page, "Writing code…").last.locator("pre")).to_have_text("print(6 *")
                await page.reload()
            assert await violations_of_axe(page) == []
            writing.set()
            done = ["Searched “eclipse 2027” · 2 pages", "minutes", "Ran Python"]
            await expect(lines(page)).to_have_text(done)
            answering.set()
            await is_over(page)
            for _ in range(2):
                await expect(lines(page)).to_have_count(0)
                head = answers(page).get_by_role("button", name="researcher answered · 3 steps · US$0.015")
                await expect(head).to_have_attribute("aria-expanded", "false")
                await head.click()
                await expect(lines(page)).to_have_text(done)
                await expect(page.locator(".card-body").first).to_contain_text("How long is the eclipse of 2027?")
                found = page.locator(".nested .card").first
                await found.locator(".card-head").click()
                await expect(found.locator(".pages li")).to_have_count(2)
                await page.get_by_text("Output", exact=True).last.click()
                await expect(page.locator(".output").last).to_have_text("6 min 23 s, near Luxor.")
                assert await violations_of_axe(page) == []
                await page.reload()
    finally:
        for gate in gates:
            gate.set()


@requirement("R143")
async def test_failed_agent_shows_error_and_earlier_calls(chromium: Browser, tmp_path: Path):
    agent = asking([*search(), tool_call("minutes", seconds=383)], [ProviderError("the model is gone")])
    async with page_server({"main": agent}, tmp_path) as (_, origin), tab(chromium, origin, width=360) as page:
        await ask(page, "How long?")
        await is_over(page)
        for _ in range(2):
            failed = card(page, "researcher: the model is gone")
            await expect(failed.locator("> .card-head")).to_have_attribute("aria-expanded", "true")
            await expect(lines(page)).to_have_text(["Searched “eclipse 2027” · 2 pages", "minutes"])
            assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")
            assert await violations_of_axe(page) == []
            await page.reload()


@requirement("R143")
async def test_agent_calls_stay_in_view_while_call_awaits_approval(chromium: Browser, tmp_path: Path):
    agent = asking([*search(), tool_call("minutes", seconds=383)], ["6 min 23 s."], approval="ask")
    async with page_server({"main": agent}, tmp_path) as (_, origin), tab(chromium, origin) as page:
        await ask(page, "How long?")
        for _ in range(2):
            await expect(page.locator(".approval").get_by_role("heading")).to_have_text("Allow minutes?")
            await expect(lines(page)).to_have_text(["Searched “eclipse 2027” · 2 pages", "minutes"])
            await page.reload()
        await page.get_by_role("button", name="Allow once").click()
        await expect(card(page, "researcher answered · 2 steps · US$0.01")).to_be_visible()
        await is_over(page)


@requirement("R143")
async def test_parallel_agents_keep_calls_apart_and_stop_together(chromium: Browser, tmp_path: Path):
    gate = asyncio.Event()
    one, other = (
        Agent(ScriptedModel([[*search(), gate, "Found."]])).as_tool(name, "Looks things up.") for name in ("ada", "bob")
    )
    agent = scripted([[tool_call("ada", task="A"), tool_call("bob", task="B")], "Done."], tools=[one, other])
    try:
        async with page_server({"main": agent}, tmp_path) as (_, origin), tab(chromium, origin) as page:
            await ask(page, "Both?")
            for name in ("ada", "bob"):
                nested = card(page, f"Asking {name}…").locator(".nested .card-title")
                await expect(nested).to_have_text(["Searched “eclipse 2027” · 2 pages"])
            await page.get_by_role("button", name="Stop", exact=True).click()
            await is_over(page)
            for _ in range(2):
                for name in ("ada", "bob"):
                    await expect(card(page, f"{name} did not answer")).to_be_visible()
                await page.reload()
    finally:
        gate.set()
