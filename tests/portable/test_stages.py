"""The stages of calls that run here: in the form of the hosted tool's events, as the model writes and as the tool runs."""

from typing import Any

import pytest
from msgspec.structs import replace

from requirements import requirement
from sidestream import Agent, StreamPart, Tool, ToolContext, ToolResult
from sidestream.parts import ToolCall, ToolEvent, ToolInputDelta
from sidestream.portable.stages import ROWS, Unstaged, stages_of
from sidestream.providers.openai.responses.decode.decoder import EVENTS
from sidestream.testing import ChatScript, FakeProvider, check_stream

CODE = 'print("ø")\nprint(2)'


async def parts_of(key: str, function: Any, *script: ChatScript, stream: bool = True) -> list[StreamPart]:
    tool = replace(Tool.from_function(function, name=key, key=key), stages=stages_of(key))
    replies = [*(entry.reply() for entry in script), ChatScript().text("done").reply()]
    async with FakeProvider(replies) as fake:
        agent = Agent("openai", base_url=fake.base_url, api_key="k", tools=[Listed([tool])])
        async with agent.stream("hi", stream=stream) as run:
            parts = [part async for part in run]
    check_stream(parts)
    return parts


class Listed:
    label = "listed"
    warnings = ()

    def __init__(self, tools: list[Tool]) -> None:
        self._tools = tools

    async def list(self) -> list[Tool]:
        return self._tools

    async def aclose(self) -> None:
        pass


def code_interpreter(context: ToolContext, code: str) -> dict[str, Any]:
    """Runs code."""
    for stage in ("in_progress", "interpreting", "logs", "completed"):
        context.emit(ToolEvent("", "delta", {"type": f"response.code_interpreter_call.{stage}"}, provider_stage=stage))
    return {"status": "completed", "container_id": "cntr_1", "outputs": [{"type": "logs", "logs": code}]}


def fails(code: str) -> None:
    """Fails."""
    raise ValueError(code)


def events(parts: list[StreamPart]) -> list[ToolEvent]:
    return [part for part in parts if isinstance(part, ToolEvent)]


@requirement("R121")
async def test_code_arrives_as_deltas_with_each_stage_once():
    call = ChatScript().tool_call("code_interpreter", {"code": CODE}, "call_1")
    parts = await parts_of("code_interpreter", code_interpreter, call)
    found = events(parts)
    names = [f"{part.event['type'].removeprefix('response.')} {part.provider_stage}" for part in found]
    deltas = [part for part in found if part.provider_stage == "delta"]
    assert "".join(part.event["delta"] for part in deltas) == CODE
    assert [name for name in names if not name.endswith(" delta")] == [
        "output_item.added added",
        "code_interpreter_call.in_progress in_progress",
        "code_interpreter_call_code.done done",
        "code_interpreter_call.interpreting interpreting",
        "code_interpreter_call.logs logs",
        "code_interpreter_call.completed completed",
        "output_item.done done",
    ]
    assert {(part.tool, part.call_id, part.output_index) for part in found} == {("code_interpreter", "call_1", 0)}
    assert found[-1].event["item"] == {
        "id": "call_1",
        "type": "code_interpreter_call",
        "status": "completed",
        "code": CODE,
        "container_id": "cntr_1",
        "outputs": [{"type": "logs", "logs": CODE}],
    }
    # A delta comes before the input that it is made of is complete, and the call before the tool runs.
    first = next(index for index, part in enumerate(parts) if part is deltas[0])
    assert first < max(index for index, part in enumerate(parts) if isinstance(part, ToolInputDelta))
    call_at = next(index for index, part in enumerate(parts) if isinstance(part, ToolCall))
    assert parts.index(next(part for part in found if part.provider_stage == "interpreting")) > call_at


async def test_non_streaming_response_has_same_stages():
    call = ChatScript().tool_call("code_interpreter", {"code": CODE}, "call_1")
    streamed = await parts_of("code_interpreter", code_interpreter, call)
    whole = await parts_of("code_interpreter", code_interpreter, call, stream=False)

    def stages(parts: list[StreamPart]) -> list[str]:
        return [str(part.provider_stage) for part in events(parts) if part.stage != "delta"]

    assert stages(whole) == stages(streamed)


async def test_raising_tool_ends_in_failed_stage():
    parts = await parts_of("code_interpreter", fails, ChatScript().tool_call("code_interpreter", {"code": "1"}))
    assert [(part.stage, part.provider_stage) for part in events(parts)][-2:] == [
        ("failed", "failed"),
        ("failed", "done"),
    ]
    assert events(parts)[-1].event["item"]["status"] == "failed"
    assert next(part for part in parts if isinstance(part, ToolResult)).is_error


async def test_two_calls_of_one_step_have_separate_indexes():
    call = ChatScript().tool_call("code_interpreter", {"code": "1"}, "a")
    parts = await parts_of("code_interpreter", code_interpreter, call.tool_call("code_interpreter", {"code": "2"}, "b"))
    assert {(part.call_id, part.output_index) for part in events(parts)} == {("a", 0), ("b", 1)}


async def test_shell_commands_are_streamed():
    def shell(commands: list[str]) -> dict[str, Any]:
        """Runs commands."""
        return {"status": "completed", "output": [{"stdout": "x", "stderr": "", "outcome": {"type": "exit"}}]}

    parts = await parts_of("shell", shell, ChatScript().tool_call("shell", {"commands": ["ls -l"]}, "call_1"))
    names = [part.event["type"].removeprefix("response.") for part in events(parts)]
    assert list(dict.fromkeys(names)) == [
        "output_item.added",
        "shell_call_command.added",
        "shell_call_command.delta",
        "shell_call_command.done",
        "output_item.done",
    ]
    items = [part.event["item"] for part in events(parts) if "item" in part.event]
    assert [item["type"] for item in items] == ["shell_call", "shell_call", "shell_call_output", "shell_call_output"]
    assert items[-1]["output"][0]["stdout"] == "x"


@requirement("R121")
@pytest.mark.parametrize("key", sorted(ROWS.keys() - {"web_fetch"}))
def test_events_match_responses_api(key: str):
    # OpenAI hosts no web fetch; its events follow the form of the others.
    assert stages_of(key) is not None
    row = ROWS[key]
    names = [f"{row.item}.{stage}" for stage in ("in_progress", row.working, "completed", "failed") if row.working]
    names += [f"{row.code[0]}.{stage}" for stage in ("delta", "done")] if row.code else []
    assert {f"response.{name}" for name in names} <= EVENTS.keys()


def test_tool_without_hosted_form_has_no_stages():
    assert stages_of("memory") is None
    assert stages_of(None) is None


def test_tool_can_emit_all_stages_itself():
    stages = Unstaged("call_1", 3)
    call = ToolCall("call_1", "f", "f", False, {})
    assert not [*stages.begun(), *stages.delta("{"), *stages.called(call), *stages.running()]
    assert not stages.ended(call, {}, is_error=False)
    assert not stages.is_repeated({"type": "response.output_item.added"})
    assert stages.placed({"type": "x"}) == {"item_id": "call_1", "output_index": 3, "type": "x"}
