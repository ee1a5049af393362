"""Approvals in a browser: what is shown, how it is answered, and what is refused."""

import sys
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, Locator, Page, expect

from page.browsing import answers, ask, composer, is_over, page_server, tab, violations_of_axe
from page.scenes import scripted
from requirements import requirement
from sidestream import Agent, MCPServer, tool
from sidestream.messages.message import ToolResultPart
from sidestream.providers.protocol import ModelRequest
from sidestream.testing import tool_call
from support.mcp_servers.peers import HERE

pytestmark = pytest.mark.asyncio(loop_scope="session")

HIDDEN = "SJ 40 \u202egnirts\u200b"


class Booking:
    """An agent that books a seat if it may, and what it booked."""

    def __init__(self, *calls: dict[str, Any]) -> None:
        self.booked: list[str] = []
        self._calls = calls or ({"train": HIDDEN, "seats": 2, "note": "a window, if there is one"},)

    def tools(self) -> list[Any]:
        @tool(approval="ask")
        def book(train: str, seats: int, note: str = "") -> str:
            """Books seats on a train."""
            self.booked.append(train)
            return f"booked {seats} on {train}"

        return [book]

    def agent(self) -> Agent[Any]:
        def respond(request: ModelRequest) -> Any:
            if request.messages[-1].role == "user":
                return [tool_call("book", **call) for call in self._calls]
            return "That is all."

        return scripted(respond, tools=self.tools())


def waiting(page: Page) -> Locator:
    """The cards of the calls that wait."""
    return page.locator(".approval")


async def deny(page: Page, reason: str = "") -> None:
    """Deny the waiting call: the reason is asked for after the button."""
    await waiting(page).get_by_role("button", name="Deny (D)").click()
    await waiting(page).get_by_role("textbox", name="Reason for denying (optional)").fill(reason)
    await waiting(page).get_by_role("button", name="Deny the call").click()


@requirement("R143")
async def test_call_shows_every_argument_and_runs_only_after_decision(chromium: Browser, tmp_path: Path):
    booking = Booking()
    async with page_server({"main": booking.agent()}, tmp_path) as (_, origin), tab(chromium, origin) as page:
        await ask(page, "Book two seats.")
        call = waiting(page)
        await expect(call.get_by_role("heading")).to_have_text("Allow book?")
        await expect(call).to_contain_text("It would run on this server.")
        # In full, key by key; what would not be seen has a name.
        await expect(call.locator(".values")).to_have_text(
            "trainSJ 40 <U+202E>gnirts<U+200B>seats2notea window, if there is one"
        )
        await expect(page.get_by_text("1 call needs your approval")).to_be_visible()
        # The focus came from the empty composer: Enter and Space on the card decide nothing.
        await expect(call).to_be_focused()
        await page.keyboard.press("Enter")
        await page.keyboard.press("Space")
        await expect(call.get_by_role("button", name="Allow once")).to_be_enabled()
        await page.keyboard.press("Enter")
        await page.reload()
        await expect(call.locator(".values")).to_contain_text("<U+202E>")
        assert booking.booked == []
        allow = call.get_by_role("button", name="Allow once")
        await expect(allow).to_be_enabled()
        await allow.click()
        await is_over(page)
        await expect(call).to_have_count(0)
        await expect(answers(page).get_by_text("Allowed by you")).to_be_visible()
        await expect(answers(page)).to_contain_text("That is all.")
        assert booking.booked == [HIDDEN]


@requirement("R143")
async def test_tool_allowed_in_conversation_is_listed_until_revoked(chromium: Browser, tmp_path: Path):
    booking = Booking({"train": "A", "seats": 1})
    async with page_server({"main": booking.agent()}, tmp_path) as (_, origin), tab(chromium, origin) as page:
        await ask(page, "Book a seat.")
        allow = waiting(page).get_by_role("button", name="Allow in this conversation")
        await expect(allow).to_be_enabled()
        await allow.click()
        await is_over(page)
        grants = page.locator(".grants")
        await expect(grants).to_have_text("Allowed in this conversation:book")
        await ask(page, "And another one.")
        await expect(answers(page).nth(1)).to_contain_text("That is all.")
        await is_over(page)
        assert booking.booked == ["A", "A"]
        mark = "Ran without asking: you allowed book in this conversation."
        for _ in range(2):  # Live, and from the log.
            await expect(answers(page).nth(0).locator(".decided")).to_have_text("Allowed by you")
            await expect(answers(page).nth(1).locator(".decided")).to_have_text(f"{mark}Revoke")
            await page.reload()
        await expect(grants).to_contain_text("book")
        assert await violations_of_axe(page) == []
        await answers(page).nth(1).get_by_role("link", name="Timeline").click()
        await expect(page.locator(".tl-row.wait")).to_contain_text("Already allowed in this conversation: book")
        await page.go_back()
        await answers(page).nth(1).get_by_role("button", name="Revoke book").click()
        await expect(grants).to_have_count(0)
        # What it ran under stays: it is history.
        await expect(answers(page).nth(1).locator(".decided")).to_have_text(f"{mark} No longer allowed.")
        await ask(page, "And one more.")
        await expect(waiting(page)).to_be_visible()
        assert booking.booked == ["A", "A"]


