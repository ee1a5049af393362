"""Unexpected exceptions of tools: log, warning, part and `tool_errors="raise"`."""

import asyncio
import linecache
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from requirements import requirement
from sidestream import Agent, Chat, ConfigurationError, ToolContext, ToolError, ToolResult, open_store, sse
from sidestream.errors import ToolRaisedError
from sidestream.parts import part_from_json
from sidestream.stream.grammar import check
from sidestream.testing import ScriptedModel, tool_call
from sidestream.text.redaction import register_secret
from sidestream.tools import ToolWarning


class OrderError(Exception):
    """An application's own exception."""


def broken(order: int) -> str:
    """Look up an order."""
    try:
        raise KeyError(order)
    except KeyError as error:
        raise OrderError(f"no order {order}") from error


async def broken_later(order: int) -> str:
    """Look up an order."""
    raise OrderError(f"no order {order}")


def agent(*tools: Callable[..., Any], calls: int = 1, **settings: Any) -> Agent[str]:
    made = [tool_call(tools[0].__name__, order=7 + n) for n in range(calls)]
    return Agent(ScriptedModel([*made, "Sorry."]), tools=tools, **settings)


# Log and part


@requirement("R200")
async def test_fault_is_logged_as_error_with_traceback(caplog: pytest.LogCaptureFixture):
    await agent(broken).send("hi")
    (record,) = [record for record in caplog.records if record.levelname == "ERROR"]
    assert (record.name, record.getMessage()) == ("sidestream.tools", "tool broken raised OrderError")
    assert "KeyError: 7" in caplog.text
    assert "OrderError: no order 7" in caplog.text


async def test_value_without_json_form_is_logged_as_error(caplog: pytest.LogCaptureFixture):
    def odd(order: int) -> object:
        return object()

    await agent(odd).send("hi")
    assert [record.levelname for record in caplog.records] == ["ERROR"]


async def test_result_part_has_type_and_message():
    result = await agent(broken).send("hi")
    (part,) = result.tool_results
    assert part.result == {"error": "OrderError"}
    assert (part.error_type, part.error_message) == ("OrderError", "no order 7")
    assert part_from_json(part.to_json()) == part


async def test_result_part_of_tool_error_has_type_and_message():
    def refuses(order: int) -> str:
        raise ToolError("Orders are closed.")

    (part,) = (await agent(refuses).send("hi")).tool_results
    assert (part.error_type, part.error_message) == ("ToolError", "Orders are closed.")


async def test_error_message_of_part_is_redacted():
    register_secret("canary-1234567890")

    def leaks(order: int) -> str:
        raise OrderError("canary-1234567890 was refused")

    (part,) = (await agent(leaks).send("hi")).tool_results
    assert part.error_message == "[redacted] was refused"


async def test_model_sees_only_type():
    model = ScriptedModel([tool_call("broken", order=7), "Sorry."])
    await Agent(model, tools=[broken]).send("hi")
    assert "no order" not in str(model.requests[-1])


async def test_sse_hides_error_message():
    frames = b"".join(
        [frame if isinstance(frame, bytes) else frame.encode() async for frame in sse(agent(broken).stream("hi"))]
    )
    assert b"OrderError" in frames
    assert b"no order" not in frames


# Warnings


@requirement("R200")
async def test_fault_warns_at_line_that_raised():
    with pytest.warns(ToolWarning, match="tool 'broken' raised OrderError: no order 7") as caught:
        await agent(broken).send("hi")
    assert len(caught) == 1
    assert Path(caught[0].filename) == Path(__file__)
    assert "raise OrderError" in linecache.getline(__file__, caught[0].lineno)


async def test_warning_is_shown_once_per_tool_and_line():
    def other(order: int) -> str:
        raise OrderError(str(order))

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        await agent(broken, calls=3).send("hi")
        await agent(other, calls=2).send("hi")
    assert [str(entry.message).split(";")[0] for entry in caught] == [
        "tool 'broken' raised OrderError: no order 7",
        "tool 'other' raised OrderError: 7",
    ]


