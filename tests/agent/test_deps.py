"""Dependencies and system prompts that are functions: who sees them, when, and that nobody stores them."""

import asyncio
import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from requirements import requirement
from sidestream import Agent, Chat, ConfigurationError, RunContext, RunState, ToolContext, tool
from sidestream.testing import FakeProvider, ResponsesScript
from sidestream.tools import Question
from sidestream.tools.tool import Tool

if TYPE_CHECKING:
    from sidestream import ToolContext as HiddenContext


@dataclass
class Shop:
    name: str
    secret: str = "not-for-the-model"


def text(*replies: str) -> list[Any]:
    return [ResponsesScript(id=f"resp_{place}").text(reply).reply() for place, reply in enumerate(replies)]


def agent_at(fake: FakeProvider, **settings: Any) -> Agent[str]:
    return Agent("openai-responses", base_url=fake.base_url, api_key="sk-test-key", **settings)


def contents(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.iterdir())


def prompts(fake: FakeProvider) -> list[str | None]:
    return [request.json.get("instructions") for request in fake.requests]


@requirement("R109")
async def test_tool_sees_deps_of_call_and_model_does_not():
    seen: list[str] = []

    def stock(item: str, context: ToolContext[Shop]) -> str:
        """How many there are."""
        seen.append(f"{context.deps.name}: {item}")
        return "7"

    script = [ResponsesScript().function_call("stock", {"item": "lamp"}).reply(), *text("Seven.")]
    async with FakeProvider(script) as fake:
        await agent_at(fake, tools=[stock]).send("How many lamps?", deps=Shop("Oslo"))
        (offered,) = fake.requests[0].json["tools"]
        assert list(offered["parameters"]["properties"]) == ["item"]
        assert not any(b"not-for-the-model" in request.body for request in fake.requests)
    assert seen == ["Oslo: lamp"]


@requirement("R109")
@pytest.mark.parametrize("form", ["plain", "typed", "optional", "text", "hidden"])
def test_context_is_recognized_in_every_annotation_form(form: str):
    def plain(a: int, context: ToolContext) -> None: ...
    def typed(a: int, context: ToolContext[Shop]) -> None: ...
    def optional(a: int, context: ToolContext[Shop] | None = None) -> None: ...
    def text(a: int, context: "ToolContext[Shop]") -> None: ...
    def hidden(a: int, context: "HiddenContext") -> None: ...

    HiddenContext = ToolContext  # a local name stands for the import that only type checkers see
    function: Callable[..., None] = locals()[form]
    assert list(Tool.from_function(function).parameters["properties"]) == ["a"]


@requirement("R109")
@pytest.mark.parametrize("way", ["send", "stream", "send_stream", "chat", "chat_stream", "parts"])
async def test_every_run_method_passes_deps(way: str):
    def system(context: RunContext[Shop]) -> str:
        return f"You work in {context.deps.name}."

    async with FakeProvider(text("Hi.")) as fake:
        agent = agent_at(fake, system=system)
        chat, deps = Chat(agent), Shop("Oslo")
        match way:
            case "send":
                await agent.send("Hi", deps=deps)
            case "stream":
                await agent.stream("Hi", deps=deps)
            case "send_stream":
                assert [chunk async for chunk in agent.send_stream("Hi", deps=deps)]
            case "chat":
                await chat.send("Hi", deps=deps)
            case "chat_stream":
                assert [chunk async for chunk in chat.send_stream("Hi", deps=deps)]
            case _:
                assert [part async for part in chat.stream("Hi", deps=deps)]
        assert prompts(fake) == ["You work in Oslo."]


def test_send_sync_passes_deps():
    with FakeProvider(text("Hi.")).in_thread() as fake:
        agent_at(fake, system=lambda context: context.deps).send_sync("Hi", deps="Be brief.")
        assert prompts(fake) == ["Be brief."]


@requirement("R109")
async def test_system_function_is_evaluated_for_each_request():
    seen: list[tuple[int, int, str, str]] = []

    async def system(context: RunContext) -> str:
        await asyncio.sleep(0)
        seen.append((context.step, len(context.messages), context.provider, context.model))
        return f"Step {context.step}."

    def look() -> str:
        """Looks."""
        return "ok"

    script = [ResponsesScript().function_call("look", {}).reply(), *text("Done.")]
    async with FakeProvider(script) as fake:
        await agent_at(fake, tools=[look], system=system).send("Go")
        assert prompts(fake) == ["Step 0.", "Step 1."]
    assert seen == [(0, 1, "openai-responses", "gpt-5.6"), (1, 3, "openai-responses", "gpt-5.6")]


class Greeter:
    def __call__(self) -> str:
        return "From an object."

    def method(self, context: RunContext) -> str:
        return f"From a method for {context.deps}."


def named(who: str, context: RunContext) -> str:
    return f"{who} and {context.deps}."


