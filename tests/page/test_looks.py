"""What a reader sees at three widths, in both themes: one edge, formulas, tables, files and pickers."""

import re
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, Page, expect

from page.browsing import answers, ask, composer, is_over, page_server, picker, tab, violations_of_axe
from page.scenes import scripted
from requirements import requirement
from server.serving import agent_of
from sidestream.messages.message import ThinkingPart
from sidestream.parts import File
from sidestream.testing import FakeProvider, error_reply, pixel_png, tool_call

pytestmark = pytest.mark.asyncio(loop_scope="session")

WORD = "application/vnd.openxmlformats-officedocument.wordprocessingml.document"
TEXT = r"""
The area is $A = \pi r^2$, and a map costs $5 to $10.

$$
\begin{pmatrix} a & b \\ c & d \end{pmatrix} = \sum_{n=1}^{\infty} \frac{1}{n^2}
$$

| Date | Duration | Longest near | Path | Magnitude | Saros |
|---|--:|---|---|--:|--:|
| 2 August 2027 | 6 min 23 s | Luxor, Egypt | Spain, Morocco, Algeria, Tunisia, Libya, Egypt | 1.079 | =1+1 |
"""
FILES = [
    File("f1", WORD, name="annual-report-of-the-observatory-of-2027.docx", data=b"PK" * 4000),
    File("f2", "image/png", name="dot.png", data=pixel_png(200)),
]
_LEFT_EDGES = """
() => {
  const text = (selector) => {
    const range = document.createRange();
    const walker = document.createTreeWalker(document.querySelector(selector), NodeFilter.SHOW_TEXT);
    range.selectNodeContents(walker.nextNode());
    return range.getBoundingClientRect().left;
  };
  const field = document.querySelector(".composer textarea");
  const style = getComputedStyle(field);
  return {
    question: text(".said"),
    answer: text(".answer .markdown p"),
    card: document.querySelector(".answer .card-head .icon").getBoundingClientRect().left,
    file: document.querySelector(".answer .file figcaption .icon").getBoundingClientRect().left,
    footer: text(".facts"),
    composer: field.getBoundingClientRect().left + parseFloat(style.paddingLeft),
  };
}
"""


def written() -> list[Any]:
    """An answer with all that a column holds."""
    return [ThinkingPart("First the area."), TEXT, *FILES]


async def width_of(page: Page, selector: str) -> tuple[float, float]:
    """The left and the right edge of the first element."""
    box = await page.locator(selector).first.bounding_box()
    assert box is not None
    return box["x"], box["x"] + box["width"]


@requirement("R143")
@pytest.mark.parametrize("width", [390, 768, 1280])
async def test_answer_looks_calm_at_width(chromium: Browser, tmp_path: Path, width: int):
    agents = {"main": scripted(lambda _: written())}
    async with page_server(agents, tmp_path) as (_, origin), tab(chromium, origin, width=width) as page:
        await page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        await ask(page, "What is the area?")
        await is_over(page)
        answer = answers(page)
        # Formulas are MathML, and prices stay text.
        await expect(answer.locator("math")).to_have_count(2)
        await expect(answer.locator("mtd")).to_have_count(4)
        await expect(answer.locator(".markdown > p").first).to_contain_text("costs $5 to $10.")
        # A wide table scrolls, its columns of words keep a width, and it can be copied as CSV.
        assert (await width_of(page, ".wordy"))[1] - (await width_of(page, ".wordy"))[0] >= 140
        assert await page.evaluate("document.documentElement.scrollWidth") <= width
        await answer.locator(".table-figure").hover()
        await answer.get_by_role("button", name="Copy as CSV").click()
        copied = await page.evaluate("navigator.clipboard.readText()")
        assert copied.splitlines()[1].endswith(',"Spain, Morocco, Algeria, Tunisia, Libya, Egypt",1.079,\'=1+1')
        # A file keeps its name and its buttons, and its type is one for people.
        await expect(answer.locator(".file-type")).to_have_text(["Word document, 8 kB", "PNG image, 69 B"])
        report = answer.locator(".file").first
        await expect(report.get_by_role("link", name="Download")).to_be_in_viewport(ratio=1)
        name = await report.locator(".file-name").bounding_box()
        assert name is not None
        assert name["width"] >= 120
        # One left edge.
        edges = await page.evaluate(_LEFT_EDGES)
        assert max(edges.values()) - min(edges.values()) <= 1, edges
        # The footer has the model and the time. The rest is a tooltip.
        await expect(answer.locator(".facts")).to_have_text(re.compile(r"^scripted · [\d.]+ s$"))
        await answer.locator(".facts").focus()
        await expect(page.get_by_role("tooltip")).to_contain_text("Provider")
        assert await violations_of_axe(page) == []
        await page.emulate_media(color_scheme="dark")
        assert await violations_of_axe(page) == []


