"""Servers by URL: real ones of both generations, and bad ones that speak just enough HTTP."""

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from requirements import requirement
from sidestream import RemoteMCP
from sidestream.errors import ToolServerError
from sidestream.limits import MIB
from sidestream.mcp import MCPServer
from sidestream.messages.message import DataPart, content_of_result
from sidestream.tools.tool import ToolContext
from support.mcp_servers.peers import call, tools_of
from support.mcp_servers.running import HERE, serving
from support.waiting import eventually

Head = dict[str, str]
Answer = Callable[[str, Head, dict[str, Any]], Awaitable[bytes] | bytes]


@requirement("R80")
async def test_real_server_works_over_streamable_http(everything_url: str):
    seen: list[Any] = []
    async with MCPServer("everything", url=everything_url) as server:
        assert len(await server.list()) >= 12
        assert (await call(server, "echo", {"message": "hi"})).result == "Echo: hi"
        image = await call(server, "get-tiny-image")
        assert any(isinstance(part, DataPart) for part in content_of_result(image.result))
        long = {"duration": 0.3, "steps": 3}
        await call(server, "trigger-long-running-operation", long, progress=seen.append)
        assert [entry["progress"] for entry in seen] == [1, 2, 3]
        assert (await call(server, "get-sum", {"a": 1, "b": "x"})).is_error


@requirement("R80")
async def test_callbacks_work_over_http(everything_url: str, tmp_path: Path):
    server = MCPServer(
        "everything",
        url=everything_url,
        on_sampling=lambda request: "sampled",
        on_elicitation=lambda question: {"name": "Ada"},
        roots=[tmp_path],
    )
    async with server:
        # The server offers these tools once it has seen what the client can do.
        await eventually_offers(server, "trigger-elicitation-request")
        assert "sampled" in (await call(server, "trigger-sampling-request", {"prompt": "say"})).result
        assert "Ada" in (await call(server, "trigger-elicitation-request")).result
        assert tmp_path.as_uri() in (await call(server, "get-roots-list")).result


async def eventually_offers(server: MCPServer, name: str) -> None:
    async def is_offered() -> bool:
        return name in await tools_of(server)

    await eventually(is_offered)


@requirement("R80")
async def test_call_timeout_over_http_keeps_connection(everything_url: str):
    async with MCPServer("everything", url=everything_url, timeout_s=0.5) as server:
        outcome = await call(server, "trigger-long-running-operation", {"duration": 60, "steps": 6})
        assert outcome.result["error"] == "TimeoutError"
        assert (await call(server, "echo", {"message": "hi"})).result == "Echo: hi"


@requirement("R80")
async def test_newer_protocol_version_works_over_http(modern_url: str):
    seen: list[Any] = []
    async with MCPServer("modern", url=modern_url, on_elicitation=lambda question: {"colour": "red"}) as server:
        connection = server._connection()
        assert (await call(server, "add", {"a": 1, "b": 2})).result == {"total": 3}
        assert connection._client.protocol_version == "2026-07-28"
        await call(server, "count", progress=seen.append)
        assert [entry["progress"] for entry in seen] == [1, 2, 3]
        assert (await call(server, "paint")).result == "accept: {'colour': 'red'}"


@requirement("R80")
async def test_remote_config_is_served_locally(everything_url: str):
    remote = RemoteMCP(label="docs", url=everything_url, allowed_tools=["echo"], require_approval="always")
    async with MCPServer.from_remote(remote) as server:
        (tool,) = await server.list()
        assert (tool.name, tool.approval, tool.server_label) == ("echo", "ask", "docs")


@requirement("R80", "F43")
async def test_lost_server_is_reported_and_reconnected_when_back(npm_servers: Path, tmp_path: Path):
    program = str(npm_servers / "server-everything" / "dist" / "index.js")
    command = ["node", "--require", str(HERE / "loopback.cjs"), program, "streamableHttp"]
    with serving(lambda port: command, tmp_path / "first") as url:
        server = MCPServer("everything", url=url)
        tools = await tools_of(server)
        begun = asyncio.Event()
        context = ToolContext("c", "long", lambda value: begun.set())
        long = {"duration": 60, "steps": 600}
        calling = asyncio.create_task(tools["trigger-long-running-operation"].run(long, context))
        await begun.wait()
    outcome = await calling
    assert outcome.is_error
    assert outcome.result["error"] == "ToolServerError"
    assert "not called again" in outcome.result["message"]
    with pytest.raises(ToolServerError, match="cannot connect to"):
        await server.list()
    with serving(lambda port: command, tmp_path / "second", urlsplit(url).port):
        outcome = await tools["echo"].run({"message": "back"}, ToolContext("c", "echo"))
        assert outcome.result == "Echo: back"
        await server.aclose()


# Bad servers