@requirement("R109")
@pytest.mark.parametrize(
    ("system", "sent"),
    [
        (lambda: "From nothing.", "From nothing."),
        (Greeter(), "From an object."),
        (Greeter().method, "From a method for Ada."),
        (functools.partial(named, "Bob"), "Bob and Ada."),
        (lambda tone="kind": f"Be {tone}.", "Be kind."),
        (lambda: None, None),
        (lambda: "", None),
    ],
)
async def test_system_function_takes_nothing_or_context(system: Any, sent: str | None):
    async with FakeProvider(text("Hi.")) as fake:
        await agent_at(fake).send("Hi", system=system, deps="Ada")
        assert prompts(fake) == [sent]


@requirement("R109")
@pytest.mark.parametrize("system", [7, ["text"], lambda a, b: "", lambda *, context: "", b"bytes"])
async def test_invalid_system_prompt_is_rejected_at_once(system: Any):
    with pytest.raises(ConfigurationError):
        Agent("openai-responses", api_key="sk-test-key", system=system)
    async with FakeProvider() as fake:
        with pytest.raises(ConfigurationError):
            agent_at(fake).stream("Hi", system=system)


def fails() -> str:
    raise LookupError("no such tenant")


@requirement("R109")
@pytest.mark.parametrize(("system", "said"), [(fails, "no such tenant"), (lambda: 7, "int")])
async def test_failed_system_function_raises_before_sending(system: Any, said: str):
    async with FakeProvider() as fake:
        with pytest.raises(ConfigurationError, match=said) as raised:
            await agent_at(fake, system=system).send("Hi")
        assert fake.requests == []
    assert isinstance(raised.value.__cause__, LookupError) == (system is fails)


@requirement("R109")
async def test_policy_sees_deps_and_state_does_not_store_them(tmp_path: Path):
    asked: list[Any] = []

    def policy(question: Question) -> bool:
        asked.append(question.deps)
        return True

    @tool(approval=policy)
    def sell(item: str, context: ToolContext[Shop]) -> str:
        """Sells."""
        return f"sold in {context.deps.name}"

    script = [ResponsesScript().function_call("sell", {"item": "lamp"}).reply(), *text("Sold.")]
    async with FakeProvider(script) as fake:
        agent = agent_at(fake, tools=[sell], system=lambda context: context.deps.name)
        chat = Chat(agent, store=tmp_path / "talks.db", id="talk")
        shop = Shop("Oslo")
        result = await chat.send("Sell a lamp", deps=shop)
        assert asked == [shop]
        (pending,) = result.approvals
        assert "deps" not in result.run_state.to_json()
        assert b"not-for-the-model" not in contents(tmp_path)

        # Another process: the state is read, the prompt is made again, the deps are those of the resuming call.
        again = Chat(agent, store=tmp_path / "talks.db", id="talk")
        done = await again.resume([pending.approve()], deps=Shop("Bergen"))
        assert prompts(fake) == ["Oslo", "Bergen"]
        assert "sold in Bergen" in fake.requests[1].body.decode()
        assert done.output.strip() == "Sold."


async def test_run_state_during_policy_decision_has_no_deps():
    def look(item: str) -> str:
        """Looks."""
        return item

    script = [ResponsesScript().function_call("look", {"item": "lamp"}).reply(), *text("Done.")]
    async with FakeProvider(script) as fake, agent_at(fake, tools=[look]).stream("Go", deps=Shop("Oslo")) as run:
        states = [RunState(run.turn.state).to_json() async for _ in run]
    assert not [state for state in states if "not-for-the-model" in state or '"deps"' in state]


@requirement("R109")
async def test_subagent_gets_deps_of_outer_run_also_when_resumed():
    @tool(approval=lambda question: "ask")
    def sell(item: str, context: ToolContext[Shop]) -> str:
        """Sells."""
        return f"sold in {context.deps.name}"

    script = [
        ResponsesScript(id="outer_0").function_call("clerk", {"task": "Sell a lamp."}).reply(),
        ResponsesScript(id="inner_0").function_call("sell", {"item": "lamp"}).reply(),
        *text("Sold."),
        ResponsesScript(id="outer_1").text("Done.").reply(),
    ]
    async with FakeProvider(script) as fake:
        clerk = agent_at(fake, tools=[sell], system=lambda context: f"Clerk of {context.deps.name}.")
        boss = agent_at(fake, tools=[clerk.as_tool("clerk", "Sells things.")])
        waiting = await boss.send("Sell a lamp", deps=Shop("Oslo"))
        decisions = [pending.approve() for pending in waiting.approvals]
        await boss.resume(waiting.run_state, decisions, deps=Shop("Bergen"))
        assert prompts(fake) == [None, "Clerk of Oslo.", "Clerk of Bergen.", None]
        assert "sold in Bergen" in fake.requests[2].body.decode()


@requirement("R109")
async def test_media_instruction_follows_system_function():
    async with FakeProvider(text("Done.")) as fake:
        agent = agent_at(fake, system=lambda context: f"Work for {context.deps}.")
        await agent.generate_media("A table", mime_types=["text/csv"], deps="Ada")
        (prompt,) = prompts(fake)
    assert prompt is not None
    assert prompt.startswith("Work for Ada.\n\nMake what the user asks for as a file of the type text/csv")
