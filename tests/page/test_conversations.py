"""Conversations in a browser: reload, stop, steer, edit, retry, drafts, attachments, search, scrolling."""

import asyncio
import re
from pathlib import Path

import pytest
from playwright.async_api import Browser, Route, expect

from page.browsing import answers, ask, composer, is_over, page_server, pick, picker, tab, until
from page.scenes import scripted, slow
from requirements import requirement
from server.serving import agent_of
from sidestream import Agent, tool
from sidestream.messages.message import DataPart
from sidestream.providers.protocol import ModelRequest
from sidestream.testing import FakeProvider, ResponsesScript, ScriptedModel, pixel_png, sse, tool_call

pytestmark = pytest.mark.asyncio(loop_scope="session")

VIEW = "document.querySelector('.thread-view')"
LONG = "\n\n".join(f"Paragraph {number} of a long answer, which fills the window." for number in range(60))


def echo(request: ModelRequest) -> str:
    """Says what it was asked, so that branches can be told from each other."""
    return f"You said: {request.messages[-1].text}"


@requirement("R143", "R142")
async def test_reload_in_mid_answer_keeps_position_without_duplicates(chromium: Browser, tmp_path: Path):
    gate = asyncio.Event()
    model = scripted([slow(f"{LONG}\n\nThe end.", gate)])
    async with page_server({"main": model}, tmp_path) as (_, origin), tab(chromium, origin) as page:
        await ask(page, "Tell me a lot.")
        await expect(page.get_by_text("Paragraph 20 of")).to_be_visible()
        await expect(page.get_by_role("heading", level=1)).to_have_text("Tell me a lot.")
        view = page.locator(".thread-view")
        await view.hover()
        end = await view.evaluate("view => view.scrollTop")
        await page.mouse.wheel(0, -300)
        await until(page, f"{VIEW}.scrollTop === {end - 300}")
        await page.reload()
        await expect(page.get_by_text("Paragraph 20 of")).to_have_count(1)
        await until(page, f"{VIEW}.scrollTop === {end - 300}")
        await expect(page.get_by_role("button", name="Stop")).to_be_visible()
        gate.set()
        await is_over(page)
        # What was there and what came after it are one text; the view has not moved.
        await expect(answers(page)).to_have_count(1)
        text = await answers(page).locator(".markdown").inner_text()
        assert text.split("\n\n") == [*LONG.split("\n\n"), "The end."]
        assert await view.evaluate("view => view.scrollTop") == end - 300
        await page.get_by_role("button", name="Jump to latest").click()
        await expect(page.get_by_text("The end.")).to_be_in_viewport()


@requirement("R143")
async def test_stop_works_after_reload_and_keeps_answer(chromium: Browser, tmp_path: Path):
    events = ResponsesScript().text(["One two ", "three four."]).events()
    async with (
        FakeProvider([sse([*events[:5], asyncio.Event(), *events[5:]])]) as fake,
        page_server({"main": agent_of(fake)}, tmp_path) as (server, origin),
        tab(chromium, origin) as page,
    ):
        await ask(page, "Count.")
        await expect(answers(page).get_by_text("One two")).to_be_visible()
        await page.reload()
        await expect(answers(page).get_by_text("One two")).to_be_visible()
        await composer(page).press("Escape")
        await expect(page.locator(".composer-note")).to_have_text("Press Esc again to stop the run")
        await composer(page).press("Escape")
        await expect(answers(page).get_by_text("Stopped by you")).to_be_visible()
        await expect(answers(page).get_by_text("One two")).to_be_visible()
        assert server.runs.live == {}
        await page.reload()
        await expect(answers(page).get_by_text("Stopped by you")).to_be_visible()


@requirement("R143")
async def test_steered_message_shows_step_it_was_read_at(chromium: Browser, tmp_path: Path):
    gate = asyncio.Event()

    @tool
    async def look() -> str:
        """Looks."""
        await gate.wait()
        return "seen"

    model = scripted([tool_call("look"), "It is blue, in French: bleu."], tools=[look])
    async with page_server({"main": model}, tmp_path) as (_, origin), tab(chromium, origin) as page:
        await ask(page, "Which colour?")
        await expect(page.get_by_role("button", name="Stop")).to_be_visible()
        await composer(page).fill("In French, please.")
        await composer(page).press("Enter")
        await expect(page.get_by_text("Waiting for the next step")).to_be_visible()
        gate.set()
        await is_over(page)
        await expect(answers(page).get_by_text("Read at step 2")).to_be_visible()
        await expect(page.get_by_text("Waiting for the next step")).to_have_count(0)
        await expect(page.get_by_text("In French, please.", exact=True)).to_have_count(1)