async def test_warning_is_repeated_when_filter_is_always():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        await agent(broken, calls=2).send("hi")
    assert [str(entry.message).split(";")[0][-1] for entry in caught] == ["7", "8"]


async def test_tool_error_does_not_warn():
    def refuses(order: int) -> str:
        raise ToolError("closed")

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        await agent(refuses).send("hi")


async def test_warning_made_error_ends_run():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ToolWarning) as caught:
            await agent(broken).send("hi")
    assert isinstance(caught.value.__cause__, OrderError)


def test_plain_script_prints_one_line(tmp_path: Path):
    program = tmp_path / "program.py"
    program.write_text(
        "from sidestream import Agent\n"
        "from sidestream.testing import ScriptedModel, tool_call\n"
        "def fails() -> str:\n"
        "    return None.lower()\n"
        "agent = Agent(ScriptedModel([tool_call('fails'), tool_call('fails'), 'Sorry.']), tools=[fails])\n"
        "print(agent.send_sync('hi').output)\n"
    )
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "Sorry.\n"
    first, source = done.stderr.splitlines()
    assert first.startswith(f"{program}:4: ToolWarning: tool 'fails' raised AttributeError: 'NoneType'")
    assert source.strip() == "return None.lower()"


# tool_errors="raise"


@requirement("R200")
@pytest.mark.parametrize("tool", [broken, broken_later])
async def test_raise_ends_run_with_own_exception(tool: Callable[..., Any]):
    with pytest.raises(OrderError, match="no order 7") as caught:
        await agent(tool, tool_errors="raise").send("hi")
    assert isinstance(caught.value.__cause__, KeyError | None)
    assert caught.traceback[-1].name == tool.__name__


async def test_raise_keeps_cause_of_exception():
    with pytest.raises(OrderError) as caught:
        await agent(broken, tool_errors="raise").send("hi")
    assert isinstance(caught.value.__cause__, KeyError)


async def test_raise_works_per_call():
    with pytest.raises(OrderError):
        await agent(broken).send("hi", tool_errors="raise")


async def test_raising_stream_yields_result_error_and_finish():
    parts: list[Any] = []

    async def read() -> None:
        async for part in agent(broken, tool_errors="raise").stream("hi"):
            parts.append(part)  # noqa: PERF401 - a comprehension would lose them

    with pytest.raises(OrderError):
        await read()
    check(parts)
    result, error, finish = parts[-3:]
    assert isinstance(result, ToolResult)
    assert (error.kind, error.message) == ("tool-raised", "tool 'broken' raised OrderError")
    assert finish.reason == "error"


async def test_stream_of_parts_keeps_typed_error():
    run = agent(broken, tool_errors="raise").stream("hi", errors="parts")
    check([part async for part in run])
    assert isinstance(run.error, ToolRaisedError)
    assert isinstance(run.error.exception, OrderError)


def test_raise_works_synchronously():
    failing = agent(broken, tool_errors="raise")
    with pytest.raises(OrderError):
        failing.send_sync("hi")
    with pytest.raises(OrderError):
        list(agent(broken, tool_errors="raise").stream_sync("hi"))
    with pytest.raises(OrderError):
        list(agent(broken, tool_errors="raise").send_stream_sync("hi"))


def calling(made: list[str]) -> Callable[..., Any]:
    """A tool that calls `broken` as a program does."""

    async def program(order: int, context: ToolContext) -> str:
        """Look up an order with a program."""
        assert context.tools is not None
        for number in (1, 2):
            outcome = await context.tools.call(f"{context.call_id}/{number}", "broken", {"order": order})
            made.append(str(outcome.is_error))
        return "looked up"

    return program


