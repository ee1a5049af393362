"""The browser toolset: each member reaches one function with typed arguments."""

import base64
from typing import Any, get_args

import pytest
from anthropic.types import browser_member_input
from anthropic.types.browser_member_name import BrowserMemberName

from providers.anthropic.test_encode_types import assert_fits
from requirements import requirement
from sidestream import Agent, DataPart
from sidestream.actions import (
    BrowserAction,
    BrowserCall,
    BrowserCloseTab,
    BrowserCoordinate,
    BrowserDoubleClick,
    BrowserDownloadCompleted,
    BrowserFileUpload,
    BrowserFind,
    BrowserFormInput,
    BrowserGetPageText,
    BrowserHoldKey,
    BrowserHover,
    BrowserJavascriptExec,
    BrowserKey,
    BrowserLeftClick,
    BrowserLeftClickDrag,
    BrowserLeftMouseDown,
    BrowserLeftMouseUp,
    BrowserListTabs,
    BrowserMiddleClick,
    BrowserMouseMove,
    BrowserNavigate,
    BrowserNewTab,
    BrowserOther,
    BrowserReadConsole,
    BrowserReadNetwork,
    BrowserReadPage,
    BrowserRef,
    BrowserRightClick,
    BrowserScreenshot,
    BrowserScroll,
    BrowserScrollTo,
    BrowserState,
    BrowserSwitchTab,
    BrowserTab,
    BrowserTripleClick,
    BrowserType,
    BrowserWait,
    BrowserZoom,
)
from sidestream.actions.browser import BROWSER_MEMBERS
from sidestream.errors import ConfigurationError
from sidestream.messages.message import ToolResultPart, content_of_result
from sidestream.providers.anthropic import AnthropicTool, Browser
from sidestream.testing import FakeProvider, MessagesScript, pixel_png

PNG = pixel_png(green=200)
IMAGE = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(PNG).decode()}
AT, POINT = {"type": "coordinate", "x": 1, "y": 2}, BrowserCoordinate(1, 2)
THERE, REF = {"type": "ref", "ref": "ref_7"}, BrowserRef("ref_7")
ALL = Browser(enable=("file_upload", "read_console", "read_network", "javascript_exec"))

CALLS: list[tuple[str, dict[str, Any], Any]] = [
    ("navigate", {"url": "example.com", "tab_id": None}, BrowserNavigate(url="example.com")),
    ("list_tabs", {}, BrowserListTabs()),
    ("new_tab", {}, BrowserNewTab()),
    ("switch_tab", {"tab_id": "t2"}, BrowserSwitchTab("t2")),
    ("close_tab", {"tab_id": "t2"}, BrowserCloseTab("t2")),
    ("read_page", {}, BrowserReadPage()),
    ("read_page", {"depth": 3, "filter": "all", "ref": "r"}, BrowserReadPage(depth=3, filter="all", ref="r")),
    ("get_page_text", {"tab_id": "t2"}, BrowserGetPageText(tab_id="t2")),
    ("read_console", {}, BrowserReadConsole()),
    ("read_network", {}, BrowserReadNetwork()),
    ("find", {"query": "search bar"}, BrowserFind(query="search bar")),
    ("form_input", {"target": THERE, "value": True}, BrowserFormInput(target=REF, value=True)),
    ("form_input", {"target": THERE, "value": "x"}, BrowserFormInput(target=REF, value="x")),
    ("file_upload", {"target": THERE, "paths": ["a"]}, BrowserFileUpload(target=REF, paths=("a",))),
    ("scroll_to", {"target": THERE}, BrowserScrollTo(target=REF)),
    ("screenshot", {}, BrowserScreenshot()),
    ("zoom", {"region": [1, 2, 3, 4]}, BrowserZoom(region=(1, 2, 3, 4))),
    ("left_click", {"target": AT, "modifiers": "ctrl"}, BrowserLeftClick(target=POINT, modifiers="ctrl")),
    ("right_click", {"target": THERE}, BrowserRightClick(target=REF)),
    ("middle_click", {"target": AT}, BrowserMiddleClick(target=POINT)),
    ("double_click", {"target": AT}, BrowserDoubleClick(target=POINT)),
    ("triple_click", {"target": AT}, BrowserTripleClick(target=POINT)),
    ("hover", {"target": THERE}, BrowserHover(target=REF)),
    ("left_click_drag", {"from": AT, "target": AT}, BrowserLeftClickDrag(start=POINT, target=POINT)),
    ("left_mouse_down", {"target": AT}, BrowserLeftMouseDown(target=POINT)),
    ("left_mouse_up", {"target": AT}, BrowserLeftMouseUp(target=POINT)),
    ("mouse_move", {"target": AT}, BrowserMouseMove(target=POINT)),
    ("scroll", {"target": AT, "scroll_direction": "up"}, BrowserScroll(target=POINT, scroll_direction="up")),
    ("type", {"text": "hello"}, BrowserType(text="hello")),
    ("key", {"text": "ctrl+a", "repeat": 2}, BrowserKey(text="ctrl+a", repeat=2)),
    ("hold_key", {"text": "shift", "duration": 2}, BrowserHoldKey(text="shift", duration_s=2)),
    ("wait", {"duration": 0.5}, BrowserWait(duration_s=0.5)),
    ("javascript_exec", {"text": "1 + 1"}, BrowserJavascriptExec(text="1 + 1")),
    ("pinch", {"scale": 2}, BrowserOther("pinch", {"scale": 2})),
]