@requirement("R143")
async def test_message_actions_appear_on_hover_and_focus(chromium: Browser, tmp_path: Path):
    async with (
        page_server({"main": scripted(["One.", "Two."])}, tmp_path) as (_, origin),
        tab(chromium, origin) as page,
    ):
        await ask(page, "First?")
        await is_over(page)
        actions = answers(page).locator(".on-demand")
        await page.mouse.move(0, 0)
        await expect(actions).to_have_css("opacity", "0")
        await answers(page).hover()
        await expect(actions).to_have_css("opacity", "1")
        await page.mouse.move(0, 0)
        await answers(page).get_by_role("button", name="Copy").focus()
        await expect(actions).to_have_css("opacity", "1")


@requirement("R143")
async def test_drawer_and_approval_fit_narrow_window(chromium: Browser, tmp_path: Path):
    def book(train: str) -> str:
        return f"booked {train}"

    agent = scripted(lambda _: tool_call("book", train="SJ 40"), tools=[book], approval="ask")
    async with page_server({"main": agent}, tmp_path) as (_, origin), tab(chromium, origin, width=390) as page:
        await ask(page, "Book a seat on the last train to Stockholm, at a window if there is one.")
        await is_over(page)
        card = await width_of(page, ".approval-values")
        for name in ("Deny (D)", "Allow once (Y)"):
            box = await page.get_by_role("button", name=name).bounding_box()
            assert box is not None
            assert (box["x"], box["x"] + box["width"]) == pytest.approx(card, abs=1), name
        # The reason is asked for after Deny, and Escape goes back.
        await expect(page.get_by_role("textbox", name="Reason for denying (optional)")).to_have_count(0)
        await page.get_by_role("button", name="Deny (D)").click()
        await expect(page.get_by_role("textbox", name="Reason for denying (optional)")).to_be_focused()
        await page.keyboard.press("Escape")
        await expect(page.get_by_role("button", name="Allow once (Y)")).to_be_visible()
        await page.get_by_role("button", name="Menu").click()
        drawer = page.get_by_role("dialog", name="Conversations")
        edge = (await width_of(page, "dialog.drawer"))[1]
        for part in (".rail-foot .button", ".rail-row .status", ".rail-row .row-options"):
            boxes = [await one.bounding_box() for one in await drawer.locator(part).all()]
            assert boxes, part
            for box in boxes:
                assert box is not None
                assert box["x"] + box["width"] <= edge, part


@requirement("R143")
async def test_pickers_show_defaults_and_work_by_keyboard(chromium: Browser, tmp_path: Path):
    agents = {"main": scripted(lambda _: "From main."), "other": scripted(lambda _: "From other.")}
    async with page_server(agents, tmp_path) as (_, origin), tab(chromium, origin) as page:
        await picker(page, "tools").locator("summary").click()
        await expect(page.get_by_role("radio", name="As the agent has them")).to_be_checked()
        await page.keyboard.press("Escape")
        await expect(picker(page, "tools").locator("summary")).to_be_focused()
        await picker(page, "model").locator("summary").focus()
        await page.keyboard.press("Enter")
        await page.keyboard.press("Tab")
        await page.keyboard.press("ArrowDown")
        await expect(picker(page, "model").locator(".pick-list")).to_be_visible()
        await page.keyboard.press("Enter")
        await expect(picker(page, "model").locator(".pick-list")).to_be_hidden()
        await expect(picker(page, "model").locator(".pick-value")).to_have_text("other")
        await composer(page).focus()
        await ask(page, "Who?")
        await is_over(page)
        await expect(answers(page)).to_contain_text("From other.")


@requirement("R143", "R213")
async def test_wait_counts_down_after_reload_and_is_stopped(chromium: Browser, tmp_path: Path):
    async with (
        FakeProvider([error_reply(429, headers={"Retry-After": "42"})]) as fake,
        page_server({"main": agent_of(fake)}, tmp_path) as (_, origin),
        tab(chromium, origin, width=390) as page,
    ):
        await ask(page, "How long is the eclipse?")
        wait = page.locator(".run-waiting")
        for _ in range(2):
            await expect(wait).to_contain_text("The provider could not answer yet (429)")
            await expect(wait).to_contain_text(re.compile(r"trying again in [1-4]?\d s"))
            assert await violations_of_axe(page) == []
            await page.reload()
        await wait.get_by_role("button", name="Stop").click()
        await expect(answers(page)).to_contain_text("Stopped by you")
        await expect(wait).to_have_count(0)
