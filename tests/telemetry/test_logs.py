"""The log: who speaks, about what, at which level, and what is in no line of it."""

import ast
import logging
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from conformance.suite.subjects import KEY, Subject
from conformance.suite.wires import Call, Text
from requirements import requirement
from sidestream import Agent, Chat
from sidestream.errors import ProviderError, RunError
from sidestream.logs import get_logger
from sidestream.testing import FakeProvider, ResponsesScript, ScriptedModel, json_reply, tool_call
from sidestream.text.redaction import register_secret
from support.places import ROOT
from telemetry.collected import Collected

SOURCE = ROOT / "src" / "sidestream"


def lines(caplog: pytest.LogCaptureFixture, level: str, logger: str) -> list[str]:
    """What a logger has said at a level."""
    return [r.getMessage() for r in caplog.records if (r.levelname, r.name) == (level, logger)]


def get_weather(city: str) -> str:
    """The weather in a city."""
    return "sunny"


@requirement("R95")
async def test_milestones_are_logged_at_info(wired: Subject, caplog: pytest.LogCaptureFixture):
    caplog.set_level("INFO", "sidestream")
    answers = Call("get_weather", {"city": "Paris"}), Text("Sunny.")
    async with wired.open(*answers, tools=[get_weather]) as talk:
        await talk.agent.send("hi")
    assert lines(caplog, "INFO", "sidestream.agent") == [f"created model {wired.model}"]
    said = lines(caplog, "INFO", "sidestream.run")
    sent = [line for line in said if line.startswith(f"request sent to {wired.model} for step")]
    assert len(sent) == 2
    assert said[-1].startswith("run run_")
    assert "finished: stop after 2 steps" in said[-1]
    assert {record.levelname for record in caplog.records} == {"INFO"}


@requirement("R95")
async def test_embeddings_log_their_milestones(caplog: pytest.LogCaptureFixture):
    caplog.set_level("INFO", "sidestream")
    vector = {"object": "embedding", "index": 0, "embedding": [0.5, 1.0]}
    usage = {"prompt_tokens": 7, "total_tokens": 7}
    answer = {"object": "list", "data": [vector], "model": "text-embedding-3-small", "usage": usage}
    refusal = {"error": {"message": "no", "code": "invalid"}}
    async with FakeProvider(
        [json_reply(answer, headers={"X-Request-Id": "req_42"}), json_reply(refusal, status=400)]
    ) as fake:
        agent = Agent("openai-responses", base_url=fake.base_url, api_key=KEY)
        await agent.embed_query("hi")
        with pytest.raises(ProviderError):
            await agent.embed_query("hi")
    sent, done, failed = lines(caplog, "INFO", "sidestream.run")
    assert re.fullmatch(r"request sent to \S+:text-embedding\S+ for embeddings: request id req_42, status 200", sent)
    assert done.startswith("embeddings finished: 1 vectors in 1 requests, 7 input tokens, ")
    assert failed == "request for embeddings failed: ProviderError (status 400)"


@requirement("R95")
async def test_request_is_logged_with_server_id_and_session(caplog: pytest.LogCaptureFixture):
    caplog.set_level("INFO", "sidestream")
    gone = {
        "error": {"message": "Previous response with id 'resp_1' not found.", "code": "previous_response_not_found"}
    }
    script = [
        ResponsesScript().text("One").reply(headers={"X-Request-Id": "req_42"}),
        json_reply(gone, status=400),
        ResponsesScript().text("Two").reply(),
    ]
    async with FakeProvider(script) as fake:
        chat = Chat(Agent("openai-responses:gpt-5.6", base_url=fake.base_url, api_key=KEY))
        await chat.send("hi")
        await chat.send("again")
    said = lines(caplog, "INFO", "sidestream.run")
    assert said[0] == "request sent to openai-responses:gpt-5.6 for step 0: request id req_42, status 200"
    assert said[2] == "session anchored: the server holds the first 2 messages"
    assert said[3] == "request for step 0 failed: ProviderError (status 400)"
    assert said[4] == "session not continued, history resent: refused"


@requirement("R95")
async def test_abandoned_run_is_logged_once(caplog: pytest.LogCaptureFixture):
    caplog.set_level("INFO", "sidestream")
    agent = Agent(ScriptedModel(["Hi there."]))
    async with agent.stream("hi") as run:
        await anext(run)
    await run.aclose()
    assert sum("abandoned after" in line for line in lines(caplog, "INFO", "sidestream.run")) == 1


@requirement("R95")
@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
async def test_events_are_logged_at_debug_without_content(
    wired: Subject, caplog: pytest.LogCaptureFixture, stream: bool
):
    caplog.set_level("DEBUG", "sidestream")
    async with wired.open(Text("Sunnyville.")) as talk:
        await talk.agent.send("How is Questionland?", stream=stream)
    said = lines(caplog, "DEBUG", "sidestream.run")
    assert {line.split()[0] for line in said} == {"event" if stream else "non-streaming"}
    assert "Sunnyville" not in caplog.text
    assert "Questionland" not in caplog.text


@requirement("R95")
async def test_key_is_never_logged_at_any_level(wired: Subject, caplog: pytest.LogCaptureFixture):
    caplog.set_level("DEBUG")
    echo = wired.wire.refusal(401, KEY, f"invalid key {KEY}")
    late = wired.wire.refusal(503, "overloaded", f"try later, {KEY}", {"retry-after": "0"})
    async with wired.open(late, echo) as talk:
        with pytest.raises(RunError):
            await talk.agent.send(f"My key is {KEY}.")
    assert lines(caplog, "INFO", "sidestream.wire")[0].startswith("retrying in")
    assert KEY not in caplog.text
    assert all(KEY not in str(record.__dict__) for record in caplog.records if record.name.startswith("sidestream"))