@requirement("R143")
async def test_steering_message_does_not_overtake_first_message(chromium: Browser, tmp_path: Path):
    gate, is_held = asyncio.Event(), asyncio.Event()

    async def hold(route: Route) -> None:
        await is_held.wait()
        await route.continue_()

    @tool
    async def look() -> str:
        """Looks."""
        await gate.wait()
        return "seen"

    model = scripted([tool_call("look"), "Bleu.", slow("One two.", asyncio.Event())], tools=[look])
    async with page_server({"main": model}, tmp_path) as (server, origin), tab(chromium, origin) as page:
        await page.route(re.compile(r"/api/chat(\?|$)"), hold)
        await ask(page, "Which colour?")
        await composer(page).fill("In French, please.")
        await composer(page).press("Enter")
        await expect(page.get_by_text("Sending…")).to_be_visible()
        is_held.set()
        await expect(page.get_by_text("Waiting for the next step")).to_be_visible()
        gate.set()
        await expect(answers(page).get_by_text("Read at step 2")).to_be_visible()
        await is_over(page)
        is_held.clear()
        await ask(page, "Count.")
        await page.get_by_role("button", name="Stop").click()
        is_held.set()
        await expect(answers(page).get_by_text("Stopped by you")).to_be_visible()
        assert server.runs.live == {}


@requirement("R143")
async def test_message_written_during_answer_can_be_sent_after_it(chromium: Browser, tmp_path: Path):
    gate = asyncio.Event()
    async with (
        page_server({"main": scripted([slow("One two.", gate), echo])}, tmp_path) as (_, origin),
        tab(chromium, origin) as page,
    ):
        await ask(page, "First")
        await expect(page.get_by_role("button", name="Stop")).to_be_visible()
        for text in ("Second", "and third"):
            await composer(page).fill(text)
            await composer(page).press("Control+Enter")
        await expect(page.get_by_text("Will be sent after this answer")).to_be_visible()
        await page.reload()
        await expect(page.get_by_text("Will be sent after this answer")).to_be_visible()
        gate.set()
        await expect(answers(page).last).to_contain_text("You said: Secondand third")
        await is_over(page)
        await page.reload()
        await expect(answers(page)).to_have_count(2)
        await expect(page.get_by_text("Will be sent after this answer")).to_have_count(0)


@requirement("R143")
async def test_edit_and_retry_create_branches_without_loss(chromium: Browser, tmp_path: Path):
    async with page_server({"main": scripted(echo)}, tmp_path) as (_, origin), tab(chromium, origin) as page:
        await ask(page, "First")
        await is_over(page)
        await composer(page).fill("A draft that must stay")
        question = page.locator(".message.question")
        await question.get_by_role("button", name="Edit").click()
        await expect(composer(page)).to_have_value("First")
        await composer(page).press("Escape")
        await expect(composer(page)).to_have_value("A draft that must stay")
        await question.get_by_role("button", name="Edit").click()
        await composer(page).fill("Second")
        await composer(page).press("Enter")
        await expect(answers(page).locator(".markdown")).to_have_text(["You said: Second"])
        await expect(composer(page)).to_have_value("A draft that must stay")
        await expect(question.get_by_text("2/2")).to_be_visible()
        await question.get_by_role("button", name="Previous branch").click()
        await expect(answers(page).locator(".markdown")).to_have_text(["You said: First"])
        await page.reload()
        await expect(answers(page).locator(".markdown")).to_have_text(["You said: First"])
        await answers(page).get_by_role("button", name="Try again").click()
        await expect(question.get_by_text("3/3")).to_be_visible()
        await expect(answers(page).locator(".markdown")).to_have_text(["You said: First"])


@requirement("R143")
async def test_edited_question_is_in_field_before_next_key(chromium: Browser, tmp_path: Path):
    async with page_server({"main": scripted(echo)}, tmp_path) as (_, origin), tab(chromium, origin) as page:
        await ask(page, "First")
        await is_over(page)
        await composer(page).fill("A draft that must stay")
        edit = page.locator(".message.question").get_by_role("button", name="Edit")
        # No task of the browser runs in between, so no key can.
        click = (
            "async button => { button.click(); await null; return document.querySelector('.composer textarea').value }"
        )
        assert await edit.evaluate(click) == "First"


