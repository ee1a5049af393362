"""The example front end in a browser, on another site than its server: files, approvals, and a reload."""

import asyncio
import json
import os
import re
import shutil
from base64 import b64decode
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from playwright.async_api import Browser, Page, expect
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles

from page.browsing import PATIENCE_MS, need_browser, page_server
from requirements import requirement
from sidestream import Agent, tool
from sidestream.testing import FakeProvider, ResponsesScript
from support.npm_packages import node
from support.places import ROOT
from support.serving import served

EXAMPLE = ROOT / "examples" / "frontend"
PACKAGES = ROOT / "page" / "node_modules"
TOKEN = "token-of-anna-0123456789"
PNG = b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==")


@tool(approval="ask")
def refund(order: str) -> str:
    """Refund an order."""
    return f"refunded {order}"


async def built(path: Path) -> Path:
    """The example, built with the packages of the web UI."""
    need_browser()
    folder = path / "frontend"
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("node_modules", "dist"))
    (folder / "node_modules").symlink_to(PACKAGES)
    for program in ("typescript/bin/tsc", "vite/bin/vite.js"):
        arguments = ["--noEmit"] if "tsc" in program else ["build", "--logLevel", "error"]
        process = await asyncio.create_subprocess_exec(
            node(),
            str(PACKAGES / program),
            *arguments,
            cwd=folder,
            env=os.environ,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await process.communicate()
        assert process.returncode == 0, output.decode()
    return folder / "dist"


@asynccontextmanager
async def opened(chromium: Browser, address: str) -> AsyncGenerator[Page]:
    """A page of the example, without errors in its console."""
    context = await chromium.new_context(locale="en-GB")
    context.set_default_timeout(PATIENCE_MS)
    page = await context.new_page()
    errors: list[str] = []
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    try:
        await page.goto(address)
        yield page
        assert errors == []
    finally:
        await context.close()


async def has_loaded(page: Page, count: int) -> None:
    """Waits until this many images are on the page, all of which the browser has decoded."""
    await expect(page.locator("article img")).to_have_count(count)
    widths = "[...document.querySelectorAll('article img')].every((image) => image.complete && image.naturalWidth > 0)"
    await page.wait_for_function(widths)


@requirement("R214")
@pytest.mark.asyncio(loop_scope="session")
async def test_example_shows_files_and_approvals_on_other_site(chromium: Browser, tmp_path: Path) -> None:
    replies = [
        ResponsesScript().function_call("refund", {"order": "A-7"}).reply(),
        ResponsesScript().image(PNG).text("Here is your receipt.").reply(),
        ResponsesScript().text("You are welcome.").reply(),
    ]
    front = Starlette(routes=[Mount("/", StaticFiles(directory=await built(tmp_path), html=True))])
    async with FakeProvider(replies) as fake, served(front) as place:
        site = place.replace("127.0.0.1", "localhost")
        agent = Agent("openai-responses", base_url=fake.base_url, api_key="key-0123456789", tools=[refund])
        async with (
            page_server({"support": agent}, tmp_path, tokens=[TOKEN], origins=[site]) as (_, origin),
            opened(chromium, f"{site}/#server={origin}&token={TOKEN}") as page,
        ):
            await page.get_by_label("Message").fill("Refund this order.")
            picture = {"name": "order.png", "mimeType": "image/png", "buffer": PNG}
            await page.get_by_label("Files").set_input_files([picture])  # pyright: ignore[reportArgumentType]
            await page.get_by_role("button", name="Send").click()
            await expect(page.locator("fieldset")).to_contain_text("A-7")
            await page.get_by_role("button", name="Allow").click()
            await expect(page.get_by_text("Here is your receipt.")).to_be_visible()
            await has_loaded(page, 2)
            await page.reload()
            await expect(page.get_by_text("Here is your receipt.")).to_be_visible()
            await has_loaded(page, 2)
            sources = [await image.get_attribute("src") or "" for image in await page.locator("article img").all()]
            assert all(source.startswith(f"{origin}/api/blobs/") for source in sources)
            await page.get_by_label("Message").fill("Thanks.")
            await page.get_by_role("button", name="Send").click()
            await expect(page.get_by_text("You are welcome.")).to_be_visible()
    assert "refunded A-7" in str(fake.requests[1].json)


@requirement("R214")
def test_example_pins_versions_of_web_ui_without_registry() -> None:
    example = json.loads((EXAMPLE / "package.json").read_text("utf-8"))
    page = json.loads((ROOT / "page" / "package.json").read_text("utf-8"))
    for group in ("dependencies", "devDependencies"):
        assert example[group].items() <= page[group].items()
    lock = (EXAMPLE / "package-lock.json").read_text("utf-8")
    assert '"resolved"' not in lock
    locked = json.loads(lock)["packages"]
    page_locked = json.loads((ROOT / "page" / "package-lock.json").read_text("utf-8"))["packages"]
    for name in (*example["dependencies"], *example["devDependencies"]):
        assert locked[f"node_modules/{name}"]["version"] == page_locked[f"node_modules/{name}"]["version"]


@requirement("R214")
def test_example_has_about_150_lines() -> None:
    text = (EXAMPLE / "src" / "main.tsx").read_text("utf-8")
    assert len(text.splitlines()) <= 160
    assert re.search(r"useChat<Message>", text)