def agent_at(fake: FakeProvider, *tools: Any, hosted: Any = ALL, **settings: Any) -> Agent:
    return Agent("claude", base_url=fake.base_url, tools=tools, server_side_tools=[hosted], **settings)


def called(name: str, given: Any) -> Any:
    return MessagesScript().tool_use(name, given, "toolu_1", toolset_name="browser").reply()


DONE = MessagesScript().text("Done.").reply()


@requirement("R114")
@pytest.mark.parametrize(("name", "given", "expected"), CALLS)
async def test_browser_members_reach_function_typed(name: str, given: dict[str, Any], expected: Any) -> None:
    seen: list[Any] = []

    def browser(action: BrowserAction) -> DataPart:
        """Carries out an action."""
        seen.append(action)
        return DataPart(PNG, "image/png")

    async with FakeProvider([called(name, given), DONE]) as fake:
        agent = agent_at(fake, browser)
        result = await agent.send("hi")
        if name in ("javascript_exec", "file_upload"):
            assert (result.is_waiting, seen) == (True, [])
            (pending,) = result.approvals
            assert [check.code for check in pending.safety_checks] == [name]
            result = await agent.resume(result.run_state, [pending.approve()])
        (offered,) = fake.requests[0].json["tools"]
        *_, call, answer = fake.requests[1].json["messages"]
    assert result.messages[-1].text == "Done."
    assert seen == [expected]
    assert offered["type"] == "browser_toolset_20260801"
    assert (call["content"][0]["name"], call["content"][0]["toolset_name"]) == (name, "browser")
    image = {"type": "image", "source": IMAGE}
    made = {"type": "tool_result", "tool_use_id": "toolu_1", "content": [image], "toolset_name": "browser"}
    assert answer["content"] == [made]


def test_browser_members_match_vendor_fields() -> None:
    assert set(get_args(BrowserMemberName)) == BROWSER_MEMBERS == {name for name, _, _ in CALLS} - {"pinch"}
    ours = {type(action).__struct_config__.tag: type(action) for _, _, action in CALLS}
    names = sorted(name for name in vars(browser_member_input) if name.startswith("Browser") and name.endswith("Input"))
    inputs = {getattr(browser_member_input, name) for name in names} - {browser_member_input.BrowserMemberInput}
    assert len(inputs) == len(BROWSER_MEMBERS)
    for model in inputs:
        member = model.__name__.removeprefix("Browser").removesuffix("Input")
        tag = "".join(f"_{char.lower()}" if char.isupper() else char for char in member).lstrip("_")
        fields = {field.alias or name for name, field in model.model_fields.items()}
        assert {*ours[tag].__struct_encode_fields__} == fields, tag


