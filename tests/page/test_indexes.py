"""The file index and checked quotes in a browser."""

import re
from pathlib import Path

import pytest
from playwright.async_api import Browser, expect

from page.browsing import answers, ask, card, is_over, page_server, tab
from page.scenes import scripted
from requirements import requirement
from server.serving import KEY
from sidestream import FileSearch
from sidestream.testing import tool_call
from support.portable_index import write_corpus

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.fixture
def docs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SIDESTREAM_INDEX", str(tmp_path / "index.db"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    write_corpus(tmp_path / "docs")
    (tmp_path / "docs" / "broken.pdf").write_bytes(b"%PDF-1.4 nothing")
    return tmp_path / "docs"


@requirement("R143")
async def test_folders_are_added_searched_updated_and_removed(chromium: Browser, tmp_path: Path, docs: Path):
    async with (
        page_server({"main": scripted([])}, tmp_path, index_folders=[str(docs)], allows_admin=True) as (_, origin),
        tab(chromium, origin, "/settings/indexes") as page,
    ):
        await expect(page.get_by_text("No folders yet.")).to_be_visible()
        await page.get_by_label("Folder").fill(str(tmp_path))
        await page.get_by_role("button", name="Add folder").click()
        await expect(page.get_by_role("alert")).to_contain_text(f"index folders: {docs}")
        await page.get_by_label("Folder").fill(str(docs))
        await page.get_by_role("button", name="Add folder").click()
        row = page.locator(".st-item").filter(has_text=str(docs))
        await expect(row).to_contain_text("4 files")
        await expect(row).to_contain_text("Last read")
        # A file that cannot be read is named, with the reason.
        await row.get_by_text("1 file could not be read").click()
        await expect(row.locator(".st-why")).to_contain_text("broken.pdf")
        await page.get_by_role("searchbox", name="Try a query").fill("windowsill")
        await page.get_by_role("button", name="Search", exact=True).click()
        found = page.locator(".st-passages .st-item").first
        await expect(found).to_contain_text("cats.html")
        await expect(found).to_contain_text("The cat sleeps on the windowsill.")
        (docs / "new.txt").write_text("A lighthouse stands on the cliff.")
        await row.get_by_role("button", name="Update").click()
        await expect(row).to_contain_text("5 files")
        await row.get_by_role("button", name="Remove").click()
        await row.locator(".danger").click()
        await expect(row).to_have_count(0)
    assert (docs / "cars.md").exists()


@requirement("R143")
async def test_panel_explains_missing_folders_and_several_tokens(chromium: Browser, tmp_path: Path, docs: Path):
    async with (
        page_server({"main": scripted([])}, tmp_path) as (_, origin),
        tab(chromium, origin, "/settings/indexes") as page,
    ):
        await expect(page.get_by_text("--index-folder FOLDER")).to_be_visible()


@requirement("R143", "R129")
async def test_quotes_of_files_are_marked_as_found_or_not(chromium: Browser, tmp_path: Path, docs: Path):
    answer = 'The paint is red [cite:1 "The paint is red"]. Cars can fly [cite:1 "cars can fly"].'
    agent = scripted(
        [tool_call("file_search", queries=["paint"]), answer],
        server_side_tools=[FileSearch(stores=[str(docs)], max_results=1)],
    )
    async with agent, page_server({"main": agent}, tmp_path) as (_, origin), tab(chromium, origin) as page:
        await ask(page, "What colour?")
        await is_over(page)
        await expect(answers(page).locator(".chip")).to_have_count(2)
        await expect(card(page, "1 passage in 1 file")).to_be_visible()
        await expect(card(page, "1 passage in 1 file").locator(".card-where")).to_contain_text("here")
        await expect(answers(page).locator(".footnotes .mark")).to_have_text(" not found in the source")
        await expect(answers(page)).not_to_contain_text("[cite:")


@requirement("R143")
async def test_models_and_picker_show_local_and_delegated_tools(
    chromium: Browser, tmp_path: Path, docs: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.delenv("SIDESTREAM_SEARCH", raising=False)
    async with (
        page_server("llamacpp", tmp_path, index_folders=[str(docs)], allows_admin=True) as (_, origin),
        tab(chromium, origin, "/settings/models") as page,
    ):
        first = page.locator(".st-item").first
        await expect(first).to_contain_text(re.compile("On the server's machine: .*code_interpreter.*file_search"))
        await expect(first).to_contain_text("By openai-responses: image_generation")
        # A search here needs an engine.
        await first.get_by_text("unavailable tool").click()
        await expect(first.locator(".st-why")).to_contain_text("SIDESTREAM_SEARCH")
        async with tab(chromium, origin) as other:
            await expect(other.locator(".example").filter(has_text="uses code interpreter")).to_be_visible()
            await expect(other.locator(".example").filter(has_text="uses image generation")).to_be_visible()