@asynccontextmanager
async def answering(answer: Answer) -> AsyncGenerator[str]:
    """An HTTP server that sends whatever `answer` says, and closes."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            head = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines) if name}
            body = await reader.readexactly(int(head.get("content-length", 0)))
            reply = answer(first.split()[0], head, json.loads(body) if body else {})
            writer.write(reply if isinstance(reply, bytes) else await reply)
            await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp"


def response(status: str, body: bytes = b"", **head: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", "Connection: close"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in head.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


def reply(request: dict[str, Any], result: object) -> bytes:
    body = json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}).encode()
    return response("200 OK", body, Content_Type="application/json")


def well(method: str, head: Head, request: dict[str, Any]) -> bytes:
    """A whole, if small, server of the older generation."""
    match request.get("method"):
        case "initialize":
            capabilities: dict[str, Any] = {"tools": {}}
            info = {"name": "small", "version": "1"}
            return reply(request, {"protocolVersion": "2025-11-25", "capabilities": capabilities, "serverInfo": info})
        case "tools/list":
            return reply(request, {"tools": [{"name": "echo", "inputSchema": {"type": "object"}}]})
        case "tools/call":
            return reply(request, {"content": [{"type": "text", "text": "echoed"}]})
        case "server/discover":
            return response("404 Not Found")
        case _:
            return response("202 Accepted") if method == "POST" else response("405 Method Not Allowed")


@requirement("F43")
@pytest.mark.parametrize(
    ("status", "words"),
    [
        ("401 Unauthorized", "rejected the credentials (HTTP 401): check authorization"),
        ("403 Forbidden", "HTTP 403"),
        ("404 Not Found", "no MCP endpoint at this URL (HTTP 404): check the url"),
        ("500 Oops", "HTTP 500"),
    ],
)
async def test_http_error_names_status_and_remedy(status: str, words: str):
    async with answering(lambda *_: response(status, b"canary body")) as url:
        server = MCPServer("docs", url=url)
        with pytest.raises(ToolServerError) as caught:
            await server.list()
        assert words in caught.value.message
        assert caught.value.server == "docs"
        await server.aclose()


@requirement("F43")
async def test_refused_connection_names_url():
    async with answering(well) as url:
        pass
    with pytest.raises(ToolServerError, match="cannot connect to http://") as caught:
        await MCPServer("docs", url=url.replace("http://", "http://user:canary-pass@")).list()
    assert "canary" not in caught.value.message


@requirement("F43")
async def test_page_without_mcp_is_reported():
    page = response("200 OK", b"<html>hello</html>", Content_Type="text/html")
    async with answering(lambda *_: page) as url:
        server = MCPServer("docs", url=url)
        with pytest.raises(ToolServerError, match="does not speak MCP"):
            await server.list()
        await server.aclose()


@requirement("R80")
async def test_headers_and_token_are_sent():
    seen: list[Head] = []

    def answer(method: str, head: Head, request: dict[str, Any]) -> bytes:
        seen.append(head)
        return well(method, head, request)

    settings: dict[str, Any] = {"headers": {"X-Team": "blue"}, "authorization": "my-token-1"}
    async with answering(answer) as url, MCPServer("docs", url=url, **settings) as server:
        assert (await call(server, "echo")).result == "echoed"
    assert all((head["x-team"], head["authorization"]) == ("blue", "Bearer my-token-1") for head in seen)


@requirement("F43")
async def test_oversized_answer_is_error_result():
    async def endless(writer_head: bytes) -> bytes:
        return writer_head + b"x" * (40 * MIB)

    def answer(method: str, head: Head, request: dict[str, Any]) -> Awaitable[bytes] | bytes:
        if request.get("method") == "tools/call":
            return endless(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n")
        return well(method, head, request)

    async with answering(answer) as url, MCPServer("docs", url=url) as server:
        outcome = await call(server, "echo")
        assert outcome.is_error
        assert "too large" in outcome.result["message"]
        assert (await tools_of(server))["echo"]


@requirement("F43")
async def test_compressed_answer_is_rejected():
    import gzip

    bomb = gzip.compress(b"x" * 10 * MIB)

    def answer(method: str, head: Head, request: dict[str, Any]) -> bytes:
        if request.get("method") == "tools/call":
            return response("200 OK", bomb, Content_Type="application/json", Content_Encoding="gzip")
        return well(method, head, request)

    async with answering(answer) as url, MCPServer("docs", url=url) as server:
        outcome = await call(server, "echo")
        assert outcome.is_error
        assert (await tools_of(server))["echo"]


@requirement("F43")
async def test_credentials_do_not_follow_redirect_to_another_origin():
    stolen: list[Head] = []

    def steal(method: str, head: Head, request: dict[str, Any]) -> bytes:
        stolen.append(head)
        return well(method, head, request)

    redirect = [b""]
    async with answering(steal) as elsewhere, answering(lambda *_: redirect[0]) as url:
        redirect[0] = response("307 Temporary Redirect", Location=elsewhere)
        server = MCPServer("docs", url=url, authorization="my-token-2")
        with pytest.raises(ToolServerError):
            await server.list()
        await server.aclose()
    assert stolen == []


@requirement("F43")
async def test_unresponsive_server_times_out_and_can_be_closed():
    async def never() -> bytes:
        await asyncio.Event().wait()
        return b""

    async with answering(lambda *_: never()) as url:
        server = MCPServer("docs", url=url, start_timeout_s=0.3)
        with pytest.raises(ToolServerError, match=r"did not answer within 0\.3 seconds"):
            await server.list()
        await server.aclose()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()  # those of the server above, which wait for ever
    await eventually(lambda: len(asyncio.all_tasks()) <= 2)
