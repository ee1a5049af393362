"""Servers from code and from files: what is read, what is refused, and what is never shown."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from requirements import requirement
from sidestream import Agent, ConfigurationError, ToolResult, UnsupportedError
from sidestream.mcp import MCPConfig, MCPServer, load_mcp_config
from sidestream.parts import StreamStart
from sidestream.testing import FakeProvider, ResponsesScript
from sidestream.text.redaction import redact
from sidestream.tools.server_side import MCPApproval, RemoteMCP, ToolFilter
from sidestream.tools.toolset import Toolset

CANARY = "canary-4f2a9c-secret"


def written(folder: Path, content: object, name: str = "mcp.json") -> Path:
    file = folder / name
    file.parent.mkdir(exist_ok=True)
    file.write_text(content if isinstance(content, str) else json.dumps(content), "utf-8")
    return file


def one(file: Path) -> Any:
    """The only server of the file, which has a command."""
    config = load_mcp_config(file)
    (server,) = config.toolsets
    assert config.remote_servers == ()
    return server._config


def one_remote(file: Path) -> RemoteMCP:
    """The only server of the file, which is remote."""
    config = load_mcp_config(file)
    (server,) = config.remote_servers
    assert config.toolsets == ()
    return server


@requirement("R80")
def test_server_is_toolset():
    assert isinstance(MCPServer("files", command="npx"), Toolset)


@requirement("R80")
@pytest.mark.parametrize("section", ["mcpServers", "servers"])
def test_both_file_formats_are_read(tmp_path: Path, section: str):
    entry = {"type": "stdio", "command": "npx", "args": ["-y", "server"], "env": {"A": "1"}, "cwd": "work"}
    endpoint = one(written(tmp_path, {section: {"files": entry}}))
    assert (endpoint.label, endpoint.command, endpoint.args, endpoint.env) == (
        "files",
        "npx",
        ("-y", "server"),
        {"A": "1"},
    )
    assert endpoint.cwd == str(tmp_path / "work")


@pytest.mark.parametrize(("kind", "transport"), [("http", "http"), ("sse", "sse"), (None, "http")])
def test_server_by_url_may_name_its_transport(tmp_path: Path, kind: str | None, transport: str):
    entry = {"url": "https://example.com/mcp", "headers": {"X-Team": "blue"}} | ({"type": kind} if kind else {})
    server = one_remote(written(tmp_path, {"mcpServers": {"docs": entry}}))
    assert (server.url, server.headers, server.transport) == (entry["url"], entry["headers"], transport)
    endpoint: Any = MCPServer.from_remote(server)._config
    assert (endpoint.url, endpoint.headers, endpoint.transport) == (entry["url"], entry["headers"], transport)


@pytest.mark.parametrize("name", ["mcp.json", ".mcp.json", ".vscode/mcp.json"])
def test_usual_files_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str):
    monkeypatch.chdir(tmp_path)
    written(tmp_path, {"servers": {"files": {"command": "npx", "cwd": "${workspaceFolder}/src"}}}, name)
    (server,) = load_mcp_config().toolsets
    assert server.label == "files"
    assert server._config.cwd == str(tmp_path / "src")


def test_missing_file_error_lists_searched_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError, match=r"mcp\.json, \.mcp\.json, \.vscode/mcp\.json"):
        load_mcp_config()


def test_comments_and_trailing_commas_are_tolerated(tmp_path: Path):
    text = """{
      // the servers
      "servers": { /* one */ "files": {"command": "npx", "args": ["a,]b", "http://x//y",],}, },
    }"""
    assert one(written(tmp_path, text)).args == ("a,]b", "http://x//y")


@requirement("R80")
def test_variables_are_expanded_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("WHERE", "/srv")
    monkeypatch.setenv("TOKEN_X", CANARY)
    monkeypatch.delenv("ABSENT", raising=False)
    local = {
        "command": "${WHERE}/bin/run",
        "args": ["${ABSENT:-none}", "${env:WHERE}"],
        "env": {"T": "${TOKEN_X}"},
        "cwd": "${WHERE}",
    }
    remote = {"url": "https://${ABSENT:-host}/mcp", "headers": {"Authorization": "Bearer ${TOKEN_X}"}}
    wire = {
        "server_label": "${ABSENT:-c}",
        "server_url": "https://${ABSENT:-c}.example",
        "authorization": "${TOKEN_X}",
        "headers": {"X-Key": "${TOKEN_X}"},
        "allowed_tools": ["${ABSENT:-read}"],
    }
    config = load_mcp_config(
        written(tmp_path, {"mcpServers": {"a": local, "b": remote}, "remote_servers": [wire]}),
    )
    (first,) = (server._config for server in config.toolsets)
    second, third = config.remote_servers
    assert (third.label, third.url, third.allowed_tools) == ("c", "https://c.example", ("read",))
    assert (third.authorization, third.headers) == (CANARY, {"X-Key": CANARY})
    assert (first.command, first.args, first.env, first.cwd) == (
        "/srv/bin/run",
        ("none", "/srv"),
        {"T": CANARY},
        "/srv",
    )
    assert (second.url, second.headers) == ("https://host/mcp", {"Authorization": f"Bearer {CANARY}"})


def test_disabled_server_is_omitted(tmp_path: Path):
    content = {
        "mcpServers": {"a": {"command": "x", "disabled": True}, "b": {"url": "https://b.example", "disabled": True}},
        "remote_servers": [{"server_label": "c", "server_url": "https://c.example", "disabled": True}],
    }
    assert load_mcp_config(written(tmp_path, content)) == MCPConfig()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{not json", ["not valid JSON", "line 1"]),
        ([], ["must contain a JSON object"]),
        ({}, ["'mcpServers' and 'servers'", "'remote_servers'"]),
        ({"mcpServers": {}, "servers": {}}, ["'mcpServers' and 'servers'"]),
        ({"mcpServers": []}, ["mcpServers must be an object"]),
        ({"mcpServers": {"files": 1}}, ["'files'", "must be an object"]),
        ({"mcpServers": {"files": {}}}, ["'files'", "needs either command or url"]),
        ({"mcpServers": {"files": {"command": "x", "url": "https://x"}}}, ["'files'", "needs either command or url"]),
        ({"mcpServers": {"files": {"command": ["npx"]}}}, ["'files': command must be a string"]),
        ({"mcpServers": {"files": {"command": "x", "args": "-y"}}}, ["'files': args must be a list of strings"]),
        ({"mcpServers": {"files": {"command": "x", "args": ["-n", 3]}}}, ["'files': args[1] must be a string"]),
        ({"mcpServers": {"files": {"command": "x", "env": {"N": 3}}}}, ["'files': env.N must be a string"]),
        ({"mcpServers": {"files": {"command": "x", "evn": {}}}}, ["'files': evn is an unknown field", "env"]),
        ({"mcpServers": {"files": {"type": "pigeon", "command": "x"}}}, ["'files': type must be one of stdio"]),
        ({"mcpServers": {"files": {"type": "http", "command": "x"}}}, ["'files': url is missing"]),
        ({"mcpServers": {"files": {"url": "ftp://x"}}}, ["'files'", "must start with http"]),
        (
            {"mcpServers": {"files": {"command": "${UNSET_HERE}"}}},
            ["'files': command needs", "UNSET_HERE", ":-default"],
        ),
        ({"servers": {"files": {"command": "x", "env": {"K": "${input:key}"}}}}, ["'files': env.K", "input:key"]),
        ({"mcpServers": {"a": {"command": "x", "approval": "always"}}}, ["'a': approval", "ask, ask-each, run, deny"]),
        (
            {"mcpServers": {"a": {"command": "x", "approval": {"w": "no"}}}},
            ["'a': approval.w", "ask, ask-each, run, deny"],
        ),
        ({"mcpServers": {"a": {"command": "x", "require_approval": "always"}}}, ["'a': require_approval", "ask, run"]),
        ({"mcpServers": {"a": {"url": "https://x", "approval": "ask"}}}, ["'a': approval", "require_approval"]),
        ({"mcpServers": {"a": {"url": "https://x", "require_approval": "ask"}}}, ["'a': require_app", "always, never"]),
        (
            {"mcpServers": {"a": {"command": "x", "on_interruption": "run"}}},
            ["'a': on_interruption", "ask, retry, fail"],
        ),
        ({"mcpServers": {"a": {"url": "https://x", "on_interruption": {"w": "hints"}}}}, ["'a': on_interruption.w"]),
        ({"mcpServers": {"a": {"url": "https://x", "execution": "cloud"}}}, ["'a': execution", "auto, provider"]),
        ({"mcpServers": {"a": {"command": "x", "allowed_tools": "read"}}}, ["'a': allowed_tools must be a list"]),
        ({"mcpServers": {"a": {"url": "https://x", "allowed_tools": {"names": []}}}}, ["'a': allowed_tools.names"]),
        ({"remote_servers": {}}, ["remote_servers must be a list"]),
        ({"remote_servers": [1]}, ["'remote_servers[0]'", "must be an object"]),
        ({"remote_servers": [{"server_url": "https://x"}]}, ["'remote_servers[0]': server_label is missing"]),
        ({"remote_servers": [{"server_label": "d"}]}, ["'d'", "needs one of url, connector and tunnel"]),
        ({"remote_servers": [{"server_label": "d", "server_url": "x"}]}, ["'d'", "must start with http"]),
        ({"remote_servers": [{"server_label": "d", "url": "https://x"}]}, ["'d': url is an unknown", "server_url"]),
        ({"remote_servers": [{"server_label": "d", "server_url": "https://x", "type": "http"}]}, ["'d': type"]),
        (
            {"remote_servers": [{"server_label": "d", "server_url": "https://x", "require_approval": {"no": []}}]},
            ["'d': require_approval.no is an unknown field", "always, never"],
        ),
        (
            {"remote_servers": [{"server_label": "d", "server_url": "https://x", "defer_loading": 1}]},
            ["'d': defer_loading must be true or false"],
        ),
        (
            {
                "mcpServers": {"d": {"command": "x"}},
                "remote_servers": [{"server_label": "d", "server_url": "https://x"}],
            },
            ["duplicate server label 'd'"],
        ),
    ],
)
def test_invalid_entry_error_names_file_server_and_field(tmp_path: Path, content: object, words: list[str]):
    file = written(tmp_path, content)
    with pytest.raises(ConfigurationError) as caught:
        load_mcp_config(file)
    assert str(file) in str(caught.value)
    for word in words:
        assert word in str(caught.value)


def test_missing_file_is_named(tmp_path: Path):
    with pytest.raises(ConfigurationError, match="nowhere"):
        load_mcp_config(tmp_path / "nowhere.json")


@requirement("R113")
def test_one_file_holds_local_and_remote_servers_with_approvals(tmp_path: Path):
    content = {
        "mcpServers": {
            "files": {
                "command": "npx",
                "approval": {"write": "ask", "read": "run"},
                "allowed_tools": ["read", "write"],
            },
            "notes": {"command": "npx", "approval": "deny"},
            "docs": {
                "type": "http",
                "url": "https://docs.example/mcp",
                "require_approval": "never",
                "on_interruption": "hints",
            },
            "wiki": {"url": "https://wiki.example/mcp", "execution": "provider", "authorization": "token-of-wiki"},
        },
        "remote_servers": [
            {
                "server_label": "deepwiki",
                "server_url": "https://mcp.deepwiki.example/mcp",
                "require_approval": {"always": {"tool_names": ["ask"]}, "never": {"read_only": True}},
                "allowed_tools": ["ask", "read"],
                "headers": {"X-Team": "blue"},
            },
            {"type": "mcp", "server_label": "mail", "connector_id": "connector_gmail", "require_approval": "always"},
            {"server_label": "own", "server_url": "https://own.example", "execution": "here"},
        ],
    }
    config = load_mcp_config(written(tmp_path, content))
    assert config.labels == ["files", "notes", "docs", "wiki", "deepwiki", "mail", "own"]
    files, notes = config.toolsets
    assert (files._approval, files._allowed) == ({"write": "ask", "read": "run"}, ToolFilter(names=["read", "write"]))
    assert notes._approval == "deny"
    assert config.remote_servers == (
        RemoteMCP(
            label="docs",
            url="https://docs.example/mcp",
            require_approval="never",
            execution="here",
            on_interruption="hints",
        ),
        RemoteMCP(label="wiki", url="https://wiki.example/mcp", authorization="token-of-wiki", execution="provider"),
        RemoteMCP(
            label="deepwiki",
            url="https://mcp.deepwiki.example/mcp",
            require_approval=MCPApproval(always=ToolFilter(names=["ask"]), never=ToolFilter(read_only=True)),
            allowed_tools=["ask", "read"],
            headers={"X-Team": "blue"},
        ),
        RemoteMCP(label="mail", connector="connector_gmail", require_approval="always"),
        RemoteMCP(label="own", url="https://own.example", execution="here"),
    )


@requirement("R113", "F43")
def test_file_secrets_are_in_no_repr_and_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TOKEN_X", CANARY)
    entries = [
        {"server_label": "a", "server_url": f"https://a.example/mcp?key={CANARY}", "authorization": "${TOKEN_X}-auth"},
        {"server_label": "b", "server_url": "https://b.example", "headers": {"X-Api-Key": "${TOKEN_X}-head"}},
    ]
    config = load_mcp_config(written(tmp_path, {"remote_servers": entries}))
    assert CANARY not in repr(config)
    for value in (f"{CANARY}-auth", f"{CANARY}-head"):
        assert CANARY not in redact(f"the server said {value}")
    for broken in ({"server_url": "ftp://x"}, {"headers": {"X": ["${TOKEN_X}"]}}, {"execution": "${TOKEN_X}"}):
        with pytest.raises(ConfigurationError) as caught:
            load_mcp_config(written(tmp_path, {"remote_servers": [{**entries[0], **broken}]}))
        assert CANARY not in str(caught.value)


@requirement("R113", "R76")
async def test_servers_of_file_run_under_their_approvals_in_one_agent(tmp_path: Path, modern_url: str):
    content = {
        "mcpServers": {
            "clock": {"command": sys.executable, "args": ["-m", "mcp_server_time"], "approval": "run"},
            "sums": {"url": modern_url},
        },
        "remote_servers": [{"server_label": "docs", "server_url": "https://docs.example/mcp"}],
    }
    config = load_mcp_config(written(tmp_path, content))
    noon = {"source_timezone": "UTC", "time": "12:00", "target_timezone": "UTC"}
    first = ResponsesScript().function_call("convert_time", noon, "c1").function_call("add", {"a": 1, "b": 2}, "c2")
    async with (
        FakeProvider([first.reply()]) as fake,
        Agent(
            "openai-responses",
            base_url=fake.base_url,
            tools=config.toolsets,
            server_side_tools=config.remote_servers,
        ) as agent,
    ):
        run = agent.stream("Go")
        async with run:
            parts = [part async for part in run]
        offered = {tool.get("server_label") or tool["name"]: tool for tool in fake.requests[0].json["tools"]}
    assert offered["docs"]["require_approval"] == "always"
    assert {"convert_time", "add"} <= offered.keys()
    assert [part.name for part in parts if isinstance(part, ToolResult)] == ["convert_time"]
    assert [(pending.server_label, pending.tool) for pending in run.state.approvals] == [("sums", "add")]
    assert isinstance(parts[0], StreamStart)
    assert parts[0].warnings == ()


@requirement("F43")
def test_secrets_are_in_no_repr_and_no_error():
    local = MCPServer("a", command="x", args=[f"--api-key={CANARY}"], env={"API_TOKEN": f"{CANARY}-env"})
    remote = MCPServer(
        "b",
        url=f"https://user:{CANARY}@host/mcp?key={CANARY}",
        headers={"X-Api-Key": f"{CANARY}-h"},
        authorization=f"{CANARY}-a",
    )
    assert CANARY not in repr(local) + repr(remote)
    # What is a secret by its place is one wherever it turns up later.
    for value in (f"{CANARY}-env", f"{CANARY}-h", f"{CANARY}-a"):
        assert CANARY not in redact(f"the server said {value}")


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"command": "x", "url": "https://x"},
        {"command": "x", "headers": {"a": "b"}},
        {"command": "x", "authorization": "t"},
        {"url": "https://x", "args": ["a"]},
        {"url": "https://x", "env": {"a": "b"}},
        {"url": "file:///etc"},
        {"command": "x", "args": "-m server"},
        {"command": "x", "timeout_s": 0},
        {"command": "x", "start_timeout_s": -1},
        {"command": "x", "approval": "sometimes"},
        {"command": "x", "approval": {"write": "sometimes"}},
        {"url": "https://x", "transport": "pigeon"},
    ],
)
def test_invalid_settings_are_rejected_at_once(settings: dict[str, Any]):
    with pytest.raises(ConfigurationError, match="files"):
        MCPServer("files", **settings)


@pytest.mark.parametrize("label", ["", "  ", "a\x1b[31m", "x" * 65])
def test_label_must_be_short_and_printable(label: str):
    with pytest.raises(ConfigurationError):
        MCPServer(label, command="x")


def test_remote_config_becomes_its_local_equivalent():
    remote = RemoteMCP(
        label="docs",
        url="https://example.com/mcp",
        headers={"X-Team": "blue"},
        authorization="token-of-mine",
        allowed_tools=["read"],
        require_approval=MCPApproval(never=ToolFilter(read_only=True)),
    )
    server = MCPServer.from_remote(remote)
    assert (server.label, server._config.url, server._config.headers) == ("docs", remote.url, remote.headers)
    assert server._config.authorization == "token-of-mine"
    assert server._allowed == ToolFilter(names=["read"])


@pytest.mark.parametrize(
    "remote",
    [
        RemoteMCP(label="mail", connector="connector_gmail"),
        RemoteMCP(label="lan", tunnel="tunnel_1"),
        RemoteMCP(label="x", url="https://x", allowed_callers=["programmatic"]),
    ],
)
def test_from_remote_rejects_provider_only_settings(remote: RemoteMCP):
    with pytest.raises(UnsupportedError, match=remote.label):
        MCPServer.from_remote(remote)


def test_importing_mcp_package_does_not_load_official_client():
    import subprocess

    code = "import sys, sidestream.mcp; sys.exit('mcp' in sys.modules or 'anyio' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
