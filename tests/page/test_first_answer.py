"""The first minute: a server without any key, and an answer of the embedded model."""

import os
from asyncio.subprocess import PIPE
from pathlib import Path

import pytest
from playwright.async_api import Browser, expect

from cli.command import COMMAND
from page.browsing import answers, tab
from providers.local.embedded import skip_without
from requirements import requirement
from support import warm

skip_without("xllamacpp", model="smollm2-135m")
pytestmark = pytest.mark.asyncio(loop_scope="session")


@requirement("R143", "R215")
async def test_example_is_answered_without_key(chromium: Browser, tmp_path: Path):
    keys = ("_API_KEY", "_TOKEN")
    environment = {name: value for name, value in os.environ.items() if not name.endswith(keys)}
    environment["XDG_DATA_HOME"] = str(tmp_path / "data")
    command = [*COMMAND, "serve", "--port", "0", "--store", tmp_path / "talks.db"]
    process = await warm.start(*command, cwd=tmp_path, env=environment, stdout=PIPE)
    try:
        assert process.stdout is not None
        while b"http://" not in (line := await process.stdout.readline()):
            assert line, "the server has ended"
        origin, token = line[line.index(b"http://") :].split()[0].decode().split("/#")
        async with tab(chromium, origin, f"/#{token}") as page:
            notice = "Answers come from a small model on this machine, which needs no API key."
            await expect(page.locator(".empty").get_by_text(notice)).to_be_visible()
            await expect(page.locator(".example").first).to_have_text("Explain to a child why the sky is blue.")
            await page.locator(".example").first.click()
            await expect(answers(page).locator(".markdown").first).not_to_be_empty()
            await expect(answers(page).get_by_role("alert")).to_have_count(0)
            stop = page.get_by_role("button", name="Stop", exact=True)
            if await stop.is_visible():
                await stop.click()
            await expect(answers(page).last).to_have_attribute("aria-busy", "false")
    finally:
        process.terminate()
        await process.communicate()
