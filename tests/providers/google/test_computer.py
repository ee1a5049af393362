"""Computer use at Google, in both APIs, and results of functions that are files."""

import base64
from typing import Any

import pytest

from requirements import requirement
from sidestream import Agent, ComputerUse, DataPart, GoogleOptions
from sidestream.actions import (
    Click,
    ComputerAction,
    Drag,
    GoBack,
    GoForward,
    Keypress,
    Move,
    Navigate,
    OtherAction,
    Point,
    SafetyCheck,
    Scroll,
    Type,
    Wait,
)
from sidestream.providers.google import GoogleComputerUse
from sidestream.testing import FakeProvider
from sidestream.testing.gemini_script import GeminiScript, InteractionScript
from support.streams import PNG

MODELS = {"generate": "google:gemini-3-flash-preview", "interactions": "google:interactions/gemini-3-flash-preview"}
SCREEN = ComputerUse(display_width=2000, display_height=500, environment="browser")
DATA = base64.b64encode(PNG).decode()
DECISION = {"decision": "require_confirmation", "explanation": "It buys something."}

CALLS: list[tuple[str, dict[str, Any], Any]] = [
    ("click_at", {"x": 500, "y": 100}, Click(1000, 50)),
    ("hover_at", {"x": 1, "y": 2}, Move(2, 1)),
    (
        "type_text_at",
        {"x": 500, "y": 100, "text": "hi", "press_enter": True, "clear_before_typing": True},
        Type("hi", 1000, 50, clears=True, enters=True),
    ),
    ("key_combination", {"keys": "control+c"}, Keypress(("control", "c"))),
    ("press_key", {"key": "Enter"}, Keypress(("Enter",))),
    (
        "drag_and_drop",
        {"x": 0, "y": 0, "destination_x": 1000, "destination_y": 1000},
        Drag((Point(0, 0), Point(2000, 500))),
    ),
    ("scroll_at", {"x": 500, "y": 100, "direction": "up", "magnitude": 200}, Scroll(0, -100, 1000, 50)),
    ("scroll_document", {"direction": "right"}, Scroll(1600, 0)),
    ("navigate", {"url": "https://a.example"}, Navigate("https://a.example")),
    ("go_back", {}, GoBack()),
    ("go_forward", {}, GoForward()),
    ("wait_5_seconds", {}, Wait(5)),
    ("open_web_browser", {"a": 1}, OtherAction("open_web_browser", {"a": 1})),
]


def agent_at(fake: FakeProvider, api: str, *tools: Any, hosted: Any = SCREEN, **settings: Any) -> Agent:
    given = {} if hosted is None else {"server_side_tools": [hosted]}
    return Agent(MODELS[api], base_url=fake.base_url, api_key="canary-key-000000", tools=tools, **given, **settings)


def call_of(api: str, name: str, args: dict[str, Any]) -> Any:
    script = GeminiScript() if api == "generate" else InteractionScript()
    return script.function_call(name, args, call_id="f1").reply()


def done(api: str) -> Any:
    return (GeminiScript() if api == "generate" else InteractionScript()).text("Done.").reply()


def answers(api: str, body: Any) -> list[Any]:
    """The results that a request sends."""
    if api == "generate":
        parts = [part for content in body["contents"] for part in content["parts"]]
        return [part["functionResponse"] for part in parts if "functionResponse" in part]
    return [step for step in body["input"] if step["type"] == "function_result"]


class Desk:
    def __init__(self) -> None:
        self.seen: list[Any] = []

    def computer_use(self, action: ComputerAction) -> DataPart:
        """Carries out an action."""
        self.seen.append(action)
        return DataPart(PNG, "image/png")