@requirement("R95")
def test_secrets_are_redacted_in_messages_args_and_tracebacks(caplog: pytest.LogCaptureFixture):
    register_secret("canary-0123456789")
    log = get_logger("sidestream.run.anything")
    assert log.name == "sidestream.run"
    try:
        raise ValueError("the password is canary-0123456789")
    except ValueError:
        log.warning("failed with %s", "canary-0123456789", exc_info=True)
    log.warning("a plain %s", "line")
    assert "canary" not in caplog.text
    assert "ValueError" in caplog.text
    first, last = caplog.records
    assert first.getMessage() == "failed with [redacted]"
    assert (last.msg, last.args) == ("a plain %s", ("line",))  # Tools group by the template.


@requirement("R95")
async def test_raising_tool_is_error_of_its_package(caplog: pytest.LogCaptureFixture):
    register_secret("canary-9876543210")

    def fails() -> str:
        raise KeyError("canary-9876543210")

    await Agent(ScriptedModel([tool_call("fails"), "Sorry."]), tools=[fails]).send("hi")
    assert lines(caplog, "ERROR", "sidestream.tools") == ["tool fails raised KeyError"]
    assert "canary" not in caplog.text


@requirement("R95")
def test_every_package_logger_has_one_origin():
    """So that each has the handler that prints nothing, and the filter for secrets."""
    own = {"logs.py", "cli/stdio.py"}
    names = ("getLogger", "basicConfig", "lastResort")
    for path in SOURCE.glob("**/*.py"):
        text = path.read_text("utf-8")
        if path.relative_to(SOURCE).as_posix() in own or not any(name in text for name in names):
            continue
        for node in ast.walk(ast.parse(text)):
            named = isinstance(node, ast.Attribute) and node.attr in names
            assert not named, f"{path}:{getattr(node, 'lineno', 0)}"


@requirement("R95")
async def test_log_line_belongs_to_span_of_its_run(collected: Collected, caplog: pytest.LogCaptureFixture):
    """The integrations of OpenTelemetry read the current span when a record is made."""
    from opentelemetry import trace

    seen: list[tuple[str, int]] = []

    class Correlated(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            seen.append((record.getMessage(), trace.get_current_span().get_span_context().trace_id))

    caplog.set_level("DEBUG", "sidestream.run")
    handler = Correlated()
    logging.getLogger("sidestream.run").addHandler(handler)
    try:
        async with FakeProvider([ResponsesScript().text("Hi").reply()]) as fake:
            agent = Agent(
                "openai-responses:gpt-5.6", base_url=fake.base_url, api_key=KEY, telemetry=collected.telemetry()
            )
            await agent.send("hi")
    finally:
        logging.getLogger("sidestream.run").removeHandler(handler)
    run = collected.one("invoke_agent")
    assert len(seen) > 5
    assert {trace_id for _, trace_id in seen} == {run.context.trace_id}


# What is printed

PROGRAM = """
import asyncio
from sidestream import Agent
from sidestream.testing import ScriptedModel, tool_call
def fails() -> str:
    raise KeyError("x")
agent = Agent(ScriptedModel([tool_call("fails"), "Sorry."]), tools=[fails])
print(asyncio.run(agent.send("hi")).text)
"""


def ran(*args: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *args],
        capture_output=True,
        encoding="utf-8",
        timeout=60,
        check=False,
        env={**os.environ, **environment},
    )


@requirement("R95")
def test_output_is_empty_unless_program_configures_logging():
    done = ran("-W", "ignore", "-c", PROGRAM)
    assert (done.stdout, done.stderr) == ("Sorry.\n", "")


@requirement("R95")
def test_program_configuring_logging_sees_lines():
    done = ran("-c", f"import logging; logging.basicConfig(level='INFO')\n{PROGRAM}")
    assert "INFO:sidestream.run:run run_" in done.stderr
    assert "ERROR:sidestream.tools:tool fails raised KeyError" in done.stderr


@requirement("R95")
def test_cli_logs_to_stderr_when_variable_is_set(tmp_path: Path):
    def prompt(**environment: str) -> subprocess.CompletedProcess[str]:
        reply = ResponsesScript().text("Hi there.").reply()
        with FakeProvider([reply]).in_thread() as fake:
            args = ("-m", "sidestream.cli", "-m", "openai-responses:gpt-5.6", "hi")
            return ran(*args, OPENAI_BASE_URL=fake.base_url, OPENAI_API_KEY=KEY, HOME=str(tmp_path), **environment)

    quiet, info, debug = prompt(), prompt(SIDESTREAM_LOG="info"), prompt(SIDESTREAM_LOG="Debug")
    assert {quiet.stdout, info.stdout, debug.stdout} == {"Hi there.\n"}
    assert "sidestream.run" not in quiet.stderr
    assert "INFO sidestream.run: request sent to openai-responses:gpt-5.6" in info.stderr
    assert "DEBUG" not in info.stderr
    assert "DEBUG sidestream.run: event response.completed" in debug.stderr
    assert KEY not in quiet.stderr + info.stderr + debug.stderr


@requirement("R95")
def test_unknown_level_error_lists_known_levels():
    done = ran("-m", "sidestream.cli", "hi", SIDESTREAM_LOG="loud")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: SIDESTREAM_LOG must be one of debug, info, warning, error, not 'loud'\n"