# A browser writes to its database after the page shows the file; a reload before that loses it.
ATTACHMENT_IS_STORED = """async () => {
    const until = performance.now() + 20000;
    const done = (request) => new Promise((resolve, reject) => {
        request.onsuccess = () => resolve(request.result);
        request.onerror = () => reject(request.error);
    });
    while (performance.now() < until) {
        if ((await indexedDB.databases()).some(({name}) => name === "sidestream")) {
            const database = await done(indexedDB.open("sidestream"));
            const count = await done(database.transaction("attachments").objectStore("attachments").count());
            database.close();
            if (count > 0) return true;
        }
        await new Promise(requestAnimationFrame);
    }
    return false;
}"""


@requirement("R143")
async def test_draft_with_attachment_survives_reload_and_is_sent(chromium: Browser, tmp_path: Path):
    model = ScriptedModel(lambda _: "Seen.")
    async with page_server({"main": Agent(model)}, tmp_path) as (_, origin), tab(chromium, origin) as page:
        await composer(page).fill("What is this?")
        dropped = await page.evaluate_handle(
            """bytes => {
                  const data = new DataTransfer();
                  data.items.add(new File([new Uint8Array(bytes)], "dot.png", {type: "image/png"}));
                  return data;
                }""",
            list(pixel_png(10, 20, 30)),
        )
        await page.dispatch_event("body", "dragover", {"dataTransfer": dropped})
        await page.dispatch_event("body", "drop", {"dataTransfer": dropped})
        await expect(page.locator(".attachments")).to_contain_text("dot.png")
        assert await page.evaluate(ATTACHMENT_IS_STORED)
        await page.reload()
        await expect(composer(page)).to_have_value("What is this?")
        await expect(page.locator(".attachments")).to_contain_text("dot.png")
        await composer(page).press("Enter")
        await is_over(page)
        question = page.locator(".message.question")
        assert await question.locator("img").evaluate("image => image.decode().then(() => image.naturalWidth)") == 1
        await expect(page.locator(".attachments")).to_have_count(0)
        await page.reload()
        await expect(composer(page)).to_have_value("")
        # An edited question keeps its file.
        await question.get_by_role("button", name="Edit").click()
        await expect(page.locator(".attachments")).to_contain_text("dot.png")
        await composer(page).fill("And what is this?")
        await composer(page).press("Enter")
        await expect(question.get_by_text("2/2")).to_be_visible()
        await expect(question.locator("img")).to_have_count(1)
    for request in model.requests:
        files = [part for part in request.messages[-1].parts if isinstance(part, DataPart)]
        assert [file.data for file in files] == [pixel_png(10, 20, 30)]


@requirement("R143")
async def test_conversations_can_be_searched_and_deleted(chromium: Browser, tmp_path: Path):
    async with page_server({"main": scripted(echo)}, tmp_path) as (_, origin), tab(chromium, origin) as page:
        rows = page.locator(".rail-row")
        for text in ("About trains", "About ships"):
            await page.get_by_role("link", name="New conversation").click()
            await ask(page, text)
            await is_over(page)
        await expect(rows).to_have_count(2)
        await page.get_by_role("searchbox", name="Search conversations").fill("ships")
        await expect(rows).to_have_count(1)
        await page.get_by_role("searchbox", name="Search conversations").fill("nothing of this")
        await expect(page.get_by_text("No results for “nothing of this”")).to_be_visible()
        await page.get_by_role("searchbox", name="Search conversations").fill("")
        await rows.filter(has_text="About trains").get_by_role("link").click()
        await expect(answers(page)).to_contain_text("You said: About trains")
        await rows.filter(has_text="About trains").hover()
        await page.get_by_role("button", name="Options: About trains").click()
        await page.locator(".row-menu:popover-open").get_by_role("button", name="Delete").click()
        await page.get_by_role("dialog").get_by_role("button", name="Delete", exact=True).click()
        await expect(rows).to_have_count(1)
        await expect(page.get_by_role("heading", name="New conversation")).to_be_visible()


