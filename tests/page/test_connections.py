"""The page when connections break, servers restart, and several windows look at one conversation."""

import asyncio
import os
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from playwright.async_api import Browser, expect

from cli.command import COMMAND
from page.browsing import answers, ask, is_over, page_server, picker, tab
from page.scenes import scripted, slow
from requirements import requirement
from server.serving import KEY
from sidestream.testing import FakeProvider, ResponsesScript, error_reply, sse
from support import warm

pytestmark = pytest.mark.asyncio(loop_scope="session")


@asynccontextmanager
async def serve_process(fake: FakeProvider, path: Path, port: int = 0) -> AsyncGenerator[tuple[Process, str, str]]:
    """`sidestream serve` in a process of its own, its origin, and the path with its token."""
    command = [*COMMAND, "serve", "-m", "openai-responses"]
    folders = {"XDG_DATA_HOME": str(path / "data"), "XDG_CONFIG_HOME": str(path / "config")}
    environment = {**os.environ, **folders, "OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": fake.base_url}
    process = await warm.start(
        *command, "--port", str(port), "--store", path / "talks.db", cwd=path, env=environment, stdout=PIPE
    )
    try:
        assert process.stdout is not None
        while b"http://" not in (line := await process.stdout.readline()):
            assert line, "the server has ended"
        origin, token = line[line.index(b"http://") :].split()[0].decode().split("/#")
        yield process, origin, f"/#{token}"
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


@requirement("R143", "R142")
@pytest.mark.parametrize("is_resumed", [True, False])
async def test_run_of_killed_server_resumes_or_says_why_not(chromium: Browser, tmp_path: Path, is_resumed: bool):
    events = ResponsesScript().text(["One two ", "three four."]).events()
    cut = sse([*events[:5], asyncio.Event(), *events[5:]])
    again = sse(ResponsesScript().text("One two three four, from the start.").events())
    refusal = error_reply(401, "invalid_api_key", "Incorrect API key provided")
    async with (
        FakeProvider([cut, again if is_resumed else refusal]) as fake,
        serve_process(fake, tmp_path) as (process, origin, at),
        tab(chromium, origin, at) as page,
    ):
        await ask(page, "Count.")
        await expect(answers(page).get_by_text("One two")).to_be_visible()
        process.kill()
        await process.wait()
        await expect(page.get_by_text("No connection. The run continues on the server.")).to_be_visible()
        await expect(answers(page).get_by_text("One two")).to_be_visible()
        async with serve_process(fake, tmp_path, int(origin.rpartition(":")[2])):
            await is_over(page)
            await expect(page.get_by_text("No connection.")).to_have_count(0)
            await expect(answers(page)).to_contain_text("Server restarted; run resumed at step 1")
            if is_resumed:
                await expect(answers(page)).to_contain_text("One two three four, from the start.")
            else:
                await expect(answers(page).get_by_role("alert")).to_contain_text("Check OPENAI_API_KEY.")
            await expect(answers(page)).to_have_count(1)


@requirement("R143")
async def test_message_without_connection_waits_and_is_sent_once(chromium: Browser, tmp_path: Path):
    async with page_server({"main": scripted(lambda request: f"Number {len(request.messages)}")}, tmp_path) as served:
        _, origin = served
        async with tab(chromium, origin) as page:
            await ask(page, "First")
            await is_over(page)
            await page.context.set_offline(True)
            await ask(page, "Second")
            # No run continues: the server does not have the message.
            waits = "No connection. Your message will be sent when the server responds."
            await expect(page.get_by_text(waits)).to_be_visible()
            await expect(page.get_by_text("The run continues")).to_have_count(0)
            await page.context.set_offline(False)
            await is_over(page)
            await expect(page.get_by_text("No connection.")).to_have_count(0)
            await expect(answers(page).locator(".markdown")).to_have_text(["Number 1", "Number 3"])


@requirement("R143")
async def test_two_windows_follow_one_conversation(chromium: Browser, tmp_path: Path):
    first, second = asyncio.Event(), asyncio.Event()
    script = [slow("One two three four.", first), slow("Five six seven eight.", second)]
    async with page_server({"main": scripted(script)}, tmp_path) as (_, origin), tab(chromium, origin) as page:
        await ask(page, "Count.")
        await expect(answers(page)).to_contain_text("One two")
        other = await page.context.new_page()
        await other.goto(page.url)
        await expect(answers(other)).to_contain_text("One two")
        first.set()
        for window in (page, other):
            await is_over(window)
            await expect(answers(window).locator(".markdown")).to_have_text(["One two three four."])
        # The second window asks; the first one follows without being touched.
        await ask(other, "And on?")
        await expect(answers(page).last).to_contain_text("Five six")
        await expect(page.get_by_role("button", name="Stop")).to_be_visible()
        second.set()
        for window in (page, other):
            await is_over(window)
            texts = ["One two three four.", "Five six seven eight."]
            await expect(answers(window).locator(".markdown")).to_have_text(texts)


@requirement("R143")
async def test_models_are_reloaded_once_server_answers(chromium: Browser, tmp_path: Path):
    async with page_server({"main": scripted(["Here."])}, tmp_path) as (_, origin), tab(chromium, origin, None) as page:
        await page.route("**/api/models", lambda route: route.abort())
        await page.route("**/api/about", lambda route: route.abort())
        await page.goto(f"{origin}/")
        await expect(page.get_by_role("main").get_by_role("alert")).to_contain_text("The server is not responding.")
        await page.unroute("**/api/models")
        await page.unroute("**/api/about")
        await expect(picker(page, "model").locator(".pick-value")).to_have_text("main")
        await expect(page.locator(".example").first).to_be_visible()
        await expect(page.get_by_role("main").get_by_role("alert")).to_have_count(0)
