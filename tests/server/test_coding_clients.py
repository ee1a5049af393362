"""Coding command lines: requests in the form in which Codex 0.169 and Claude Code 2.1 send them, and the real programs.

`make clients` installs the programs and runs their tests. Other runs leave those out.
"""

import asyncio
import json
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from sidestream import Agent
from sidestream.server import create_app
from sidestream.testing import FakeProvider, MessagesScript, Reply, ResponsesScript
from support.serving import OPEN, served
from support.stores import BOUND_S

KEY = "key-0123456789"
CLIENTS = os.environ.get("SIDESTREAM_CLIENTS")
"""Folder in which npm has installed the programs."""
PROGRAM_S = 120.0


def function(name: str, *required: str) -> dict[str, Any]:
    properties = {key: {"type": "string", "description": f"The {key}."} for key in required}
    schema = {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}
    return {"type": "function", "name": name, "description": f"{name}.", "strict": False, "parameters": schema}


def codex_message(role: str, text: str) -> dict[str, Any]:
    return {
        "type": "message",
        "id": f"msg_{len(text)}",
        "role": role,
        "content": [{"type": "input_text", "text": text}],
    }


CODEX: dict[str, Any] = {
    "model": "main",
    "input": [
        codex_message("developer", "You are a coding agent running in the Codex CLI."),
        codex_message("developer", "<skills_instructions>\n## Skills\n</skills_instructions>"),
        codex_message("user", "<environment_context>\n  <cwd>/work</cwd>\n</environment_context>"),
        codex_message("user", "Ask an agent to look, then say what it saw."),
    ],
    "tools": [
        function("exec_command", "cmd"),
        {
            "type": "namespace",
            "name": "multi_agent_v1",
            "description": "Tools for spawning and managing sub-agents.",
            "tools": [function("spawn_agent", "message"), function("close_agent", "target")],
        },
        {"type": "web_search", "external_web_access": False},
    ],
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "reasoning": {"summary": "auto"},
    "store": False,
    "stream": True,
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "01a1eeb0-219b-73b1-8846-f05e8c4cba3a",
    "client_metadata": {"session_id": "01a1eeb0-219b-73b1-8846-f05e8c4cba3a"},
}
CLAUDE_CODE: dict[str, Any] = {
    "model": "main",
    "max_tokens": 32000,
    "stream": True,
    "thinking": {"type": "adaptive"},
    "output_config": {"effort": "high"},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "metadata": {"user_id": '{"session_id":"67d37449"}'},
    "system": [
        {"type": "text", "text": "You are a Claude agent.", "cache_control": {"type": "ephemeral"}},
        {"type": "text", "text": "You help with software engineering tasks."},
    ],
    "tools": [
        {"name": name, "description": f"{name}.", "input_schema": function(name, "command")["parameters"]}
        for name in ("Bash", "Read")
    ],
    "messages": [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "<system-reminder>\nToday is Monday.\n</system-reminder>"},
                {"type": "text", "text": "What does echo print?", "cache_control": {"type": "ephemeral"}},
            ],
        },
        {"role": "system", "content": "Available agent types for the Agent tool: Explore."},
    ],
}


@asynccontextmanager
async def coding(model: str, replies: list[Reply], path: Path) -> AsyncGenerator[tuple[FakeProvider, str]]:
    """A server with the agent `main`, and its address."""
    async with FakeProvider(replies) as fake:
        agent = Agent(model, base_url=fake.base_url, api_key=KEY)
        async with served(create_app({"main": agent}, store=path / "talks.db", **OPEN)) as url:
            yield fake, url