@requirement("R200")
async def test_raise_reaches_calls_of_program():
    made: list[str] = []
    run = agent(calling(made), broken, tool_errors="raise").stream("hi", errors="parts")
    parts = [part async for part in run]
    check(parts)
    assert made == ["True", "True"]
    assert isinstance(run.error, ToolRaisedError)
    assert isinstance(run.error.exception, OrderError)
    assert [part.name for part in parts if isinstance(part, ToolResult)] == ["broken", "broken", "program"]
    with pytest.raises(OrderError, match="no order 7"):
        await agent(calling([]), broken, tool_errors="raise").send("hi")


@requirement("R200")
async def test_fault_in_program_warns_and_part_has_type_and_message():
    with pytest.warns(ToolWarning, match="no order 7"):
        result = await agent(calling([]), broken).send("hi")
    assert result.output == "Sorry."
    nested = next(part for part in result.parts if isinstance(part, ToolResult) and part.name == "broken")
    assert (nested.error_type, nested.error_message) == ("OrderError", "no order 7")


async def test_warning_as_error_ends_run_of_program():
    with warnings.catch_warnings():
        warnings.simplefilter("error", ToolWarning)
        with pytest.raises(ToolWarning, match="no order 7"):
            await agent(calling([]), broken).send("hi")


async def test_raise_cancels_other_calls_of_round():
    started, stopped = asyncio.Event(), asyncio.Event()

    async def waits() -> str:
        try:
            started.set()
            await asyncio.Event().wait()
        finally:
            stopped.set()
        return ""

    async def fails() -> str:
        await started.wait()
        raise OrderError

    model = ScriptedModel([[tool_call("waits"), tool_call("fails")], "Sorry."])
    run = Agent(model, tools=[waits, fails], tool_errors="raise").stream("hi", errors="parts")
    check([part async for part in run])
    assert stopped.is_set()
    assert isinstance(run.error, ToolRaisedError)


async def test_raise_sends_tool_error_to_model():
    def refuses(order: int) -> str:
        raise ToolError("closed")

    assert (await agent(refuses, tool_errors="raise").send("hi")).output == "Sorry."


async def test_raise_does_not_end_iteration_silently():
    async def stops(order: int) -> str:
        raise StopAsyncIteration

    with pytest.raises(ToolRaisedError):
        await agent(stops, tool_errors="raise").send("hi")


async def test_raise_in_last_call_before_limit():
    from sidestream import Limits

    run = agent(broken, tool_errors="raise", limits=Limits(max_steps=1)).stream("hi", errors="parts")
    check([part async for part in run])
    assert isinstance(run.error, ToolRaisedError)


async def test_chat_continues_after_raised_exception(tmp_path: Path):
    async with aclosing(open_store(tmp_path / "log.db")) as store:
        model = ScriptedModel([tool_call("broken", order=7), "Better."])
        failing = Agent(model, tools=[broken], tool_errors="raise")
        with pytest.raises(OrderError):
            await Chat(failing, store=store, id="c1").send("hi")
        assert (await Chat(failing, store=store, id="c1").send("again")).output == "Better."


def test_unknown_value_is_refused():
    with pytest.raises(ConfigurationError, match="tool_errors"):
        agent(broken, tool_errors="explode")


# SIDESTREAM_LOG


def script(level: str) -> subprocess.CompletedProcess[str]:
    program = (
        "from sidestream import Agent\n"
        "from sidestream.testing import ScriptedModel\n"
        "print(Agent(ScriptedModel(['Hi.'])).send_sync('hi').output)\n"
    )
    command = [sys.executable, "-c", program]
    env = {**os.environ, "SIDESTREAM_LOG": level}
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, env=env)


def test_log_variable_works_in_scripts():
    done = script("info")
    assert done.stdout == "Hi.\n"
    assert "INFO sidestream.run: run run_" in done.stderr


def test_unknown_log_level_warns_in_scripts():
    done = script("loud")
    assert done.stdout == "Hi.\n"
    assert "SIDESTREAM_LOG must be one of debug, info, warning, error, not 'loud'" in done.stderr