@requirement("R143")
async def test_denial_reason_is_shown_after_reload(chromium: Browser, tmp_path: Path):
    booking = Booking()
    async with page_server({"main": booking.agent()}, tmp_path) as (_, origin), tab(chromium, origin) as page:
        await ask(page, "Book two seats.")
        await deny(page, "Too expensive")
        await is_over(page)
        for _ in range(2):
            await expect(answers(page).get_by_text("Denied by you: Too expensive")).to_be_visible()
            await expect(page.locator(".card-title", has_text="book was denied")).to_be_visible()
            await page.reload()
        assert booking.booked == []


@requirement("R143")
async def test_several_calls_are_decided_one_by_one_by_key(chromium: Browser, tmp_path: Path):
    booking = Booking({"train": "A", "seats": 1}, {"train": "B", "seats": 1}, {"train": "C", "seats": 1})
    async with page_server({"main": booking.agent()}, tmp_path) as (_, origin), tab(chromium, origin) as page:
        await ask(page, "Book three.")
        await expect(page.get_by_text("3 calls need your approval")).to_be_visible()
        await expect(page.get_by_role("button", name="Deny all")).to_be_visible()
        for number, key in enumerate("ydy"):
            call = waiting(page).nth(number)
            await expect(call.get_by_role("button", name="Deny")).to_be_enabled()
            await call.focus()
            await page.keyboard.press(key)
            if key == "d":
                await expect(call.get_by_role("textbox", name="Reason for denying (optional)")).to_be_focused()
                await page.keyboard.press("Enter")
        await is_over(page)
        assert sorted(booking.booked) == ["A", "C"]


@requirement("R143")
async def test_long_arguments_must_be_viewed_before_allowing(chromium: Browser, tmp_path: Path):
    booking = Booking({"train": "A", "seats": 1, "note": "\n".join(f"line {number}" for number in range(300))})
    async with page_server({"main": booking.agent()}, tmp_path) as (_, origin), tab(chromium, origin) as page:
        await ask(page, "Book one.")
        call = waiting(page)
        await expect(call.get_by_role("button", name="Deny")).to_be_enabled()
        allow = call.get_by_role("button", name="Allow once")
        await expect(allow).to_be_disabled()
        await call.locator(".approval-end").scroll_into_view_if_needed()
        await expect(allow).to_be_enabled()


@requirement("R143", "R144")
async def test_stale_and_forged_decisions_are_refused(chromium: Browser, tmp_path: Path):
    booking = Booking()
    async with page_server({"main": booking.agent()}, tmp_path) as (_, origin), tab(chromium, origin) as page:
        await ask(page, "Book two seats.")
        await expect(waiting(page)).to_be_visible()
        path = page.url.removeprefix(origin)
        # Another browser shows the same call; its own script cannot change what is allowed.
        async with tab(chromium, origin, path) as other, tab(chromium, origin, path) as third:
            await expect(waiting(other)).to_be_visible()
            await expect(waiting(third).get_by_role("button", name="Allow once")).to_be_enabled()
            forged = await other.evaluate(
                """async ([id, approval]) => {
                  const decisions = [{approvalId: approval, approved: true, digest: "0".repeat(64)}];
                  const body = JSON.stringify({id, decisions});
                  const headers = {"content-type": "application/json"};
                  return (await fetch("/api/chat", {method: "POST", headers, body})).status;
                }""",
                [path.rpartition("/")[2], await waiting(other).get_attribute("data-approval")],
            )
            assert forged == 403
            assert booking.booked == []
            await expect(waiting(page).get_by_role("button", name="Deny")).to_be_enabled()
            await deny(page)
            await is_over(page)
            await waiting(third).get_by_role("button", name="Allow once").click()
            await expect(
                third.get_by_role("alert").filter(has_text="Already decided in another window.")
            ).to_be_visible()
            await expect(answers(third).get_by_text("Denied by you")).to_be_visible()
            await expect(composer(third)).to_be_enabled()
    assert booking.booked == []


