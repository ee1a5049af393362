"""Typical programs of users, which type checkers must accept."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypedDict, assert_type

from sidestream import (
    Agent,
    Chat,
    ChatMessage,
    ChatResult,
    DataPart,
    Decision,
    ExternalTool,
    Limits,
    LinkPart,
    Run,
    RunContext,
    SyncRun,
    Tool,
    ToolContext,
    ToolError,
    ToolResult,
    WebSearch,
    output_type,
    tool,
)
from sidestream.parts import TextDelta
from sidestream.testing import ScriptedModel
from sidestream.tools import ToolWarning


@dataclass
class City:
    name: str


class Town(TypedDict):
    name: str


class Bank:
    balance = 3


class Audited(Bank):
    pass


# Tools


def plain(item: str) -> str:
    return item


def takes_context(item: str, context: ToolContext[Bank]) -> int:
    return assert_type(context.deps, Bank).balance


@tool
def first(context: ToolContext[Bank], item: str) -> str:
    return item


@tool
def second(item: str, context: ToolContext[Bank]) -> str:
    return item


@tool
async def third(item: str, count: int, context: ToolContext[Bank]) -> str:
    return item * count


@tool
def fourth(item: str, count: int, price: float, context: ToolContext[Bank], note: str = "") -> str:
    return item


@tool(approval="ask", timeout_s=3)
def with_settings(item: str, context: ToolContext[Bank]) -> str:
    return item


@tool
def without_context(item: str) -> str:
    return item


@tool
def untyped_context(item: str, context: ToolContext) -> str:
    return item


@tool
async def progress(item: str) -> AsyncIterator[str]:
    yield item


class Shop:
    def sell(self, item: str) -> str:
        raise ToolError(f"no {item}")


def tools_know_their_deps() -> None:
    assert_type(first, Tool[Bank])
    assert_type(second, Tool[Bank])
    assert_type(third, Tool[Bank])
    assert_type(fourth, Tool[Bank])
    assert_type(with_settings, Tool[Bank])
    assert_type(without_context, Tool[Any])
    assert_type(untyped_context, Tool[Any])
    assert_type(progress, Tool[Any])
    first(item="lamp")


def agents_take_tools_of_all_kinds() -> None:
    Agent("openai-responses", tools=[plain, first, Shop().sell, partial(plain, item="lamp"), lambda: 3])
    Agent("openai-responses", tools=[ExternalTool("weather"), Tool.from_function(plain, name="other")])
    Agent("openai-responses", tools=(takes_context,), server_side_tools=[WebSearch()])
    Agent("openai-responses", tools=[], tool_errors="raise", limits=Limits(max_steps=3))


# Dependencies


async def agents_know_their_deps() -> None:
    agent = Agent("openai-responses", tools=[first])
    assert_type(agent, Agent[str, Bank])
    await agent.send("hi", deps=Bank())
    await agent.send("hi", deps=Audited())
    agent.send_sync("hi", deps=Bank())
    agent.stream("hi", deps=Bank())
    await Chat(agent).send("hi", deps=Bank())
    Chat(agent).send_sync("hi", deps=Bank())


async def deps_can_be_declared() -> None:
    agent = Agent[City, Bank]("openai-responses", output_type=City, tools=[first, without_context, plain])
    assert_type((await agent.send("hi", deps=Bank())).output, City)
    declared: Agent[str, Bank] = Agent("openai-responses", tools=[second, plain])
    await declared.send("hi", deps=Bank())


async def agents_without_typed_tools_take_any_deps(agent: Agent, other: Agent[str]) -> None:
    await agent.send("hi", deps=3)
    await other.send("hi", deps=Bank())
    await Agent("openai-responses", tools=[plain, takes_context]).send("hi", deps=Bank())
    await Agent("openai-responses").send("hi", deps=None)


def prompt_of(context: RunContext[Bank]) -> str:
    return str(assert_type(context.deps, Bank).balance)


def systems_are_functions_or_strings() -> None:
    Agent("openai-responses", system=prompt_of, tools=[second])
    Agent("openai-responses", system="Be brief.")


# Outputs


def sync_methods_take_what_async_ones_take(agent: Agent[str], chat: Chat[str]) -> None:
    assert_type(agent.send_sync("hi"), ChatResult[str])
    assert_type(agent.send_sync("hi", output_type=City), ChatResult[City])
    assert_type(agent.send_sync("hi", output_type=City | Town), ChatResult[Any])
    assert_type(agent.send_sync("hi", output_type={"type": "object"}), ChatResult[Any])
    assert_type(agent.send_sync("hi", output_type=Literal["a", "b"]), ChatResult[Any])
    assert_type(agent.stream_sync("hi"), SyncRun[str])
    assert_type(agent.stream_sync("hi", output_type=City), SyncRun[City])
    assert_type(agent.stream_sync("hi", output_type={"type": "object"}), SyncRun[Any])
    assert_type(agent.resume_sync("{}", output_type={"type": "object"}), ChatResult[Any])
    assert_type(chat.send_sync("hi"), ChatResult[str])
    assert_type(chat.send_sync("hi", output_type=City), ChatResult[City])
    assert_type(chat.send_sync("hi", output_type={"type": "object"}), ChatResult[Any])
    assert_type(chat.resume_sync(output_type=City), ChatResult[City])
    assert_type(chat.stream_sync("hi", output_type=City), SyncRun[City])


async def outputs_are_typed(agent: Agent[str]) -> None:
    assert_type((await agent.send("hi", output_type=list[City])).output, list[City])
    assert_type((await agent.send("hi", output_type=Town)).output, Town)
    assert_type((await agent.send("hi", output_type=output_type(City))).output, City)
    assert_type(agent.stream("hi", output_type=City), Run[City])


# Prompts, history, streams


async def prompts_take_files(agent: Agent[str]) -> None:
    await agent.send(Path("photo.jpg"))
    await agent.send(["What is this?", Path("photo.jpg"), LinkPart("https://example.com/a.png")])
    await agent.send([DataPart.from_path("a.csv", to="container"), DataPart(b"", "image/png")])
    await agent.send(ChatMessage.user("hi"), history=[ChatMessage.user("Hello"), ChatMessage.model("Hi.")])


async def streams_have_typed_parts(agent: Agent[str]) -> None:
    async with agent.stream("hi") as run:
        async for part in run:
            match part:
                case TextDelta():
                    assert_type(part.delta, str)
                case ToolResult():
                    assert_type(part.error_message, str | None)
                case _:
                    pass
    assert_type(run.output, str)


async def results_have_files(agent: Agent[str]) -> None:
    for file in (await agent.send("hi")).files:
        assert_type(file.save_to(Path("out"), overwrite=True), Path)
        assert_type(file.data, bytes | None)


async def approvals_are_decided(agent: Agent[str]) -> None:
    result = await agent.send("hi")
    decisions: list[Decision] = [call.approve() for call in result.approvals]
    if result.is_waiting and result.run_state is not None:
        assert_type(await agent.resume(result.run_state, decisions), ChatResult[str])


async def tests_override_models(agent: Agent[str, Bank]) -> None:
    agent.check()
    with agent.override(model=ScriptedModel(["Hi."])):
        assert_type((await agent.send("hi", deps=Bank())).output, str)
    assert issubclass(ToolWarning, UserWarning)
