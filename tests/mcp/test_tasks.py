"""Calls that a server makes tasks of: they outlive the connection, and the process."""

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from requirements import requirement
from sidestream import Agent, Chat, MCPServer, open_store
from sidestream.mcp import Elicitation
from sidestream.parts import ToolEvent
from sidestream.testing import FakeProvider
from support.children import started
from support.mcp_servers.asking import Oven, baker, calling
from support.mcp_servers.peers import HERE, PATIENCE_S, call
from support.mcp_servers.running import serving
from support.places import TESTS
from support.waiting import eventually

CALL = ("bake", {"what": "bread"})
BREAD = {"content": [{"type": "text", "text": "fresh bread"}], "structuredContent": {"result": "fresh bread"}}
QUESTION = {
    "method": "elicitation/create",
    "params": {
        "mode": "form",
        "message": "How dark?",
        "requestedSchema": {"type": "object", "properties": {"dark": {"type": "integer"}}, "required": ["dark"]},
    },
}


@pytest.fixture
def oven(tmp_path: Path) -> Oven:
    return Oven(tmp_path / "tasks")


@contextmanager
def bakery(oven: Oven, port: int | None = None) -> Generator[str]:
    """The server over HTTP."""
    log = oven.folder / "log"
    with serving(
        lambda port: [sys.executable, "-I", str(HERE / "patient.py"), str(oven.folder), str(port)], log, port
    ) as url:
        yield url


@requirement("R80")
async def test_task_is_polled_until_result_and_status_is_progress(oven: Oven):
    reports: list[Any] = []
    async with baker(oven) as server:
        running = asyncio.create_task(call(server, *CALL, progress=reports.append))
        await oven.started()
        await eventually(lambda: {"status": "working"} in reports)
        oven.change(statusMessage="it rises\x1b[2J")
        await eventually(lambda: {"status": "working", "message": "it rises"} in reports)
        oven.change(status="completed", result=BREAD)
        outcome = await running
    assert (outcome.result, outcome.is_error) == ("fresh bread", False)
    assert [report["status"] for report in reports] == ["working", "working", "completed"]


@requirement("R80")
async def test_unsuccessful_task_is_error_for_model(oven: Oven):
    cold = {"code": -32603, "message": "the oven is cold"}
    cases: list[tuple[dict[str, Any], str]] = [
        ({"status": "failed", "error": cold}, "failed: the oven is cold"),
        ({"status": "cancelled", "statusMessage": "closing time"}, "cancelled: closing time"),
        ({"status": "completed", "result": BREAD | {"isError": True}}, "fresh bread"),
        ({"status": "completed", "result": {"content": 3}}, "invalid result"),
        ({"status": "completed", "result": {"content": []}}, "invalid result"),
        ({"status": "burnt"}, "invalid result"),
    ]
    async with baker(oven) as server:
        for fields, words in cases:
            running = asyncio.create_task(call(server, *CALL))
            await oven.started()
            oven.change(**fields)
            outcome = await running
            assert outcome.is_error, fields
            assert words in str(outcome.result), fields
            oven.empty()


@requirement("R80")
async def test_unknown_task_is_error_for_model(oven: Oven):
    async with baker(oven) as server:
        running = asyncio.create_task(call(server, *CALL))
        await oven.started()
        oven.empty()
        outcome = await running
    assert outcome.is_error
    assert "unknown task" in str(outcome.result)


@requirement("R80")
async def test_cancelled_call_cancels_its_task(oven: Oven):
    async with baker(oven) as server:
        reports: list[Any] = []
        running = asyncio.create_task(call(server, *CALL, progress=reports.append))
        await eventually(lambda: bool(reports))  # the client knows the task, not only the server
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await eventually(lambda: oven.tasks[0]["status"] == "cancelled")


@requirement("R80")
async def test_timed_out_call_cancels_its_task(oven: Oven):
    async with baker(oven, timeout_s=0.5) as server:
        outcome = await call(server, *CALL)
        assert "TimeoutError" in str(outcome.result)
        await eventually(lambda: oven.tasks[0]["status"] == "cancelled")


@requirement("R80")
async def test_task_outlives_connection(oven: Oven):
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    reports: list[Any] = []
    with bakery(oven, port) as url:
        server = MCPServer("patient", url=url)
        running = asyncio.create_task(call(server, *CALL, progress=reports.append))
        await eventually(lambda: bool(reports))
    oven.change(status="completed", result=BREAD)
    with bakery(oven, port):
        outcome = await running
        await server.aclose()
    assert outcome.result == "fresh bread"
    assert len(oven.tasks) == 1


