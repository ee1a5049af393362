"""Servers from code and from files: what is read, what is refused, and what is never shown."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from requirements import requirement
from sidestream import ConfigurationError, UnsupportedError
from sidestream.mcp import MCPServer, mcp_servers
from sidestream.redaction import redact
from sidestream.tools.server_side import MCPApproval, RemoteMCP, ToolFilter
from sidestream.tools.toolset import Toolset

CANARY = "canary-4f2a9c-secret"


def written(folder: Path, content: object, name: str = "mcp.json") -> Path:
    file = folder / name
    file.parent.mkdir(exist_ok=True)
    file.write_text(content if isinstance(content, str) else json.dumps(content), "utf-8")
    return file


def one(file: Path) -> Any:
    (server,) = mcp_servers(file)
    return server._config


@requirement("R80")
def test_a_server_is_a_toolset():
    assert isinstance(MCPServer("files", command="npx"), Toolset)


@requirement("R80")
@pytest.mark.parametrize("section", ["mcpServers", "servers"])
def test_both_shapes_of_the_file_are_read(tmp_path: Path, section: str):
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
def test_a_server_by_url_may_name_its_transport(tmp_path: Path, kind: str | None, transport: str):
    entry = {"url": "https://example.com/mcp", "headers": {"X-Team": "blue"}} | ({"type": kind} if kind else {})
    endpoint = one(written(tmp_path, {"mcpServers": {"docs": entry}}))
    assert (endpoint.url, endpoint.headers, endpoint.transport) == (entry["url"], entry["headers"], transport)


@pytest.mark.parametrize("name", ["mcp.json", ".mcp.json", ".vscode/mcp.json"])
def test_the_usual_files_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str):
    monkeypatch.chdir(tmp_path)
    written(tmp_path, {"servers": {"files": {"command": "npx", "cwd": "${workspaceFolder}/src"}}}, name)
    (server,) = mcp_servers()
    assert server.label == "files"
    assert server._config.cwd == str(tmp_path / "src")


def test_no_file_at_all_is_told_with_the_names_that_were_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError, match=r"mcp\.json, \.mcp\.json, \.vscode/mcp\.json"):
        mcp_servers()


def test_comments_and_trailing_commas_of_editors_are_tolerated(tmp_path: Path):
    text = """{
      // the servers
      "servers": { /* one */ "files": {"command": "npx", "args": ["a,]b", "http://x//y",],}, },
    }"""
    assert one(written(tmp_path, text)).args == ("a,]b", "http://x//y")


@requirement("R80")
def test_variables_are_filled_in_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
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
    first, second = (
        server._config for server in mcp_servers(written(tmp_path, {"mcpServers": {"a": local, "b": remote}}))
    )
    assert (first.command, first.args, first.env, first.cwd) == (
        "/srv/bin/run",
        ("none", "/srv"),
        {"T": CANARY},
        "/srv",
    )
    assert (second.url, second.headers) == ("https://host/mcp", {"Authorization": f"Bearer {CANARY}"})


def test_a_disabled_server_is_left_out(tmp_path: Path):
    assert mcp_servers(written(tmp_path, {"mcpServers": {"a": {"command": "x", "disabled": True}}})) == []


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{not json", ["not valid JSON", "line 1"]),
        ([], ["must contain a JSON object"]),
        ({}, ["'mcpServers' and 'servers'"]),
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
    ],
)
def test_what_cannot_be_read_names_the_file_the_server_and_the_field(tmp_path: Path, content: object, words: list[str]):
    file = written(tmp_path, content)
    with pytest.raises(ConfigurationError) as caught:
        mcp_servers(file)
    assert str(file) in str(caught.value)
    for word in words:
        assert word in str(caught.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path):
    with pytest.raises(ConfigurationError, match="nowhere"):
        mcp_servers(tmp_path / "nowhere.json")


@requirement("F43")
def test_secrets_stand_neither_in_the_repr_nor_in_errors():
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
def test_settings_that_make_no_sense_are_refused_at_once(settings: dict[str, Any]):
    with pytest.raises(ConfigurationError, match="files"):
        MCPServer("files", **settings)


@pytest.mark.parametrize("label", ["", "  ", "a\x1b[31m", "x" * 65])
def test_a_label_must_be_fit_to_be_shown(label: str):
    with pytest.raises(ConfigurationError):
        MCPServer(label, command="x")


def test_a_remote_config_becomes_its_local_equivalent():
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
        RemoteMCP(label="x", url="https://x", defer_loading=True),
        RemoteMCP(label="x", url="https://x", allowed_callers=["programmatic"]),
    ],
)
def test_what_only_a_provider_can_do_is_refused(remote: RemoteMCP):
    with pytest.raises(UnsupportedError, match=remote.label):
        MCPServer.from_remote(remote)


def test_importing_the_room_does_not_load_the_official_client():
    import subprocess

    code = "import sys, sidestream.mcp; sys.exit('mcp' in sys.modules or 'anyio' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
