"""Canaries in every place where a secret is configured are found in nothing that is printed, logged, kept or raised."""

import asyncio
import io
import json
import logging
import os
import re
import sys
import tempfile
import traceback
import uuid
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, ClassVar

import pytest
from rich.console import Console
from rich.pretty import pretty_repr
from rich.traceback import Traceback

import sidestream
from cli.command import COMMAND
from requirements import requirement
from sidestream import Agent, Chat, Limits, MCPServer, RemoteMCP, RunError, SidestreamError, tool
from sidestream.errors import ToolServerError
from sidestream.mcp import load_mcp_config
from sidestream.mcp.http import without_user
from sidestream.replay.capture import RecordingTransport
from sidestream.testing import (
    ChatScript,
    FakeProvider,
    GeminiScript,
    MessagesScript,
    Received,
    Reply,
    ResponsesScript,
    dropped,
    error_reply,
    json_reply,
)
from sidestream.testing.gemini_script import InteractionScript
from sidestream.tools.context import ToolContext
from sidestream.wire import HttpTransport
from sidestream.wire.retry import RetryPolicy
from support import warm
from support.mcp_servers.peers import HERE as MCP_SERVERS
from support.places import TESTS

AT_ONCE = RetryPolicy(wait_initial_s=0.001, wait_max_s=0.002)
LIMITS = Limits(first_byte_timeout_s=10, idle_timeout_s=10, max_retries=1)


class Canaries:
    """Secrets of no known shape, by the place where they are configured."""

    def __init__(self) -> None:
        self._values: dict[str, str] = {}

    def __getitem__(self, place: str) -> str:
        return self._values.setdefault(place, f"canary{uuid.uuid4().hex}")

    @property
    def all(self) -> str:
        """All of them in one text, as a server may repeat them."""
        return " ".join(self._values.values())

    def in_text(self, text: str) -> set[str]:
        return {place for place, value in self._values.items() if value in text}


class Sinks:
    """What came out, and where."""

    def __init__(self, canaries: Canaries) -> None:
        self.canaries = canaries
        self.leaks: set[str] = set()
        self.seen: set[str] = set()

    def add(self, where: str, shown: object) -> None:
        text = shown if isinstance(shown, str) else shown.decode("latin-1") if isinstance(shown, bytes) else repr(shown)
        self.seen.add(where)
        self.leaks |= {f"{place} in {where}" for place in self.canaries.in_text(text)}

    def add_error(self, error: BaseException) -> None:
        """The exception and those behind it: text, repr, fields, and the locals of every frame of ours."""
        chain: list[BaseException] = [error]
        for link in chain:
            behind = (link.__cause__, None if link.__suppress_context__ else link.__context__)
            chain += [other for other in behind if other is not None and other not in chain]
            kind = type(link).__name__
            self.add(f"{kind} text", f"{link} {link!r} {link.args!r} {vars(link)!r}")
            self.add(f"{kind} traceback", "".join(traceback.format_exception(link, chain=False)))
            for frame, _ in traceback.walk_tb(link.__traceback__):
                if not frame.f_code.co_filename.startswith(str(TESTS)):
                    self._add_locals(kind, frame)

    def _add_locals(self, kind: str, frame: FrameType) -> None:
        place = f"{Path(frame.f_code.co_filename).name}:{frame.f_code.co_name}"
        for name, value in frame.f_locals.items():
            # A traceback with locals shows them with either, and ignores what a repr raises.
            for show in (repr, pretty_repr):
                with suppress(AttributeError):
                    self.add(f"{kind} local {name} of {place}", show(value))

    def add_files(self, folder: Path) -> None:
        for path in folder.rglob("*"):
            if path.is_file():
                self.add(f"file {re.sub(r'[0-9a-f]{8,}', 'N', path.name)}", path.read_bytes())

    def check(self) -> None:
        if self.leaks:
            pytest.fail("\n".join(sorted(self.leaks)), pytrace=False)


