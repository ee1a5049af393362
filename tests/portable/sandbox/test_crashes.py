"""Calls that run here across processes and providers: what a crash leaves, and what a container's id means elsewhere."""

import os
import sys
from asyncio.subprocess import PIPE
from pathlib import Path
from typing import Any

import pytest

from portable.sandbox.test_containers import processes
from requirements import requirement
from sidestream import Agent, Chat, CodeInterpreter, ToolResult
from sidestream.parts import Custom
from sidestream.providers.shared.continuation import CONTAINER_REPLACED
from sidestream.store import open_store
from sidestream.testing import ChatScript, FakeProvider, GeminiScript, MessagesScript, ResponsesScript, error_reply
from support import warm
from support.children import ends
from support.sandboxes import needs

CHILD = Path(__file__).with_name("here_child.py")
WRITES = "open('a.txt', 'w').write('kept')\nx = 1"
READS = "print(open('a.txt').read(), 'x' in dir())"


def calls(*codes: str) -> list[Any]:
    replies = [
        ChatScript().tool_call("code_interpreter", {"code": code}, f"c{number}").reply()
        for number, code in enumerate(codes)
    ]
    return [*replies, ChatScript().text("Done").reply()]


async def child(store: Path, url: str, *mode: str, until: str | None = None) -> list[str]:
    """The lines that the program prints; it is killed at one that has `until` in it."""
    process = await warm.start(sys.executable, str(CHILD), str(store), url, *mode, stdout=PIPE)
    assert process.stdout is not None
    lines: list[str] = []
    async for line in process.stdout:
        lines.append(line.decode().rstrip())
        if until is not None and until in lines[-1]:
            process.kill()
    code = await process.wait()
    assert code == 0 or until is not None, lines
    return lines


@requirement("R122", "F32")
@pytest.mark.parametrize("decision", ["approve", "deny"])
async def test_killed_code_needs_decision_and_lost_container_is_noted(tmp_path: Path, decision: str) -> None:
    needs("bubblewrap")
    marker = f"sleep 96{os.getpid()}"
    # Only the first container has the variable, so only the first process hangs.
    hangs = f"import subprocess\nprint('begun', flush=True)\n'x' in dir() and subprocess.run('{marker}', shell=True)"
    async with FakeProvider(calls(WRITES, hangs, READS)) as fake:
        store = tmp_path / "talk.db"
        first = await child(store, fake.base_url, "send", until="logs begun")
        assert [line.split()[0] for line in first] == ["result", "logs"]
        # The sandbox ended with the process.
        assert all(ends(pid) for pid in processes(marker))
        second = await child(store, fake.base_url, decision)
        sent = [request.json["messages"] for request in fake.requests]
    results = [line for line in second if line.startswith("result")]
    assert f"custom {CONTAINER_REPLACED}" in second
    assert len(results) == 2
    # The model is told with the first result of the new container; the file is in it, the variable is not.
    assert "is gone" in results[0 if decision == "approve" else 1]
    assert "kept False" in results[1]
    assert "it ran" in results[0] or decision == "approve"
    assert [message["role"] for message in sent[-1] if message["role"] == "tool"] == ["tool"] * 3


@requirement("F50", "R122")
async def test_kept_container_is_replaced_after_restart(tmp_path: Path) -> None:
    needs("bubblewrap")
    async with FakeProvider([*calls(WRITES), *calls(READS), *calls(READS)]) as fake:
        first = await child(tmp_path / "talk.db", fake.base_url, "send", "keep")
        second = await child(tmp_path / "talk.db", fake.base_url, "send", "keep")
    assert f"custom {CONTAINER_REPLACED}" not in first
    assert f"custom {CONTAINER_REPLACED}" in second
    # The file is the conversation's, the variable was the container's.
    (result,) = (line for line in second if line.startswith("result"))
    assert "is gone" in result
    assert "kept False" in result


@requirement("R122")
@pytest.mark.parametrize(
    ("provider", "script"),
    [("openai-responses", ResponsesScript), ("anthropic", MessagesScript), ("google", GeminiScript)],
)
async def test_local_container_is_not_sent_to_hosting_provider(provider: str, script: Any) -> None:
    needs("bubblewrap")
    tool = CodeInterpreter(reuse_container=provider != "google")  # Google has a new sandbox for each request.
    async with FakeProvider(calls(WRITES)) as here, FakeProvider([script().text("Hosted").reply()]) as hosted:
        async with Agent("groq:m", base_url=here.base_url, api_key="k", server_side_tools=[tool]) as agent:
            result = await agent.send("Write")
        local_id = result.tool_results[0].result["container_id"]
        hosted.on("POST", "*/files", error_reply(404, "not_found", "no files here"))
        there = Agent(provider, base_url=hosted.base_url, api_key="k", server_side_tools=[tool])
        answer = await there.send("Read", history=result.messages)
        body = hosted.requests[-1].json
    assert answer.output == "Hosted"
    settings = {name: value for name, value in body.items() if name not in ("input", "messages", "contents")}
    assert local_id not in str(settings)  # It is no container of theirs.
    history = str(body.get("input") or body.get("messages") or body.get("contents"))
    assert WRITES.splitlines()[-1] in history  # The call and its result stay in the history.
    assert "a.txt" in history


@requirement("R122")
async def test_hosted_container_is_replaced_locally_with_note() -> None:
    needs("bubblewrap")
    tool = CodeInterpreter(reuse_container=True)
    hosted_call = ResponsesScript().code_interpreter("x = 1", logs="").text("Ran")
    async with FakeProvider([hosted_call.reply()]) as hosted, FakeProvider(calls("print('x' in dir())")) as here:
        first = Agent("openai-responses", base_url=hosted.base_url, api_key="k", server_side_tools=[tool])
        result = await first.send("Run")
        async with (
            Agent("groq:m", base_url=here.base_url, api_key="k", server_side_tools=[tool]) as agent,
            agent.stream("Again", history=result.messages) as run,
        ):
            parts = [part async for part in run]
    assert [part.kind for part in parts if isinstance(part, Custom)] == [CONTAINER_REPLACED]
    (entry,) = (part for part in parts if isinstance(part, ToolResult))
    assert "is gone" in entry.result["notes"][0]
    assert entry.result["outputs"][0]["logs"] == "False\n"


@requirement("R122", "R84")
async def test_history_interrupted_in_local_call_is_repaired(
    tmp_path: Path,
) -> None:
    needs("bubblewrap")
    async with FakeProvider(calls(WRITES, "print('begun', flush=True)\nimport time\ntime.sleep(60)")) as fake:
        await child(tmp_path / "talk.db", fake.base_url, "send", until="logs begun")
    store = open_store(tmp_path / "talk.db")
    chat = Chat(Agent("groq:m", api_key="k"), store=store, id="talk")
    await chat.load()
    history = chat.messages
    await store.aclose()
    for provider, script in (
        ("openai-responses", ResponsesScript),
        ("anthropic", MessagesScript),
        ("google", GeminiScript),
    ):
        async with FakeProvider([script().text("Fine").reply()]) as fake:
            agent = Agent(provider, base_url=fake.base_url, api_key="k")
            result = await agent.send("Never mind", history=history)
        assert result.output == "Fine", provider
