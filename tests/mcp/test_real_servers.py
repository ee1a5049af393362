"""Real servers of both protocol generations, over stdio: what they offer, and what their tools give back."""

import asyncio
import logging
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from requirements import requirement
from sidestream import TextPart
from sidestream.mcp import Elicitation, MCPServer, SamplingAnswer, SamplingRequest
from sidestream.messages.message import DataPart, content_of_result
from sidestream.tools.tool import ToolContext
from support.mcp_servers.peers import call, modern, rogue, told, tools_of

Start = Callable[..., MCPServer]


@requirement("R80")
async def test_time_server_tells_time():
    async with MCPServer("time", command=sys.executable, args=["-m", "mcp_server_time"]) as server:
        tools = await tools_of(server)
        assert set(tools) == {"get_current_time", "convert_time"}
        assert tools["get_current_time"].parameters["required"] == ["timezone"]
        assert tools["get_current_time"].server_label == "time"
        arguments = {"source_timezone": "UTC", "time": "12:00", "target_timezone": "Asia/Tokyo"}
        outcome = await call(server, "convert_time", arguments)
        assert "T21:00:00+09:00" in str(outcome.result)
        assert server._connection()._client.protocol_version == "2026-07-28"


def make_repository(folder: Path) -> None:
    author = ["-c", "user.name=a", "-c", "user.email=a@example.com"]
    for command in (["init", "-q"], [*author, "commit", "-q", "--allow-empty", "-m", "First"]):
        subprocess.run(["git", *command], cwd=folder, timeout=60, check=True)


@requirement("R80")
async def test_git_server_works_on_real_repository(tmp_path: Path):
    make_repository(tmp_path)
    server = MCPServer("git", command=sys.executable, args=["-m", "mcp_server_git", "--repository", str(tmp_path)])
    async with server:
        outcome = await call(server, "git_log", {"repo_path": str(tmp_path)})
        assert "First" in str(outcome.result)
        outcome = await call(server, "git_log", {"repo_path": "/"})
        assert outcome.is_error


@requirement("R80")
async def test_filesystem_server_reads_only_allowed_files(node: Start, tmp_path: Path):
    (tmp_path / "note.txt").write_text("a real file")
    server = node("filesystem", str(tmp_path))
    tools = await tools_of(server)
    assert not tools["read_text_file"].is_sensitive
    assert tools["write_file"].is_sensitive
    listed = await call(server, "list_directory", {"path": str(tmp_path)})
    assert listed.result == {"content": "[FILE] note.txt"}
    read = await call(server, "read_text_file", {"path": str(tmp_path / "note.txt")})
    assert "a real file" in str(read.result)
    refused = await call(server, "read_text_file", {"path": "/etc/hostname"})
    assert refused.is_error
    assert refused.result["error"] == "ToolError"
    assert "Access denied" in refused.result["message"]


@requirement("R80")
async def test_text_result_is_string(node: Start):
    assert (await call(node("everything"), "echo", {"message": "hi"})).result == "Echo: hi"


@requirement("R80")
async def test_image_is_file_visible_to_model(node: Start):
    outcome = await call(node("everything"), "get-tiny-image")
    shown = content_of_result(outcome.result)
    assert [type(part) for part in shown] == [TextPart, DataPart, TextPart]
    assert isinstance(shown[1], DataPart)
    assert shown[1].mime_type == "image/png"
    assert shown[1].data.startswith(b"\x89PNG")


@requirement("R80")
async def test_structured_content_is_json_value(node: Start):
    outcome = await call(node("everything"), "get-structured-content", {"location": "Chicago"})
    assert outcome.result == {"temperature": 36, "conditions": "Light rain / drizzle", "humidity": 82}


@requirement("R80")
async def test_resources_come_with_their_urls(node: Start):
    server = node("everything")
    links = await call(server, "get-resource-links", {"count": 2})
    assert "demo://resource/dynamic/text/2" in links.result
    text = await call(server, "get-resource-reference", {"resourceType": "Text", "resourceId": 1})
    assert "Resource demo://resource/dynamic/text/1:\nResource 1" in text.result
    blob = await call(server, "get-resource-reference", {"resourceType": "Blob", "resourceId": 2})
    (file,) = (part for part in content_of_result(blob.result) if isinstance(part, DataPart))
    assert file.data.startswith(b"Resource 2")


@requirement("R80")
async def test_failing_tool_reports_reason(node: Start):
    outcome = await call(node("everything"), "get-sum", {"a": 1, "b": "x"})
    assert outcome.is_error
    assert "expected number" in outcome.result["message"]


@requirement("R80")
async def test_non_object_arguments_are_rejected_before_server(node: Start):
    outcome = await call(node("everything"), "echo", ["hi"])
    assert outcome.result["error"] == "InvalidArguments"


@requirement("R80")
@pytest.mark.parametrize("generation", ["older", "newer", "npm"])
async def test_progress_arrives_in_order_before_result(generation: str, node: Start):
    seen: list[Any] = []
    if generation == "npm":
        server, name, arguments = node("everything"), "trigger-long-running-operation", {"duration": 0.3, "steps": 3}
    else:
        server, name, arguments = (modern(), "count", {}) if generation == "newer" else (rogue(), "progress", {})
    async with server:
        outcome = await call(server, name, arguments, progress=seen.append)
    assert not outcome.is_error
    assert [(entry["progress"], entry["total"]) for entry in seen] == [(1, 3), (2, 3), (3, 3)]
    if generation != "npm":
        assert [entry["message"] for entry in seen] == ["step 1", "step 2", "step 3"]