@pytest.fixture
def sinks(caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> Generator[Sinks]:
    """Everything that the test's process writes is a sink: logs of all libraries at DEBUG, both streams, all files."""
    caplog.set_level(logging.DEBUG)
    caplog.handler.setLevel(logging.DEBUG)
    yield (found := Sinks(Canaries()))
    for record in caplog.get_records("call"):
        found.add(f"log of {record.name}", f"{caplog.handler.format(record)} {record.__dict__!r}")
        if record.exc_info and record.exc_info[1]:
            found.add_error(record.exc_info[1])
    out, err = capfd.readouterr()
    found.add("stdout", out)
    found.add("stderr", err)
    found.add_files(tmp_path)
    found.check()


Failed = Callable[[str, str], Any]
WIRES: dict[str, tuple[Callable[[], Any], Failed, str]] = {
    "openai-responses:gpt-5.6": (
        ResponsesScript,
        lambda code, text: ResponsesScript().text("so").failed(code, text),
        "function_call",
    ),
    "openai:gpt-5.6": (ChatScript, lambda code, text: ChatScript().text("so").error(code, text), "tool_call"),
    "anthropic:claude-sonnet-5-5": (
        MessagesScript,
        lambda code, text: MessagesScript().text("so").error(code, text),
        "tool_use",
    ),
    "google:gemini-3-flash": (
        GeminiScript,
        lambda code, text: GeminiScript().text("so").error(503, code, text),
        "function_call",
    ),
    "google:interactions/gemini-3-flash": (
        InteractionScript,
        lambda code, text: InteractionScript().text("so").error(code, text),
        "function_call",
    ),
}
EVERY = pytest.mark.parametrize("model", WIRES)


def replies(model: str, secret: str) -> dict[str, list[Any]]:
    """Ways in which a run ends, and in which a provider repeats what it was sent."""
    script, failed, call = WIRES[model]
    body = json.dumps(
        {"error": {"code": secret, "type": secret, "message": f"no {secret}", "param": secret, "status": secret}}
    )
    return {
        "well": [getattr(script(), call)("look", {}).reply(), script().text("done").reply()],
        "refused": [error_reply(401, "bad_key", f"the key {secret} is wrong")],
        "refused with codes": [Reply(status=400, body=body.encode(), content_type="application/json")],
        "an error instead of a stream": [Reply(body=body.encode(), content_type="application/json")],
        "a page": [Reply(body=f"<p>{secret}</p>".encode(), content_type="text/html")],
        "failed in the stream": [failed(secret, f"it broke: {secret}").reply()],
        "dropped": [dropped(), dropped()],
        "redirected": [Reply(status=307, headers={"location": f"http://{secret}@127.0.0.1/{secret}?q={secret}"})],
    }


@asynccontextmanager
async def agent_of(
    canaries: Canaries, model: str, script: list[Any], **settings: Any
) -> AsyncGenerator[tuple[Agent[str], RecordingTransport]]:
    def look() -> str:
        """Looks."""
        found = canaries["api key"]
        raise ValueError(f"cannot look with {found}")

    async with FakeProvider(script) as fake:
        transport = RecordingTransport(HttpTransport(retry=AT_ONCE))
        given = {
            "api_key": canaries["api key"],
            "headers": {"X-Team-Pass": canaries["header"], "Cookie": f"a=1; session={canaries['cookie']}; b=2"},
            **settings,
        }
        yield (
            Agent(model, base_url=fake.base_url, transport=transport, limits=LIMITS, tools=[tool(look)], **given),
            transport,
        )


@requirement("F44")
@EVERY
@pytest.mark.parametrize("case", replies("openai:gpt-5.6", ""))
async def test_run_shows_no_secret_however_it_ends(model: str, case: str, sinks: Sinks, tmp_path: Path):
    canaries = sinks.canaries
    secrets = f"{canaries['api key']} {canaries['header']} {canaries['cookie']}"
    async with agent_of(canaries, model, replies(model, secrets)[case]) as (agent, transport):
        chat = Chat(agent, store=tmp_path / "log.db")
        await chat.load()
        try:
            async with chat.stream("hi") as run:
                async for part in run:
                    sinks.add(f"part {part.type}", f"{part!r} {part.to_json()}")
            sinks.add("result", run.result)
        except RunError as error:
            sinks.add_error(error)
            sinks.add("partial result", getattr(error, "result", None))
        transport.recording.save(tmp_path / "recording.json")
        for shown in (agent, agent.model, vars(agent), vars(agent.model), transport):
            sinks.add("repr", f"{shown!r} {pretty_repr(shown)}")
    sinks.add_files(tmp_path)
    assert {"part finish", "file log.db", "file recording.json"} <= sinks.seen


@requirement("F44")
@EVERY
@pytest.mark.parametrize("status", [401, 500])
async def test_requests_outside_runs_show_no_secret(model: str, status: int, sinks: Sinks):
    canaries = sinks.canaries
    auth = {"X-Signed": canaries["auth"], "Authorization": f"Bearer {canaries['token']}"}
    body = json.dumps({"error": {"code": f"{auth}", "message": f"{auth}"}}).encode()
    async with FakeProvider() as fake:
        for method in ("GET", "POST"):
            fake.on(method, "*", Reply(status=status, body=body, content_type="application/json"))
        transport = RecordingTransport(HttpTransport(retry=AT_ONCE))
        agent = Agent(model, base_url=fake.base_url, auth=lambda: auth, limits=LIMITS, transport=transport)
        for request in (agent.download("file-1"), agent.upload(b"x", name="a.txt"), agent.list_models()):
            with pytest.raises(RunError) as caught:
                await request
            sinks.add_error(caught.value)
        sinks.add("recording", transport.recording)


@requirement("F44")
@pytest.mark.parametrize("by_proxy", [False, True])
async def test_unreachable_server_shows_no_secret(by_proxy: bool, sinks: Sinks, monkeypatch: pytest.MonkeyPatch):
    canaries = sinks.canaries
    if by_proxy:
        monkeypatch.setenv("http_proxy", f"http://user:{canaries['proxy']}@127.0.0.1:1")
    url = "http://api.example.com/v1" if by_proxy else "http://127.0.0.1:1/v1"
    agent = Agent("openai:gpt-5.6", base_url=url, api_key=canaries["api key"], limits=LIMITS)
    for request in (agent.send("hi"), agent.download("file-1")):
        with pytest.raises(RunError) as caught:
            await request
        assert caught.value.code in ("connect", "proxy")
        sinks.add_error(caught.value)


@requirement("F44")
@EVERY
@pytest.mark.parametrize("by_environment", [False, True])
def test_base_url_with_key_is_refused_without_showing_it(
    model: str, by_environment: bool, sinks: Sinks, monkeypatch: pytest.MonkeyPatch
):
    canaries = sinks.canaries
    variable = {"openai": "OPENAI_BASE_URL", "anthropic": "ANTHROPIC_BASE_URL", "google": "GOOGLE_GEMINI_BASE_URL"}
    for url in (
        f"https://api.example.com/v1?key={canaries['query']}",
        f"https://api.example.com/v1#{canaries['fragment']}",
        f"https://user:{canaries['password']}@api.example.com/v1",
        f"ftp://{canaries['token as user']}@host/?{canaries['bare query']}",
        f"https://[::1?sig={canaries['signature']}",
    ):
        given = {} if by_environment else {"base_url": url}
        monkeypatch.setenv(variable[model.partition(":")[0].partition("-")[0]], url if by_environment else "")
        with pytest.raises(sidestream.ConfigurationError) as caught:
            Agent(model, api_key=canaries["api key"], headers={"X-Team-Pass": canaries["header"]}, **given)  # type: ignore[call-overload]
        sinks.add_error(caught.value)
        show_with_rich(caught.value, sinks)


class Uncoloured(Traceback):
    """Rich's traceback without colours in the source, for which it would parse every file."""

    LEXERS: ClassVar[dict[str, str]] = {**Traceback.LEXERS, ".py": "text"}


def show_with_rich(error: BaseException, sinks: Sinks) -> None:
    """As `rich.traceback.install(show_locals=True)` does, of our frames only."""
    screen = io.StringIO()
    shown = Uncoloured.from_exception(type(error), error, error.__traceback__, show_locals=True, suppress=[str(TESTS)])
    Console(file=screen, width=400).print(shown)
    sinks.add("rich", screen.getvalue())


@requirement("F44")
@pytest.mark.parametrize(
    "wrong", [{"limits": 3}, {"temprature": 1}, {"tools": [3]}, {"approval": 3}, {"max_tokens": "x"}]
)
def test_invalid_settings_beside_key_show_no_secret(wrong: dict[str, Any], sinks: Sinks):
    canaries = sinks.canaries
    try:
        Agent("openai", api_key=canaries["api key"], headers={"X-Team-Pass": canaries["header"]}, **wrong)
    except (TypeError, SidestreamError) as error:
        sinks.add_error(error)
    else:
        pytest.fail("the setting was accepted")


# MCP servers


def mcp_reply(canaries: Canaries, fails: str) -> Callable[[Received], Reply]:
    """A small server, which repeats all that it was sent in what it answers to one method."""

    def answer(request: Received) -> Reply:
        message = request.json
        if message["method"] == fails:
            return json_reply(
                {"jsonrpc": "2.0", "id": message.get("id"), "error": {"code": -1, "message": f"no {canaries.all}"}}
            )
        result: dict[str, Any]
        match message["method"]:
            case "initialize":
                info = {"name": "small", "version": "1"}
                result = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": info}
            case "tools/list":
                result = {"tools": [{"name": "echo", "inputSchema": {"type": "object"}}]}
            case "tools/call":
                result = {"content": [{"type": "text", "text": "echoed"}]}
            case _:
                return Reply(status=202 if "id" not in message else 404)
        return json_reply({"jsonrpc": "2.0", "id": message["id"], "result": result})

    return answer


@requirement("F44")
@pytest.mark.parametrize("fails", ["nothing", "initialize", "tools/list", "tools/call", "401", "port"])
async def test_remote_mcp_server_shows_no_secret(fails: str, sinks: Sinks):
    canaries = sinks.canaries
    async with FakeProvider() as fake:
        fake.on("POST", "*", Reply(status=401) if fails == "401" else mcp_reply(canaries, fails))
        fake.on("GET", "*", Reply(status=405))
        fake.on("DELETE", "*", Reply(status=405))
        port = 1 if fails == "port" else fake.port
        server = MCPServer(
            "docs",
            url=f"http://user:{canaries['mcp password']}@127.0.0.1:{port}/mcp?profile={canaries['mcp query']}",
            headers={"X-Team-Pass": canaries["mcp header"]},
            start_timeout_s=10,
        )
        sinks.add("repr", f"{server!r} {pretty_repr(server)} {vars(server)} {pretty_repr(vars(server))}")
        try:
            (echo,) = await server.list()
            sinks.add("outcome", await echo.run({}, ToolContext("call-1", "echo", lambda value: None), Limits()))
        except ToolServerError as error:
            sinks.add_error(error)
        await server.aclose()
        if fails != "port":
            sent = fake.requests[0]
            assert sent.headers["authorization"].startswith("Basic ")
            assert sent.headers["x-team-pass"] == canaries["mcp header"]
            assert sent.query == {"profile": canaries["mcp query"]}


@requirement("F44")
def test_mcp_libraries_never_see_credentials_of_url():
    url, headers = without_user("http://us%40er:p%3Aw@host:1/mcp?x=y", {"X-A": "1"})
    assert (url, headers) == ("http://host:1/mcp?x=y", {"X-A": "1", "Authorization": "Basic dXNAZXI6cDp3"})
    given = {"authorization": "Bearer mine"}
    assert without_user("http://user:pw@host/mcp", given) == ("http://host/mcp", given)
    assert without_user("http://host/mcp?mail=a@b", {}) == ("http://host/mcp?mail=a@b", {})


@requirement("F44")
@pytest.mark.parametrize("start", ["well", "exit", "noise"])
async def test_mcp_server_environment_is_not_shown(start: str, sinks: Sinks):
    canaries = sinks.canaries
    program = (
        "import os, sys; print('started with', dict(os.environ), file=sys.stderr, flush=True); "
        "print(dict(os.environ), flush=True) if sys.argv[1] == 'noise' else None; "
        "sys.exit(3) if sys.argv[1] != 'well' else sys.argv.pop(1); "
        f"sys.path.insert(0, {str(MCP_SERVERS)!r}); sys.argv[1:] = []; import rogue"
    )
    env = {"TEAM_PASS": canaries["mcp env"], "SERVICE_TOKEN": canaries["mcp env by name"]}
    server = MCPServer("docs", command=sys.executable, args=["-c", program, start], env=env, start_timeout_s=20)
    sinks.add("repr", f"{server!r} {pretty_repr(server)} {vars(server)} {pretty_repr(vars(server))}")
    try:
        await server.list()
    except ToolServerError as error:
        sinks.add_error(error)
    await server.aclose()


@requirement("F44")
async def test_invalid_mcp_server_settings_show_no_secret(sinks: Sinks):
    canaries = sinks.canaries
    given = {
        "headers": {"X-Team-Pass": canaries["mcp header"]},
        "authorization": canaries["mcp authorization"],
        "env": {"TEAM_PASS": canaries["mcp env"]},
        "url": f"ftp://user:{canaries['mcp password']}@host/?key={canaries['mcp query']}",
    }
    for change in ({}, {"env": {}}, {"url": None, "command": "x"}):
        with pytest.raises(sidestream.ConfigurationError) as caught:
            MCPServer("docs", **{**given, **change})  # type: ignore[arg-type]
        sinks.add_error(caught.value)
    with pytest.raises(sidestream.ConfigurationError) as caught:
        RemoteMCP(label="docs", url=given["url"], headers=given["headers"], authorization=given["authorization"])  # type: ignore[arg-type]
    sinks.add_error(caught.value)


@requirement("F44")
@pytest.mark.parametrize(
    "model", ["openai-responses:gpt-5.6", "anthropic:claude-sonnet-5-5", "google:interactions/gemini-3-flash"]
)
async def test_remote_server_credentials_reach_only_provider(model: str, sinks: Sinks, tmp_path: Path):
    canaries = sinks.canaries
    remote = RemoteMCP(
        label="docs",
        url=f"https://mcp.example.com/mcp?profile={canaries['mcp query']}",
        authorization=canaries["mcp authorization"],
        execution="provider",
        require_approval="never",
    )
    sinks.add("repr", f"{remote!r} {pretty_repr(remote)}")
    script = [WIRES[model][1](canaries.all, canaries.all).reply()]
    async with agent_of(canaries, model, script, server_side_tools=[remote]) as (agent, transport):
        chat = Chat(agent, store=tmp_path / "log.db")
        with pytest.raises(RunError) as caught:
            await chat.send("hi")
        sinks.add_error(caught.value)
        transport.recording.save(tmp_path / "recording.json")


@requirement("F44")
@pytest.mark.parametrize(
    "broken",
    [
        {
            "mcpServers": {
                "docs": {"command": "x", "env": {"A": "CANARY"}},
                "other": {"command": "y", "url": "z", "nope": 1},
            }
        },
        {"mcpServers": {"docs": {"command": "x", "env": {"A": "CANARY", "B": 3}}}},
        {"mcpServers": {"docs": {"url": "ftp://u:CANARY@h/"}}},
        {"servers": {"docs": {"command": "x", "env": {"A": "CANARY"}}}, "mcpServers": {}},
        '{"mcpServers": {"docs": {"command": "x", "env": {"A": "CANARY"}}}',
    ],
)
def test_broken_mcp_file_is_refused_without_showing_it(broken: Any, sinks: Sinks):
    text = broken if isinstance(broken, str) else json.dumps(broken)
    with tempfile.TemporaryDirectory() as folder:  # not the test's own, whose files are searched
        path = Path(folder) / "mcp.json"
        path.write_text(text.replace("CANARY", sinks.canaries["mcp file"]))
        with pytest.raises(sidestream.ConfigurationError) as caught:
            load_mcp_config(path)
    sinks.add_error(caught.value)


@requirement("F44")
@pytest.mark.parametrize("model", ["openai?key={}", "?key={}", "https://user:{}@host/v1"])
def test_model_string_with_key_is_refused_without_showing_it(model: str, sinks: Sinks):
    with pytest.raises(sidestream.ConfigurationError) as caught:
        Agent(model.format(sinks.canaries["model string"]))
    sinks.add("text", str(caught.value))


# The command line


async def command(tmp_path: Path, *args: str, **env: str) -> tuple[bytes, bytes]:
    kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
    process = await warm.start(
        *COMMAND,
        *args,
        env={**kept, "HOME": str(tmp_path), "SIDESTREAM_LOG": "debug", **env},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=tmp_path,
    )
    try:
        return await asyncio.wait_for(process.communicate(), 60)
    finally:
        with suppress(ProcessLookupError):
            process.kill()


@requirement("F44")
@pytest.mark.parametrize(
    ("case", "flags"),
    [
        *((case, ("--json",)) for case in ("well", "refused", "refused with codes", "failed in the stream")),
        *((case, ("-v",)) for case in ("refused", "failed in the stream", "dropped")),
    ],
)
async def test_cli_prints_and_stores_no_secret(case: str, flags: tuple[str, ...], sinks: Sinks, tmp_path: Path):
    key = sinks.canaries["api key"]
    async with FakeProvider(replies("openai-responses:gpt-5.6", key)[case]) as fake:
        store = ("--log", "--store", str(tmp_path / "log.db"))
        given = {"OPENAI_API_KEY": key, "OPENAI_BASE_URL": fake.base_url}
        out, err = await command(tmp_path, "-m", "openai-responses", *store, *flags, "hi", **given)
        assert fake.requests
    sinks.add("stdout of the command", out)
    sinks.add("stderr of the command", err)
    assert out or err
    sinks.add_files(tmp_path)
    assert "file log.db" in sinks.seen


@requirement("F44")
@pytest.mark.parametrize("by_environment", [False, True])
async def test_cli_refuses_base_url_with_key_without_showing_it(by_environment: bool, sinks: Sinks, tmp_path: Path):
    url = f"https://user:{sinks.canaries['password']}@api.example.com/v1?sig={sinks.canaries['query']}"
    flags, env = ((), {"OPENAI_BASE_URL": url}) if by_environment else (("--base-url", url), {})
    out, err = await command(tmp_path, "-m", "openai", *flags, "hi", OPENAI_API_KEY=sinks.canaries["api key"], **env)
    sinks.add("stdout of the command", out)
    sinks.add("stderr of the command", err)
    assert b"base URL" in err


# Stores


@requirement("F44")
@pytest.mark.parametrize(
    "address",
    [
        "postgresql://user:{}@127.0.0.1:1/talks",
        "postgresql://user:{}@127.0.0.1:port/talks",
        "postgresql://127.0.0.1:1/talks?password={}",
        "postgresql://user:p@{}/x@127.0.0.1/talks",
        "mysql://user:{}@127.0.0.1/talks",
        "sqlite://user:{}@127.0.0.1/talks",
        "sqlite:///talks.db?key={}",
    ],
)
async def test_unopenable_store_shows_no_password(address: str, sinks: Sinks):
    async with agent_of(sinks.canaries, "openai:gpt-5.6", []) as (agent, _):
        with pytest.raises((sidestream.ConfigurationError, sidestream.errors.StoreError)) as caught:
            await Chat(agent, store=address.format(sinks.canaries["store"])).load()
    sinks.add_error(caught.value)