@requirement("R114")
async def test_invalid_browser_call_is_error_for_model() -> None:
    def browser(action: BrowserAction) -> str:
        """Carries out an action."""
        raise AssertionError(action)

    async with FakeProvider([called("left_click", {"target": {"type": "ref"}}), DONE]) as fake:
        result = await agent_at(fake, browser).send("hi")
        answer = fake.requests[1].json["messages"][-1]["content"][0]
    assert (result.output, answer["is_error"]) == ("Done.", True)


@requirement("R114")
async def test_function_can_return_browser_state_with_screenshot() -> None:
    state = BrowserState(
        (BrowserTab("t1", "A", "https://a.example", active=True), BrowserTab("t2", "B", "https://b.example")),
        (BrowserDownloadCompleted("d1", "https://a.example/f", size_bytes=5),),
    )

    def browser(call: BrowserCall) -> list[Any]:
        """Carries out a call."""
        return ["Clicked.", DataPart(PNG, "image/png"), state]

    async with FakeProvider([called("left_click", {"target": AT}), DONE]) as fake:
        result = await agent_at(fake, browser).send("hi")
        body = fake.requests[1].json
        content = body["messages"][-1]["content"][0]["content"]
    tabs = [
        {"tab_id": "t1", "title": "A", "url": "https://a.example", "active": True},
        {"tab_id": "t2", "title": "B", "url": "https://b.example"},
    ]
    change = {"type": "download_completed", "download_id": "d1", "url": "https://a.example/f", "size_bytes": 5}
    assert content == [
        {"type": "text", "text": "Clicked."},
        {"type": "image", "source": IMAGE},
        {"type": "browser_state", "tabs": tabs, "state_changes": [change]},
    ]
    assert_fits({key: value for key, value in body.items() if key != "stream"})
    # Other providers are shown the texts and files.
    (stored,) = [
        part.result for message in result.messages for part in message.parts if isinstance(part, ToolResultPart)
    ]
    assert [type(part).__name__ for part in content_of_result(stored)] == ["TextPart", "DataPart"]


@requirement("R114")
@pytest.mark.parametrize("hosted", [Browser(), AnthropicTool(type="browser_toolset_20260801")])
async def test_browser_calls_are_returned_when_function_is_missing(hosted: Any) -> None:
    async with FakeProvider([called("navigate", {"url": "a.example"})]) as fake:
        result = await agent_at(fake, hosted=hosted).send("hi")
        assert fake.requests[0].json["tools"] == [{"type": "browser_toolset_20260801"}]
    assert result.finish_reason == "tool-calls"
    (made,) = result.messages[-1].tool_calls
    assert (made.name, made.input) == ("navigate", {"url": "a.example"})


async def test_browser_members_are_enabled_disabled_and_deferred() -> None:
    hosted = Browser(enable=("read_console",), disable=("type", "key"), defer_loading=True)
    async with FakeProvider([DONE]) as fake:
        await agent_at(fake, hosted=hosted).send("hi")
        body = fake.requests[0].json
    (tool,) = body["tools"]
    assert tool["configs"]["read_console"] == {"enabled": True, "defer_loading": True}
    assert tool["configs"]["type"] == {"enabled": False}
    deferred = {name for name, config in tool["configs"].items() if config.get("defer_loading")}
    assert deferred == BROWSER_MEMBERS - {"type", "key", "file_upload", "read_network", "javascript_exec"}
    assert_fits({key: value for key, value in body.items() if key != "stream"})


@pytest.mark.parametrize("hosted", [Browser(enable=("pinch",)), Browser(enable=("type",), disable=("type",))])
async def test_unknown_or_contradictory_browser_member_raises(hosted: Browser) -> None:
    async with FakeProvider([]) as fake:
        with pytest.raises(ConfigurationError):
            await agent_at(fake, hosted=hosted).send("hi")