@requirement("R80")
async def test_cancelled_call_leaves_real_server_usable(node: Start):
    server = node("everything")
    tools = await tools_of(server)
    seen = asyncio.Event()
    context = ToolContext("c", "long", lambda value: seen.set())
    long = {"duration": 600, "steps": 6000}
    calling = asyncio.create_task(tools["trigger-long-running-operation"].run(long, context))
    await seen.wait()
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling
    assert (await call(server, "echo", {"message": "still here"})).result == "Echo: still here"


@requirement("R80")
async def test_sampling_is_answered_by_callback(node: Start):
    asked: list[SamplingRequest] = []

    async def answer(request: SamplingRequest) -> SamplingAnswer:
        asked.append(request)
        return SamplingAnswer(text="sampled", model="mine")

    server = node("everything", on_sampling=answer)
    outcome = await call(server, "trigger-sampling-request", {"prompt": "say", "maxTokens": 7})
    assert '"text": "sampled"' in outcome.result
    assert '"model": "mine"' in outcome.result
    assert (asked[0].server, asked[0].max_tokens) == ("everything", 7)
    assert "say" in asked[0].messages[0].text


@requirement("R80")
async def test_elicitation_is_answered_by_callback(node: Start):
    asked: list[Elicitation] = []

    def answer(question: Elicitation) -> dict[str, Any]:
        asked.append(question)
        return {"name": "Ada", "check": True}

    server = node("everything", on_elicitation=answer)
    outcome = await call(server, "trigger-elicitation-request")
    assert "Name: Ada" in outcome.result
    assert asked[0].schema is not None
    assert "name" in asked[0].schema["properties"]


@requirement("R80")
async def test_roots_are_sent_as_folder_urls(node: Start, tmp_path: Path):
    outcome = await call(node("everything", roots=[tmp_path]), "get-roots-list")
    assert tmp_path.as_uri() in outcome.result


@requirement("R80")
async def test_unanswerable_requests_are_not_offered(node: Start):
    offered = set(await tools_of(node("everything")))
    assert not offered & {"trigger-sampling-request", "trigger-elicitation-request", "get-roots-list"}


@requirement("R80")
@pytest.mark.parametrize(
    ("answer", "said"),
    [({"colour": "red"}, "accept: {'colour': 'red'}"), (None, "decline: None"), (False, "decline: None")],
)
async def test_newer_elicitation_is_answered_in_second_round(answer: Any, said: str):
    async with modern(on_elicitation=lambda question: answer) as server:
        assert (await call(server, "paint")).result == said


ASK: dict[str, dict[str, Any]] = {
    "elicitation/create": {"message": "Name?", "requestedSchema": {"type": "object", "properties": {}}},
    "sampling/createMessage": {"messages": [], "maxTokens": 1},
    "roots/list": {},
}


@requirement("R80")
@pytest.mark.parametrize("method", ASK)
async def test_unoffered_request_of_server_is_declined(method: str):
    async with rogue() as server:
        answer = await told(server, "ask", {"method": method, "params": ASK[method]})
        assert "not supported" in answer["error"]["message"]


async def test_failing_callback_dismisses_question(caplog: pytest.LogCaptureFixture):
    def fail(question: object) -> None:
        raise ValueError("in the callback")

    async with rogue(on_elicitation=fail, on_sampling=fail) as server:
        answer = await told(server, "ask", {"method": "elicitation/create", "params": ASK["elicitation/create"]})
        assert answer["result"]["action"] == "cancel"
        answer = await told(
            server, "ask", {"method": "sampling/createMessage", "params": ASK["sampling/createMessage"]}
        )
        assert "in the callback" not in str(answer["error"])


async def test_sampling_can_be_declined():
    async with rogue(on_sampling=lambda request: None) as server:
        answer = await told(
            server, "ask", {"method": "sampling/createMessage", "params": ASK["sampling/createMessage"]}
        )
        assert answer["error"]["code"] == -1


async def test_url_elicitation_is_shown_as_url():
    asked: list[Elicitation] = []
    async with rogue(on_elicitation=lambda question: asked.append(question) or True) as server:
        params = {"mode": "url", "message": "Log in\x1b[2K", "url": "https://example.com/login", "elicitationId": "1"}
        answer = await told(server, "ask", {"method": "elicitation/create", "params": params})
    assert answer["result"] == {"action": "accept"}
    assert asked == [Elicitation(server="rogue", message="Log in", url="https://example.com/login")]


async def test_server_logs_are_forwarded_at_debug_without_secrets(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.DEBUG, "sidestream.mcp")
    async with rogue() as server:
        await call(server, "note")
    (record,) = (
        record for record in caplog.records if record.name == "sidestream.mcp" and "hello" in record.getMessage()
    )
    assert record.levelno == logging.DEBUG
    assert "canary" not in record.getMessage()


@requirement("R80")
async def test_newer_result_is_validated_and_returned_as_value():
    async with modern() as server:
        assert (await call(server, "add", {"a": 1, "b": 2})).result == {"total": 3}
        assert (await call(server, "add", {"a": 1})).is_error
