"""A message that is sent while a run is in progress reaches every provider, at the place that its rules allow."""

from collections.abc import Callable
from typing import Any

from conformance.suite.subjects import Subject
from conformance.suite.wires import Call, Text, strings
from requirements import requirement
from sidestream import ToolResult
from sidestream.parts import Steer, StepFinish, StepStart, StreamStart
from sidestream.stream import grammar


def look(name: str) -> str:
    """Looks something up."""
    return "there it is"


def completions(body: Any) -> list[str]:
    return [message["role"] for message in body["messages"]]


def messages(body: Any) -> list[str]:
    return [
        f"{message['role']} {'+'.join(block['type'] for block in message['content'])}" for message in body["messages"]
    ]


def contents(body: Any) -> list[str]:
    return [f"{entry['role']} {'+'.join(next(iter(part)) for part in entry['parts'])}" for entry in body["contents"]]


def items(body: Any) -> list[str]:
    return [item.get("type") or item["role"] for item in body["input"]]


ORDERS: dict[str, tuple[Callable[[Any], list[str]], list[str], list[str]]] = {
    "openai-responses": (items, ["function_call_output", "user"], ["user"]),
    "xai": (items, ["function_call_output", "user"], ["user"]),
    "openai": (completions, ["user", "assistant", "tool", "user"], ["assistant", "user"]),
    "openrouter": (completions, ["user", "assistant", "tool", "user"], ["assistant", "user"]),
    "anthropic": (
        messages,
        ["user text", "assistant text+tool_use", "user tool_result+text"],
        ["assistant text", "user text"],
    ),
    "google": (
        contents,
        ["user text", "model text+functionCall", "user functionResponse", "user text"],
        ["model text", "user text"],
    ),
    "google-interactions": (items, ["function_result", "user_input"], ["user_input"]),
}
"""Provider → how to read a request, the order after the results of tools, and what an answer is followed by."""


@requirement("R115")
async def test_steer_message_follows_tool_results_or_adds_step(wired: Subject) -> None:
    read, after_tools, after_answer = ORDERS[wired.id]
    answers = [(Text("Hm."), Call("look", {"name": "a"})), Text("Found."), Text("Brief.")]
    async with wired.open(*answers, tools=[look]) as talk, talk.agent.stream("Where?") as run:
        parts: list[Any] = []
        async for part in run:
            parts.append(part)
            # With these, a request has been made: what is sent now is for the next one.
            if isinstance(part, StreamStart):
                await run.steer("First.")
            if isinstance(part, Steer) and (part.text, part.status) == ("First.", "applied"):
                await run.steer("Second.")
        _, second, third = talk.bodies
    grammar.check(parts)
    told = [part for part in parts if isinstance(part, Steer | StepStart | StepFinish | ToolResult)]
    assert [part.status if isinstance(part, Steer) else part.type for part in told] == [
        *("accepted", "step-start", "step-finish", "tool-result"),
        *("applied", "accepted", "step-start", "step-finish"),
        *("applied", "step-start", "step-finish"),
    ]
    assert read(second) == after_tools
    assert list(strings(second)).count("First.") == 1
    assert read(third)[-len(after_answer) :] == after_answer
    assert list(strings(third)).count("Second.") == 1
    assert run.output == "Hm.\nFound.\nBrief."
    history = run.turn.state.messages
    assert [message.role for message in history] == ["user", "model", "tool", "user", "model", "user", "model"]
    assert [message.text for message in history if message.metadata.get("steer")] == [
        "First.",
        "Second.",
    ]


@requirement("R115")
async def test_steer_messages_before_first_request_are_included(wired: Subject) -> None:
    async with wired.open(Text("Fine.")) as talk, talk.agent.stream("Where?") as run:
        await run.steer("In Oslo.")
        await run.steer("Today.")
        parts = [part async for part in run]
        (body,) = talk.bodies
    grammar.check(parts)
    assert [part.status for part in parts if isinstance(part, Steer)] == ["accepted"] * 2 + ["applied"] * 2
    assert [text for text in strings(body) if text in ("Where?", "In Oslo.", "Today.")] == [
        "Where?",
        "In Oslo.",
        "Today.",
    ]