@requirement("R114")
@pytest.mark.parametrize("api", MODELS)
@pytest.mark.parametrize(("name", "args", "expected"), CALLS)
async def test_predefined_functions_map_to_computer_actions(
    name: str, args: dict[str, Any], expected: Any, api: str
) -> None:
    desk = Desk()
    async with FakeProvider([call_of(api, name, args), done(api)], base_path="") as fake:
        result = await agent_at(fake, api, desk.computer_use).send("hi")
        (offered,) = fake.requests[0].json["tools"]
        (answer,) = answers(api, fake.requests[1].json)
    assert result.messages[-1].text == "Done."
    assert desk.seen == [expected]
    if api == "generate":
        assert offered == {"computerUse": {"environment": "ENVIRONMENT_BROWSER"}}
        assert answer["name"] == name
        assert answer["parts"] == [{"inlineData": {"mimeType": "image/png", "data": DATA}}]
        assert "safety_acknowledgement" not in answer["response"]
    else:
        assert offered == {"type": "computer_use", "environment": "browser"}
        image = {"type": "image", "mime_type": "image/png", "data": DATA}
        assert answer == {"type": "function_result", "call_id": "f1", "name": name, "result": [image]}


@requirement("R114", "R76")
@pytest.mark.parametrize("api", MODELS)
@pytest.mark.parametrize("approves", [True, False])
async def test_call_with_safety_decision_waits_for_approval(api: str, approves: bool) -> None:
    desk = Desk()
    call = call_of(api, "click_at", {"x": 500, "y": 100, "safety_decision": DECISION})
    async with FakeProvider([call, done(api)], base_path="") as fake:
        agent = agent_at(fake, api, desk.computer_use)
        result = await agent.send("hi")
        (pending,) = result.approvals
        assert pending.tool == "computer_use"
        assert pending.input["actions"] == [{"type": "click", "x": 1000, "y": 50}]
        check = SafetyCheck("safety_decision", "require_confirmation", "It buys something.")
        assert pending.safety_checks == (check,)
        assert desk.seen == []
        await agent.resume(result.run_state, [pending.approve() if approves else pending.deny("No.")]).result()
        (answer,) = answers(api, fake.requests[1].json)
    assert desk.seen == ([Click(1000, 50)] if approves else [])
    assert ("safety_acknowledgement" in str(answer)) == approves
    if not approves:
        assert "No." in str(answer)


@requirement("R114")
@pytest.mark.parametrize("decision", ["regular", "allowed"])
async def test_allowed_call_needs_no_approval(decision: str) -> None:
    desk = Desk()
    call = call_of("generate", "click_at", {"x": 500, "y": 100, "safety_decision": {"decision": decision}})
    async with FakeProvider([call, done("generate")], base_path="") as fake:
        await agent_at(fake, "generate", desk.computer_use).send("hi")
    assert desk.seen == [Click(1000, 50)]


async def test_declared_function_is_called_by_its_own_name() -> None:
    seen: list[Any] = []

    def click_at(x: int, y: int) -> str:
        """Clicks."""
        seen.append((x, y))
        return "clicked"

    options = GoogleOptions(computer_use=GoogleComputerUse())
    async with FakeProvider([call_of("generate", "click_at", {"x": 5, "y": 6}), done("generate")], base_path="") as f:
        await agent_at(f, "generate", click_at, hosted=None, options=options).send("hi")
    assert seen == [(5, 6)]


@pytest.mark.parametrize("api", MODELS)
async def test_files_returned_by_function_are_sent_as_files(api: str) -> None:
    def plot(title: str) -> list[Any]:
        """Plots."""
        return [title, DataPart(PNG, "image/png")]

    async with FakeProvider([call_of(api, "plot", {"title": "Sales"}), done(api)], base_path="") as fake:
        await agent_at(fake, api, plot, hosted=None).send("hi")
        (answer,) = answers(api, fake.requests[1].json)
    if api == "generate":
        assert answer["response"] == {"output": "Sales"}
        assert answer["parts"] == [{"inlineData": {"mimeType": "image/png", "data": DATA}}]
    else:
        image = {"type": "image", "mime_type": "image/png", "data": DATA}
        assert answer["result"] == [{"type": "text", "text": "Sales"}, image]
