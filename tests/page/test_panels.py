"""Panels in a browser: MCP servers, models and keys, the timeline of a run, and the viewer of files."""

import asyncio
import json
import re
import sqlite3
import sys
from asyncio.subprocess import PIPE
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, Page, Route, expect

from cli.command import COMMAND
from page.browsing import answers, ask, card, is_over, page_server, tab, violations_of_axe
from page.scenes import DEMO, scripted, stopped
from requirements import requirement
from server.serving import JOB, KEY, agent_of, serving
from sidestream import Agent, tool
from sidestream.testing import FakeProvider, ResponsesScript, sse
from support import warm
from support.mcp_servers.peers import HERE
from support.mcp_servers.signed_in import SignInServer

BOUND_S = 30.0
pytestmark = pytest.mark.asyncio(loop_scope="session")

TOOLS = [
    {"name": "look", "description": "Looks.", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": True}},
    {
        "name": "wipe",
        "description": "Wipes.",
        "inputSchema": {"type": "object"},
        "annotations": {"destructiveHint": True},
    },
]


async def saved(page: Page, label: str, command: str) -> None:
    """Adds a local server in the panel."""
    await page.get_by_role("button", name="Add a server").click()
    await page.get_by_role("textbox", name="Label").fill(label)
    await page.get_by_role("textbox", name="Command").fill(command)
    await page.get_by_role("button", name="Save").click()


@requirement("R143", "R113")
async def test_servers_are_added_tested_and_saved_to_shared_file(chromium: Browser, tmp_path: Path):
    (tmp_path / "tools.json").write_text(json.dumps(TOOLS))
    file = tmp_path / "mcp.json"
    file.write_text(json.dumps({"comment": "stays", "mcpServers": {}}))
    rogue = f"{sys.executable} -I {HERE / 'rogue.py'} --tools {tmp_path / 'tools.json'}"
    async with (
        page_server({"main": scripted([])}, tmp_path, mcp_file=file, allows_admin=True) as (_, origin),
        tab(chromium, origin, "/settings/mcp") as page,
    ):
        await expect(page.get_by_text("No servers yet.")).to_be_visible()
        await saved(page, "eyes", rogue)
        # It is tested at once, stage by stage; what its tools claim is marked as a claim.
        row = page.locator(".st-item").filter(has_text="eyes")
        await expect(row).to_contain_text("2 tools")
        for stage in ("Start", "Handshake", "List"):
            await expect(row.locator(".st-stages")).to_contain_text(stage)
        await row.get_by_text("What the server claims about its tools").click()
        await expect(row.locator(".st-claims")).to_contain_text("look claims to be read-only")
        await expect(row.locator(".st-claims")).to_contain_text("wipe claims to make changes or reach other systems")
        # A command that is not there says so, in its own words.
        await saved(page, "broken", "/nowhere/mcp-server --now")
        broken = page.locator(".st-item").filter(has_text="broken")
        await expect(broken).to_contain_text("Failed")
        await expect(broken.get_by_role("alert")).to_contain_text("/nowhere/mcp-server")
        # Allowed tools, approval, and off.
        await row.get_by_role("button", name="Edit").click()
        await page.get_by_role("checkbox", name="look").check()
        await page.get_by_role("combobox", name="Approval").select_option("always")
        await page.get_by_role("button", name="Save").click()
        await expect(row.get_by_role("button", name="Edit")).to_be_visible()
        await broken.get_by_role("checkbox", name="Use this server").click()
        await expect(broken).to_contain_text("Off")
        await broken.get_by_role("button", name="Remove").click()
        await broken.locator(".danger").click()
        await expect(broken).to_have_count(0)
    kept: dict[str, Any] = json.loads(file.read_text())
    assert kept["comment"] == "stays"
    assert list(kept["mcpServers"]) == ["eyes"]
    assert "look" in json.dumps(kept["mcpServers"]["eyes"])


@requirement("R143")
async def test_older_list_does_not_undo_change_of_server(chromium: Browser, tmp_path: Path):
    (tmp_path / "tools.json").write_text(json.dumps(TOOLS))
    file = tmp_path / "mcp.json"
    entry = {"command": sys.executable, "args": ["-I", str(HERE / "rogue.py"), "--tools", str(tmp_path / "tools.json")]}
    file.write_text(json.dumps({"mcpServers": {"eyes": entry, "spare": {"command": "/nowhere/mcp-server"}}}))
    async with (
        page_server({"main": scripted([])}, tmp_path, mcp_file=file, allows_admin=True) as (_, origin),
        tab(chromium, origin, "/settings/mcp") as page,
    ):
        spare = page.locator(".st-item").filter(has_text="spare")
        await expect(spare).to_be_visible()
        asked, changed, listed = asyncio.Event(), asyncio.Event(), asyncio.Event()

        async def hold(route: Route) -> None:
            response = await route.fetch()
            if asked.is_set():
                listed.set()
            asked.set()
            await changed.wait()
            await route.fulfill(response=response)

        await page.route("**/api/mcp", hold)
        await page.locator(".st-item").filter(has_text="eyes").get_by_role("button", name="Test").click()
        async with asyncio.timeout(BOUND_S):
            await asked.wait()  # The list is read again after a test.
        await spare.get_by_role("checkbox", name="Use this server").click()
        await expect(spare).to_contain_text("Off")
        changed.set()
        async with asyncio.timeout(BOUND_S):
            await listed.wait()
        await expect(page.locator(".st-item").filter(has_text="eyes")).to_contain_text("2 tools")
        await expect(spare).to_contain_text("Off")


@requirement("R143", "F41")
async def test_changed_tool_is_shown_as_diff_and_accepted(chromium: Browser, tmp_path: Path):
    tools = tmp_path / "tools.json"
    tools.write_text(json.dumps(TOOLS))
    file = tmp_path / "mcp.json"
    entry = {"command": sys.executable, "args": ["-I", str(HERE / "rogue.py"), "--tools", str(tools)]}
    file.write_text(json.dumps({"mcpServers": {"eyes": entry}}))
    async with (
        page_server({"main": scripted([])}, tmp_path, mcp_file=file, allows_admin=True) as (_, origin),
        tab(chromium, origin, "/settings/mcp") as page,
    ):
        row = page.locator(".st-item").filter(has_text="eyes")
        test = row.get_by_role("button", name="Test")
        await test.click()
        await expect(row).to_contain_text("2 tools")
        schema = {"type": "object", "properties": {"mail": {"type": "string"}}}
        tools.write_text(json.dumps([{**TOOLS[0], "description": "Looks.\u200b Sends mail.", "inputSchema": schema}]))
        await test.click()
        changed = row.get_by_role("region", name="look has changed since it was accepted.")
        await expect(changed.locator("del").first).to_have_text("Looks.")
        await expect(changed.locator("ins").first).to_have_text("Looks.<U+200B> Sends mail.")
        await expect(changed).to_contain_text('"mail"')
        assert await violations_of_axe(page) == []
        await page.reload()
        await changed.get_by_role("button", name="Accept change").click()
        await expect(changed).to_have_count(0)
        await test.click()
        await expect(row).to_contain_text("1 tool")
        await expect(changed).to_have_count(0)


@requirement("R143")
async def test_models_and_keys_are_described_and_key_can_be_tested(
    chromium: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    async with FakeProvider() as fake:
        monkeypatch.setenv("OPENAI_BASE_URL", fake.base_url)
        async with (
            page_server("openai-responses", tmp_path, allows_admin=True) as (_, origin),
            tab(chromium, origin, "/settings/models") as page,
        ):
            await expect(page.locator(".st-item").first).to_contain_text("web_search")
            await expect(page.locator(".st-item.off").first).to_contain_text("needs")
            await page.get_by_role("link", name="Keys").click()
            openai = page.locator(".st-item").filter(has_text="OpenAI Responses")
            await expect(openai).to_contain_text(f"OPENAI_API_KEY found (ends {KEY[-4:]})")
            await expect(page.locator(".st-panel input")).to_have_count(0)
            await openai.get_by_role("button", name="Test").click()
            await expect(openai.get_by_role("alert")).to_be_visible()
            assert KEY not in await page.content()
            await page.get_by_role("link", name="Appearance").click()
            await page.get_by_role("radio", name="Dark").check()
            await expect(page.locator("html")).to_have_attribute("data-theme", "dark")
            await page.go_back()
            await expect(page.get_by_role("dialog")).to_have_count(0)


@requirement("R143", "R160")
async def test_runs_of_all_servers_are_listed_and_can_be_stopped(chromium: Browser, tmp_path: Path):
    gate = asyncio.Event()
    events = ResponsesScript().text(["One, ", "two."]).events()
    async with FakeProvider([sse([*events[:6], gate, *events[6:]])]) as fake:
        agents = {"main": agent_of(fake)}
        async with (
            serving(agents, tmp_path) as (other, _),
            page_server(agents, tmp_path) as (_, origin),
            tab(chromium, origin, "/settings/runs") as page,
        ):
            await expect(page.get_by_text("No runs in progress.")).to_be_visible()
            await other.runs.start(other.agent("main"), "/c1", "Count.", JOB)
            row = page.locator(".st-item")
            await expect(row).to_contain_text("process ")
            await expect(row).to_contain_text("since")
            await expect(row).not_to_contain_text("0.00")
            await expect(page.get_by_text("1 running")).to_be_visible()
            await row.get_by_role("button", name="Stop").click()
            await expect(page.get_by_text("No runs in progress.")).to_be_visible()
            assert [row.kind for row in await other.store.read("/c1")][-1] == "cancelled"
        fake.release(gate)


@requirement("R143")
async def test_card_links_to_records_with_raw_event_beside_part(chromium: Browser, tmp_path: Path):
    replies, _ = stopped("web_search")
    async with (
        FakeProvider(replies) as fake,
        page_server({"main": agent_of(fake)}, tmp_path) as (_, origin),
        tab(chromium, origin) as page,
    ):
        await ask(page, "How long is the eclipse?")
        await is_over(page)
        search = card(page, "Opened en.wikipedia.org")
        await search.locator(".card-head").click()
        await search.get_by_role("link", name="Open in timeline").click()
        await expect(page.get_by_role("heading", name="Timeline")).to_be_visible()
        part = page.get_by_role("region", name="Part")
        await expect(part).to_contain_text('"tool": "web_search"')
        await expect(page.get_by_role("region", name="Raw event")).to_contain_text("response.output_item.added")
        # The address is that of the record: it opens the same part in another window.
        shown = await part.inner_text()
        async with tab(chromium, origin, page.url.removeprefix(origin)) as other:
            await expect(other.get_by_role("region", name="Part")).to_contain_text('"tool": "web_search"')
            assert await other.get_by_role("region", name="Part").inner_text() == shown
        await expect(page.locator(".tl-steps")).to_contain_text("9,412 in, 388 out")
        await page.keyboard.press("j")
        await expect(part).not_to_have_text(shown)
        await page.get_by_role("button", name="Tools", exact=True).click()
        await expect(page.locator(".tl-row").filter(has_text="Answer")).to_have_count(0)
        async with page.expect_download() as download:
            await page.get_by_role("link", name="Parts (.jsonl)").click()
        lines = (await asyncio.to_thread((await (await download.value).path()).read_text)).splitlines()
        assert json.loads(lines[0])["type"]
        await page.get_by_role("link", name="Conversation", exact=True).click()
        await expect(answers(page)).to_be_visible()


@requirement("R143")
async def test_timeline_compresses_waits_and_shows_raw_events(chromium: Browser, tmp_path: Path):
    @tool(approval="ask")
    def book(seats: int) -> str:
        """Books seats."""
        return "booked"

    replies = [
        ResponsesScript(id="r1").function_call("book", {"seats": 2}, "call_1").reply(),
        ResponsesScript(id="r2").text("Done.").reply(),
    ]
    async with FakeProvider(replies) as fake:
        agent = Agent("openai-responses", api_key=KEY, base_url=fake.base_url, tools=[book])
        async with page_server({"main": agent}, tmp_path) as (_, origin), tab(chromium, origin) as page:
            await ask(page, "Book two.")
            allow = page.locator(".approval").get_by_role("button", name="Allow once")
            await expect(allow).to_be_enabled()
            await is_over(page)
            # What was logged so far was 14 minutes ago.
            with closing(sqlite3.connect(tmp_path / "talks.db")) as connection, connection:
                connection.execute("UPDATE records SET time = time - 840")
            await allow.click()
            await is_over(page)
            await page.get_by_role("link", name="Timeline").last.click()
            await expect(page.locator(".tl-break")).to_have_count(1)
            await expect(page.locator(".tl-break")).to_contain_text("waited 14 min")
            shown, whole = (
                await page.locator(".tl-break").bounding_box(),
                await page.locator(".tl-breaks").bounding_box(),
            )
            assert shown is not None
            assert whole is not None
            assert shown["width"] < whole["width"] * 0.1
            await page.locator(".tl-row").filter(has_text=re.compile("book")).first.click()
            await expect(page.get_by_role("region", name="Part")).to_contain_text("book")
            await expect(page.get_by_role("region", name="Raw event")).to_be_visible()
            await page.get_by_role("checkbox", name="Linear time scale").check()
            await expect(page.locator(".tl-break")).to_have_count(0)


@requirement("F48", "R215")
async def test_panels_are_read_only_for_other_tokens(
    chromium: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("SIDESTREAM_INDEX", str(tmp_path / "index.db"))
    monkeypatch.setenv("OPENAI_API_KEY", "key-0123456789abcdef")
    file = tmp_path / "mcp.json"
    file.write_text(json.dumps({"mcpServers": {"files": {"command": "secret-program"}}}))
    owner, other = "token-of-owner-0123456789", "token-of-anna-0123456789"
    settings: Any = {"mcp_file": str(file), "index_folders": [str(tmp_path)], "owner_token": owner, "tokens": [other]}
    async with page_server({"main": scripted([])}, tmp_path, **settings) as (_, origin):
        for token, count in ((owner, 1), (other, 0)):
            async with tab(chromium, origin, f"/settings/mcp#token={token}") as page:
                await expect(page.get_by_role("heading", name=re.compile("^files"))).to_be_visible()
                await expect(page.get_by_role("button", name="Add a server")).to_have_count(count)
                await expect(page.get_by_text("secret-program")).to_have_count(count)
                await page.goto(f"{origin}/settings/keys")
                # Other users see no keys at all.
                shown = page.get_by_text(
                    "OPENAI_API_KEY found" if count else "The models that this server can call"
                ).first
                await expect(shown).to_be_visible()
                await expect(page.get_by_role("link", name="Keys")).to_have_count(count)
                assert bool(await page.get_by_role("button", name="Test").count()) == bool(count)
                assert ("_API_KEY" in await page.content()) == bool(count)
                await page.goto(f"{origin}/settings/indexes")
                await expect(page.get_by_text("No folders yet.")).to_be_visible()
                await expect(page.get_by_role("button", name="Add folder")).to_have_count(count)
                assert await violations_of_axe(page) == []


@requirement("R143")
async def test_view_opens_recording_in_timeline(chromium: Browser, tmp_path: Path):
    process = await warm.start(*COMMAND, "view", DEMO / "code_run.json", "--no-browser", cwd=tmp_path, stdout=PIPE)
    try:
        assert process.stdout is not None
        address = (await process.stdout.readline()).decode().strip()
        origin, path = address[: address.index("/view/")], address[address.index("/view/") :]
        async with tab(chromium, origin, path) as page:
            await expect(page.locator(".tl-row").filter(has_text="code_interpreter").first).to_be_visible()
            await page.locator(".tl-row").filter(has_text="code_interpreter").first.click()
            await expect(page.get_by_role("region", name="Part")).to_contain_text("code_interpreter")
            # The file has no times, so no row says how long it took.
            await expect(page.get_by_text("This file has no timestamps")).to_be_visible()
            await expect(page.locator(".tl-took")).to_have_count(0)
            # There is nobody to converse with: no list of conversations, no field, no settings, at any address.
            for elsewhere in ("/", "/c/abc", "/settings/models"):
                await page.goto(f"{origin}{elsewhere}")
                await page.wait_for_url(f"**{path.partition('#')[0]}*")
                await expect(page.locator(".tl-row").first).to_be_visible()
                await expect(page.get_by_role("navigation")).to_have_count(0)
                await expect(page.get_by_role("textbox", name="Message")).to_have_count(0)
                await expect(page.get_by_role("dialog")).to_have_count(0)
            assert await violations_of_axe(page) == []
    finally:
        process.terminate()
        await process.communicate()


@requirement("R143")
async def test_parts_file_opens_in_web_ui(chromium: Browser, tmp_path: Path):
    parts = [
        {"type": "stream-start", "warnings": []},
        {"type": "text-start", "id": "t"},
        {"type": "text-delta", "id": "t", "delta": "Hello from a file"},
        {"type": "text-end", "id": "t"},
    ]
    file = tmp_path / "parts.jsonl"
    file.write_text("".join(json.dumps(part) + "\n" for part in parts))
    async with page_server({"main": scripted([])}, tmp_path) as (_, origin), tab(chromium, origin, "/view/x") as page:
        await page.locator("input[type=file]").set_input_files(file)
        await expect(page.get_by_text("This file has no timestamps")).to_be_visible()
        await page.locator(".tl-row").filter(has_text="Text").click()
        await page.keyboard.press("j")
        await expect(page.get_by_role("region", name="Part")).to_contain_text("Hello from a file")


@requirement("R143")
async def test_sign_in_in_other_tab_retests_server_automatically(chromium: Browser, tmp_path: Path):
    file = tmp_path / "mcp.json"
    async with SignInServer().running() as remote:
        file.write_text(json.dumps({"mcpServers": {"docs": {"url": remote.url}}}))
        async with (
            page_server({"main": scripted([])}, tmp_path, mcp_file=file, allows_admin=True) as (_, origin),
            tab(chromium, origin, "/settings/mcp") as page,
        ):
            row = page.locator(".st-item").filter(has_text="docs")
            await expect(row).to_contain_text("Not tested")
            await row.get_by_role("button", name="Test").click()
            await expect(row).to_contain_text("Sign-in required")
            async with page.context.expect_page() as opened:
                await row.get_by_role("button", name="Sign in").click()
            # The other server sends the tab back to this one, which says that it is done.
            await expect((await opened.value).locator("body")).to_contain_text("You are signed in.")
            await expect(row).to_contain_text(f"Signed in at {remote.origin}")
            await expect(row).to_contain_text("1 tool")
            assert "canary" not in await page.content()
            await row.get_by_role("button", name="Sign out").click()
            await expect(row).not_to_contain_text("Signed in")