@requirement("R80")
async def test_task_question_is_answered_by_hook(oven: Oven):
    asked: list[Elicitation] = []

    def answer(question: Elicitation) -> dict[str, Any]:
        asked.append(question)
        return {"dark": 3}

    async with baker(oven, on_elicitation=answer) as server:
        running = asyncio.create_task(call(server, *CALL))
        await oven.started()
        oven.change(status="input_required", inputRequests={"q": QUESTION})
        await eventually(lambda: "answers" in oven.tasks[0])
        oven.change(status="completed", result=BREAD)
        await running
    assert [question.message for question in asked] == ["How dark?"]
    assert oven.tasks[0]["answers"]["q"]["content"] == {"dark": 3}


@requirement("R80")
async def test_task_question_is_answered_later_by_user(oven: Oven):
    async with FakeProvider(calling(*CALL)) as fake:
        async with Agent("openai-responses", base_url=fake.base_url, tools=[baker(oven)]) as agent:
            running = asyncio.create_task(agent.send("Bake"))
            await oven.started()
            oven.change(status="input_required", inputRequests={"q": QUESTION})
            result = await running
        (pending,) = result.approvals
        assert pending.form["message"] == "How dark?"
        async with Agent("openai-responses", base_url=fake.base_url, tools=[baker(oven)]) as agent:
            running = asyncio.create_task(agent.resume(result.run_state, [pending.approve({"dark": 9})]).result())
            await eventually(lambda: "answers" in oven.tasks[0])
            oven.change(status="completed", result=BREAD)
            assert (await running).output == "Done."
    assert oven.tasks[0]["answers"]["q"] == {"action": "accept", "content": {"dark": 9}}
    assert fake.requests[-1].json["input"][-1]["output"] == "fresh bread"


BAKING = """
import asyncio, sys
from pathlib import Path
from support.mcp_servers.asking import baker, Oven
from sidestream import Agent, Chat, open_store
from sidestream.parts import ToolEvent

async def main(folder, base_url):
    oven = Oven.__new__(Oven)
    oven.folder = Path(folder) / "tasks"
    async with Agent("openai-responses", base_url=base_url, tools=[baker(oven)]) as agent:
        chat = Chat(agent, store=open_store(Path(folder) / "talks.db"), id="talk")
        await chat.load()
        async with chat.stream("Bake") as run:
            async for part in run:
                if isinstance(part, ToolEvent):
                    print(part.event["status"], flush=True)

asyncio.run(main(*sys.argv[1:]))
"""


@requirement("R80", "R84")
async def test_task_continues_after_kill_and_is_resumed_from_log(oven: Oven, tmp_path: Path):
    async with FakeProvider(calling(*CALL)) as fake:
        with started(
            sys.executable,
            "-c",
            BAKING,
            str(tmp_path),
            fake.base_url,
            env={**os.environ, "PYTHONPATH": str(TESTS)},
            stdout=subprocess.PIPE,
        ) as process:
            assert process.stdout is not None
            assert await asyncio.to_thread(process.stdout.readline) == b"working\n"
            process.kill()
            process.wait(PATIENCE_S)
        oven.change(status="completed", result=BREAD)
        store = open_store(tmp_path / "talks.db")
        async with Agent("openai-responses", base_url=fake.base_url, tools=[baker(oven)]) as agent:
            chat = Chat(agent, store=store, id="talk")
            await chat.load()
            assert chat.approvals == ()
            assert (await chat.resume()).output == "Done."
        await store.aclose()
        assert fake.requests[-1].json["input"][-1]["output"] == "fresh bread"
    assert len(oven.tasks) == 1


@requirement("R80", "R161")
async def test_task_of_handed_off_run_is_not_cancelled_and_continues(oven: Oven, tmp_path: Path):
    store = open_store(tmp_path / "talks.db")
    async with FakeProvider(calling(*CALL)) as fake:
        async with Agent("openai-responses", base_url=fake.base_url, tools=[baker(oven)]) as agent:
            chat = Chat(agent, store=store, id="talk")
            await chat.load()
            run = chat.stream("Bake.")
            async for part in run:
                if isinstance(part, ToolEvent):
                    break
            await run.leave()
        assert [task["status"] for task in oven.tasks] == ["working"]
        assert len(oven.tasks[0]["key"]) == 32
        async with Agent("openai-responses", base_url=fake.base_url, tools=[baker(oven)]) as agent:
            # Twice: a process that had taken it over ends too.
            for ends in (True, False):
                chat = Chat(agent, store=store, id="talk")
                await chat.load()
                assert (chat.status, chat.approvals) == ("unfinished", ())
                run = chat.resume_stream()
                async for part in run:
                    if isinstance(part, ToolEvent) and ends:
                        break
                    if isinstance(part, ToolEvent):
                        oven.change(status="completed", result=BREAD)
                await run.leave()
        assert fake.requests[-1].json["input"][-1]["output"] == "fresh bread"
    await store.aclose()
    assert len(oven.tasks) == 1