@requirement("R143")
async def test_changes_since_last_call_are_struck_out(chromium: Browser, tmp_path: Path):
    calls = iter([{"train": "SJ 40", "seats": 1}, {"train": "SJ 40", "seats": 2}])
    booking = Booking()

    def respond(request: ModelRequest) -> Any:
        return tool_call("book", **next(calls)) if request.messages[-1].role == "user" else "Booked."

    agent = scripted(respond, tools=booking.tools())
    async with page_server({"main": agent}, tmp_path) as (_, origin), tab(chromium, origin) as page:
        for seats, changed in ((1, []), (2, ["1"])):
            await ask(page, f"Book {seats}.")
            await expect(waiting(page).locator("del")).to_have_text(changed)
            allow = waiting(page).get_by_role("button", name="Allow once")
            await expect(allow).to_be_enabled()
            await allow.click()
            await is_over(page)
            await expect(waiting(page)).to_have_count(0)


@requirement("R143", "R80")
async def test_server_form_is_validated_and_its_page_visited(chromium: Browser, tmp_path: Path):
    args = ["-I", str(HERE / "patient.py"), str(tmp_path)]
    server = MCPServer("patient", command=sys.executable, args=args, approval="run")

    def respond(request: ModelRequest) -> Any:
        if request.messages[-1].role == "user":
            return tool_call("book", flight="SD 1")
        results.extend(part.result for part in request.messages[-1].parts if isinstance(part, ToolResultPart))
        return "Booked."

    results: list[Any] = []
    agent = scripted(respond, tools=[server])
    async with agent, page_server({"main": agent}, tmp_path) as (_, origin), tab(chromium, origin) as page:
        await ask(page, "Book a flight.")
        # One call, two questions: each is answered by itself, and both are sent together.
        await expect(page.get_by_text("2 calls need your approval")).to_be_visible()
        seat = waiting(page).filter(has_text="Which seat?")
        pay = waiting(page).filter(has_text="Please pay")
        await expect(seat.get_by_role("heading")).to_have_text("patient needs your input")
        await expect(seat.locator(".values")).to_have_text("flightSD 1")
        await expect(seat.get_by_role("combobox", name="side")).to_have_value("0")
        send = seat.get_by_role("button", name="Send answers")
        await expect(send).to_be_enabled()
        assert await violations_of_axe(page) == []
        for typed, problem in (("", "This field is required."), ("front", "Enter a whole number.")):
            await seat.get_by_role("textbox", name="Row").fill(typed)
            await send.click()
            await expect(seat).to_contain_text(problem)
            await expect(seat.get_by_role("textbox", name="Row")).to_have_attribute("aria-invalid", "true")
        await page.reload()
        await seat.get_by_role("textbox", name="Row").fill("7")
        await seat.get_by_role("combobox", name="side").select_option(label="window")
        await expect(send).to_be_enabled()
        await send.click()
        await expect(seat).to_contain_text("Other calls still need your approval")
        await expect(pay.get_by_role("link")).to_have_attribute("href", "https://pay.test/1")
        await pay.get_by_role("button", name="I have done that").click()
        await is_over(page)
        await expect(waiting(page)).to_have_count(0)
        await expect(answers(page)).to_contain_text("Booked.")
        await page.reload()
        await expect(answers(page)).to_contain_text("Booked.")
        await expect(waiting(page)).to_have_count(0)
    assert results == [{"flight": "SD 1", "seat": {"row": 7, "side": "window"}, "is_paid": True}]


@requirement("R143")
async def test_expired_call_can_only_be_denied(chromium: Browser, tmp_path: Path):
    booking = Booking()
    async with (
        page_server({"main": booking.agent()}, tmp_path, approval_s=0.05, on_expiry="wait") as (_, origin),
        tab(chromium, origin) as page,
    ):
        await ask(page, "Book two seats.")
        await expect(waiting(page)).to_contain_text("You can only deny it now")
        await expect(waiting(page).get_by_role("button", name="Deny")).to_be_enabled()
        await expect(waiting(page).get_by_role("button", name="Allow once")).to_be_disabled()
        await deny(page)
        await is_over(page)
    assert booking.booked == []