async def events(url: str, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    async with httpx2.AsyncClient(base_url=url) as client:
        answer = await client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def calling(model: str, name: str, given: dict[str, Any], answer: str) -> list[Reply]:
    if model == "anthropic":
        first = MessagesScript().thinking("Hm.", signature="SIGNED").tool_use(name, given)
        return [first.reply(), MessagesScript().text(answer).reply()]
    first = ResponsesScript().reasoning("Hm.", encrypted_content="SECRET").function_call(name, given)
    return [first.reply(), ResponsesScript().text(answer).reply()]


@pytest.mark.parametrize("model", ["openai-responses", "anthropic"])
async def test_codex_session_calls_function_of_namespace(model: str, tmp_path: Path):
    replies = calling(model, "multi_agent_v1__spawn_agent", {"message": "Look."}, "It saw a cat.")
    async with asyncio.timeout(BOUND_S), coding(model, replies, tmp_path) as (fake, url):
        first = (await events(url, "/v1/responses", CODEX))[-1]["response"]
        reasoning, call = first["output"]
        assert (call["namespace"], call["name"]) == ("multi_agent_v1", "spawn_agent")
        assert json.loads(call["arguments"]) == {"message": "Look."}
        assert [tool["type"] for tool in first["tools"]] == ["function", "namespace", "web_search"]
        output = {"type": "function_call_output", "call_id": call["call_id"], "output": "A cat."}
        again = CODEX | {"input": [*CODEX["input"], reasoning, call, output]}
        second = (await events(url, "/v1/responses", again))[-1]["response"]
        assert second["output"][-1]["content"][0]["text"] == "It saw a cat."
        sent = [request.json for request in fake.requests]
        names = [tool.get("name") for tool in sent[0]["tools"]]
        assert {"exec_command", "multi_agent_v1__spawn_agent", "multi_agent_v1__close_agent"} <= set(names)
        assert "multi_agent_v1__spawn_agent" in str(sent[1].get("input") or sent[1]["messages"])
        # Anthropic cannot search without access to the web, which the request forbids.
        assert any(tool["type"] == "web_search" for tool in sent[0]["tools"] if "type" in tool) is (
            model != "anthropic"
        )


@pytest.mark.parametrize("model", ["openai-responses", "anthropic"])
async def test_claude_code_session_has_trailing_instructions(model: str, tmp_path: Path):
    replies = calling(model, "Bash", {"command": "echo hello"}, "It prints hello.")
    async with asyncio.timeout(BOUND_S), coding(model, replies, tmp_path) as (fake, url):
        path = "/v1/messages?beta=true"
        first = await events(url, path, CLAUDE_CODE)
        starts = [event["content_block"] for event in first if event["type"] == "content_block_start"]
        assert [block["type"] for block in starts] == ["thinking", "tool_use"]
        use = {**starts[1], "input": {"command": "echo hello"}}
        result = {"type": "tool_result", "tool_use_id": use["id"], "content": "hello", "is_error": False}
        later = [
            {"role": "assistant", "content": [use]},
            {"role": "user", "content": [result]},
            {"role": "system", "content": "The task list has changed."},
        ]
        second = await events(url, path, CLAUDE_CODE | {"messages": [*CLAUDE_CODE["messages"], *later]})
        deltas = [event["delta"] for event in second if event["type"] == "content_block_delta"]
        assert "".join(delta.get("text", "") for delta in deltas) == "It prints hello."
        for index, instruction in enumerate(("Explore.", "The task list has changed.")):
            assert instruction in json.dumps(fake.requests[index].json)


def environment(home: Path, **variables: str) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "HOME": str(home), "TERM": "dumb", **variables}


async def ran(*command: str, folder: Path, env: dict[str, str]) -> str:
    """The output of a program that ended well."""
    pipe = asyncio.subprocess.PIPE
    null, merged = asyncio.subprocess.DEVNULL, asyncio.subprocess.STDOUT
    program = await asyncio.create_subprocess_exec(
        *command, cwd=folder, env=env, stdin=null, stdout=pipe, stderr=merged
    )
    try:
        async with asyncio.timeout(PROGRAM_S):
            output = (await program.communicate())[0].decode()
    finally:
        if program.returncode is None:
            program.kill()
            await program.wait()
    assert program.returncode == 0, output
    return output


@pytest.mark.skipif(CLIENTS is None, reason="the programs are installed by: make clients")
@pytest.mark.parametrize("model", ["openai-responses", "anthropic"])
async def test_codex_runs_command_of_model(model: str, tmp_path: Path):
    replies = calling(model, "exec_command", {"cmd": "echo hel''lo"}, "It prints a greeting.")
    async with coding(model, replies, tmp_path) as (fake, url):
        provider = f'{{name="here",base_url="{url}/v1",env_key="HERE_KEY",wire_api="responses"}}'
        (tmp_path / "codex").mkdir()
        output = await ran(
            *(f"{CLIENTS}/node_modules/.bin/codex", "exec", "--skip-git-repo-check"),
            *("-c", f"model_providers.here={provider}", "-c", 'model_provider="here"', "-c", 'model="main"'),
            "What does echo print?",
            folder=tmp_path,
            env=environment(tmp_path, HERE_KEY=KEY, CODEX_HOME=str(tmp_path / "codex")),
        )
        assert "It prints a greeting." in output
        assert "hello" in json.dumps(fake.requests[1].json)


@pytest.mark.skipif(CLIENTS is None, reason="the programs are installed by: make clients")
@pytest.mark.parametrize("model", ["openai-responses", "anthropic"])
async def test_claude_code_runs_command_of_model(model: str, tmp_path: Path):
    replies = calling(model, "Bash", {"command": "echo hel''lo"}, "It prints a greeting.")
    async with coding(model, replies, tmp_path) as (fake, url):
        variables = {
            "ANTHROPIC_BASE_URL": url,
            "ANTHROPIC_AUTH_TOKEN": KEY,
            "ANTHROPIC_MODEL": "main",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        }
        output = await ran(
            *(f"{CLIENTS}/node_modules/.bin/claude", "-p", "What does echo print?"),
            folder=tmp_path,
            env=environment(tmp_path, **variables),
        )
        assert "It prints a greeting." in output
        assert "hello" in json.dumps(fake.requests[1].json)
