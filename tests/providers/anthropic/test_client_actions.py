"""The computer and bash, answered by functions with portable arguments."""

import base64
from typing import Any, get_args

import pytest
from anthropic.types.computer_member_name import ComputerMemberName

from requirements import requirement
from sidestream import Agent, ComputerUse, DataPart, LocalShell
from sidestream.actions import (
    Click,
    ComputerAction,
    CursorPosition,
    DoubleClick,
    Drag,
    HoldKeys,
    Keypress,
    LocalShellCall,
    MouseDown,
    MouseUp,
    Move,
    OtherAction,
    Point,
    Screenshot,
    Scroll,
    TripleClick,
    Type,
    Wait,
    Zoom,
)
from sidestream.errors import UnsupportedError
from sidestream.providers.anthropic import AnthropicOptions, AnthropicTool
from sidestream.providers.anthropic.client_actions import ACTIONS
from sidestream.testing import FakeProvider, MessagesScript, pixel_png

PNG = pixel_png(green=200)
IMAGE = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(PNG).decode()}
TOOLSET = AnthropicOptions(tool_versions={"computer": "toolset_20260801"})

CALLS: list[tuple[str, dict[str, Any], Any]] = [
    ("left_click", {"coordinate": [1, 2], "text": "ctrl+shift"}, Click(1, 2, keys=("ctrl", "shift"))),
    ("left_click", {}, Click()),
    ("right_click", {"coordinate": [1, 2]}, Click(1, 2, "right")),
    ("middle_click", {"coordinate": [1, 2]}, Click(1, 2, "middle")),
    ("double_click", {"coordinate": [1, 2]}, DoubleClick(1, 2)),
    ("triple_click", {"coordinate": [1, 2]}, TripleClick(1, 2)),
    ("left_mouse_down", {}, MouseDown()),
    ("left_mouse_up", {}, MouseUp()),
    ("mouse_move", {"coordinate": [1, 2]}, Move(1, 2)),
    ("left_click_drag", {"start_coordinate": [1, 2], "coordinate": [3, 4]}, Drag((Point(1, 2), Point(3, 4)))),
    ("scroll", {"scroll_direction": "up", "scroll_amount": 3, "coordinate": [1, 2]}, Scroll(0, -300, 1, 2)),
    ("scroll", {"scroll_direction": "right", "scroll_amount": 1}, Scroll(100, 0)),
    ("key", {"text": "ctrl+s", "repeat": 2}, Keypress(("ctrl", "s"), 2)),
    ("key", {"text": "ctrl++"}, Keypress(("ctrl", "+"))),
    ("hold_key", {"text": "shift", "duration": 2}, HoldKeys(("shift",), 2)),
    ("type", {"text": "hello"}, Type("hello")),
    ("wait", {"duration": 1}, Wait(1)),
    ("screenshot", {}, Screenshot()),
    ("zoom", {"region": [1, 2, 3, 4]}, Zoom(1, 2, 3, 4)),
    ("cursor_position", {}, CursorPosition()),
    ("pinch", {"scale": 2}, OtherAction("pinch", {"scale": 2})),
]


def agent_at(fake: FakeProvider, *tools: Any, hosted: Any, **settings: Any) -> Agent:
    return Agent("claude", base_url=fake.base_url, tools=tools, server_side_tools=[hosted], **settings)


@requirement("R114")
@pytest.mark.parametrize("form", ["one tool", "toolset", "explicit toolset"])
@pytest.mark.parametrize(("name", "given", "expected"), CALLS)
async def test_computer_actions_reach_function_typed(
    name: str, given: dict[str, Any], expected: Any, form: str
) -> None:
    seen: list[Any] = []

    def computer_use(action: ComputerAction) -> DataPart:
        """Carries out an action."""
        seen.append(action)
        return DataPart(PNG, "image/png")

    first = MessagesScript()
    if form == "one tool":
        first.tool_use("computer", {"action": name, **given}, "toolu_1")
    else:
        first.tool_use(name, given, "toolu_1", toolset_name="computer")
    hosted: Any = ComputerUse() if form != "explicit toolset" else AnthropicTool(type="computer_toolset_20260801")
    options = TOOLSET if form == "toolset" else None
    async with FakeProvider([first.reply(), MessagesScript().text("Done.").reply()]) as fake:
        result = await agent_at(fake, computer_use, hosted=hosted, options=options).send("hi")
        (offered,) = fake.requests[0].json["tools"]
        *_, call, answer = fake.requests[1].json["messages"]
    assert result.messages[-1].text == "Done."
    assert seen == [expected]
    toolset = {} if form == "one tool" else {"toolset_name": "computer"}
    assert offered.get("name") == ("computer" if form == "one tool" else None)
    assert call["content"][0]["input"] == ({"action": name, **given} if form == "one tool" else given)
    assert answer["content"] == [
        {
            "type": "tool_result",
            "tool_use_id": "toolu_1",
            "content": [{"type": "image", "source": IMAGE}],
            **toolset,
        }
    ]


def test_every_computer_toolset_member_is_known() -> None:
    assert ACTIONS.keys() == set(get_args(ComputerMemberName))


@requirement("R114")
async def test_computer_calls_are_returned_when_function_is_missing() -> None:
    call = MessagesScript().tool_use("left_click", {"coordinate": [1, 2]}, "toolu_1", toolset_name="computer")
    async with FakeProvider([call.reply()]) as fake:
        result = await agent_at(fake, hosted=ComputerUse(), options=TOOLSET).send("hi")
        assert fake.requests[0].json["tools"] == [{"type": "computer_toolset_20260801"}]
        assert "anthropic-beta" not in fake.requests[0].headers
    assert result.finish_reason == "tool-calls"
    (made,) = result.messages[-1].tool_calls
    assert (made.name, made.input) == ("left_click", {"coordinate": [1, 2]})


async def test_computer_toolset_rejects_display_size() -> None:
    async with FakeProvider([]) as fake:
        with pytest.raises(UnsupportedError, match="display_width"):
            await agent_at(fake, hosted=ComputerUse(display_width=800), options=TOOLSET).send("hi")


@requirement("R114")
@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"command": "ls | wc"}, LocalShellCall(("bash", "-c", "ls | wc"), "ls | wc")),
        ({"restart": True}, LocalShellCall(restart=True)),
    ],
)
async def test_bash_calls_same_function_as_other_shells(given: dict[str, Any], expected: Any) -> None:
    seen: list[Any] = []

    def local_shell(call: LocalShellCall) -> str:
        """Runs a command."""
        seen.append(call)
        return "ok"

    first = MessagesScript().tool_use("bash", given, "toolu_1")
    async with FakeProvider([first.reply(), MessagesScript().text("Done.").reply()]) as fake:
        await agent_at(fake, local_shell, hosted=LocalShell()).send("hi")
        assert fake.requests[1].json["messages"][-1]["content"][0]["content"] == "ok"
    assert seen == [expected]