@requirement("R143")
async def test_view_keeps_scroll_position_and_follows_on_request(chromium: Browser, tmp_path: Path):
    first, second = asyncio.Event(), asyncio.Event()
    reply = slow(f"{LONG}\n\n{LONG}\n\nThe end.", first, second)
    async with page_server({"main": scripted([reply])}, tmp_path) as (_, origin), tab(chromium, origin) as page:
        await ask(page, "Tell me a lot.")
        at_end = f"{VIEW}.scrollHeight > 1500 && {VIEW}.scrollHeight - {VIEW}.scrollTop - {VIEW}.clientHeight < 80"
        await until(page, at_end)
        await page.locator(".thread-view").hover()
        end = await page.locator(".thread-view").evaluate("view => view.scrollTop")
        await page.mouse.wheel(0, -600)
        await until(page, f"{VIEW}.scrollTop === {end - 600}")
        first.set()
        await expect(page.get_by_role("button", name="Jump to latest")).to_be_visible()
        assert await page.locator(".thread-view").evaluate("view => view.scrollTop") == end - 600
        await page.get_by_role("button", name="Jump to latest").click()
        await until(page, at_end)
        second.set()
        await is_over(page)
        await expect(page.get_by_text("The end.")).to_be_in_viewport()


@requirement("R143")
async def test_conversation_keeps_model_and_announces_change(chromium: Browser, tmp_path: Path):
    async with (
        FakeProvider([sse(ResponsesScript().text("Hello from afar.").events())]) as fake,
        page_server({"near": scripted(echo), "far": agent_of(fake)}, tmp_path) as (_, origin),
        tab(chromium, origin) as page,
    ):
        await ask(page, "Hello", "far")
        await is_over(page)
        # Another browser has no draft of this one: the server says who answers here.
        async with tab(chromium, origin, page.url.removeprefix(origin)) as other:
            await expect(answers(other)).to_contain_text("Hello from afar.")
            await expect(picker(other, "model").locator(".pick-value")).to_have_text("far")
            await pick(other, "model", "near")
            await expect(other.get_by_text("The next message goes to near.")).to_be_visible()
            await ask(other, "And now?")
            await expect(answers(other).last).to_contain_text("You said: And now?")


@requirement("R143")
async def test_examples_and_retries_use_selected_model(chromium: Browser, tmp_path: Path):
    agents = {"main": scripted(lambda _: "From main."), "other": scripted(lambda _: "From other.")}
    async with page_server(agents, tmp_path) as (_, origin), tab(chromium, origin) as page:
        await pick(page, "model", "other")
        await page.locator(".example").first.click()
        await is_over(page)
        await expect(answers(page)).to_contain_text("From other.")
        await pick(page, "model", "main")
        await answers(page).get_by_role("button", name="Try again").click()
        await expect(answers(page)).to_contain_text("From main.")
        await is_over(page)


@requirement("R143")
async def test_undelivered_steering_message_returns_to_field(chromium: Browser, tmp_path: Path):
    gate = asyncio.Event()
    model = scripted([slow("One two three four.", gate)])
    async with page_server({"main": model}, tmp_path) as (_, origin), tab(chromium, origin) as page:
        await ask(page, "Count.")
        await expect(answers(page)).to_contain_text("One two")
        await page.route("**/steer*", lambda route: route.abort())
        await composer(page).fill("Only to three.")
        await composer(page).press("Enter")
        await expect(page.get_by_role("alert")).to_contain_text("The server is not responding.")
        await expect(composer(page)).to_have_value("Only to three.")
        # Nobody has read it, and the run has not ended.
        await expect(page.get_by_text("Not read")).to_have_count(0)
        gate.set()
        await is_over(page)


@requirement("R143")
async def test_unreadable_conversation_says_why_and_can_be_retried(chromium: Browser, tmp_path: Path):
    async with page_server({"main": scripted(["Here."])}, tmp_path) as (_, origin), tab(chromium, origin) as page:
        await ask(page, "Hello.")
        await is_over(page)

        async def refuse(route: Route) -> None:
            await route.fulfill(status=429, json={"error": {"message": "Too many requests."}})

        address = re.compile(r"/api/chat/[^/]+$")
        await page.route(address, refuse)
        await page.reload()
        await expect(page.get_by_role("alert")).to_contain_text("Too many requests.")
        await page.unroute(address)
        await page.get_by_role("alert").get_by_role("button", name="Try again").click()
        await expect(answers(page)).to_contain_text("Here.")


@requirement("R143")
async def test_touch_screen_shows_every_reachable_button(chromium: Browser, tmp_path: Path):
    async with (
        page_server({"main": scripted(["Here."])}, tmp_path) as (_, origin),
        tab(chromium, origin, width=390, is_mobile=True) as page,
    ):
        await ask(page, "Hello.")
        await is_over(page)
        await page.get_by_role("button", name="Menu").click()
        options = page.get_by_role("button", name="Options: Hello.")
        await expect(options).to_have_css("opacity", "1")
        row, link = await options.bounding_box(), await page.get_by_role("link", name="Hello.").bounding_box()
        assert row is not None
        assert link is not None
        assert link["x"] + link["width"] <= row["x"] + 1


@requirement("R143")
async def test_files_too_large_together_are_kept_with_message(chromium: Browser, tmp_path: Path):
    async with page_server({"main": scripted(["Here."])}, tmp_path) as (_, origin), tab(chromium, origin) as page:
        error = {"error": {"message": "the body is larger than 67108864 bytes"}}
        await page.route("**/api/chat", lambda route: route.fulfill(status=413, json=error))
        for number in range(3):
            (tmp_path / f"{number}.txt").write_text("x" * 2000)
        await page.locator("input[type=file]").set_input_files([tmp_path / f"{number}.txt" for number in range(3)])
        await ask(page, "Read these.")
        await expect(page.get_by_role("alert")).to_contain_text("too large to send together")
        await expect(composer(page)).to_have_value("Read these.")
        await expect(page.locator(".attachments li")).to_have_count(3)


@requirement("R143")
async def test_unread_message_is_shown_after_reload_and_in_other_tab(chromium: Browser, tmp_path: Path):
    gate = asyncio.Event()

    @tool
    async def look() -> str:
        """Looks."""
        await gate.wait()
        return "seen"

    model = scripted([tool_call("look"), "Bleu."], tools=[look])
    async with page_server({"main": model}, tmp_path) as (_, origin), tab(chromium, origin) as page:
        await ask(page, "Which colour?")
        await page.wait_for_url("**/c/*")  # "Stop" is there before the server has the conversation.
        other = await page.context.new_page()
        await other.goto(page.url)
        await expect(other.get_by_role("button", name="Stop")).to_be_visible()
        await composer(page).fill("In French, please.")
        await composer(page).press("Enter")
        await expect(page.get_by_text("Waiting for the next step")).to_be_visible()
        await page.reload()
        for window in (page, other):
            await expect(window.get_by_text("Waiting for the next step")).to_have_count(1)
            await expect(window.get_by_text("In French, please.", exact=True)).to_have_count(1)
        gate.set()
        for window in (page, other):
            await is_over(window)
            await expect(answers(window).get_by_text("Read at step 2")).to_be_visible()
            await expect(window.get_by_text("Waiting for the next step")).to_have_count(0)
            await expect(window.get_by_text("In French, please.", exact=True)).to_have_count(1)


@requirement("R143")
@pytest.mark.parametrize("is_running", [True, False], ids=["running", "ended"])
async def test_other_window_stops_showing_deleted_conversation(chromium: Browser, tmp_path: Path, *, is_running: bool):
    gate = asyncio.Event()
    if not is_running:
        gate.set()
    model = scripted([slow("One two three four.", gate)])
    async with page_server({"main": model}, tmp_path) as (_, origin), tab(chromium, origin) as page:
        await ask(page, "Count.")
        await expect(answers(page)).to_contain_text("One two" if is_running else "four.")
        other = await page.context.new_page()
        await other.goto(page.url)
        await expect(answers(other)).to_contain_text("One two" if is_running else "four.")
        await page.locator(".rail-row").hover()
        await page.get_by_role("button", name="Options: Count.").click()
        await page.locator(".row-menu:popover-open").get_by_role("button", name="Delete").click()
        await page.get_by_role("dialog").get_by_role("button", name="Delete", exact=True).click()
        await expect(page.get_by_role("heading", name="New conversation")).to_be_visible()
        await expect(other.get_by_text("This conversation does not exist or was deleted.")).to_be_visible()
        await expect(answers(other)).to_have_count(0)
        await expect(composer(other)).to_have_count(0)
