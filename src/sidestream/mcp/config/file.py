"""Reads servers from `mcp.json`, `.mcp.json` and `.vscode/mcp.json`: local and remote ones, each with its approval."""

import json
import re
from os import PathLike
from pathlib import Path
from typing import Any, cast

from msgspec import Struct

from sidestream.errors import ConfigurationError
from sidestream.mcp.client.server import MCPServer
from sidestream.mcp.config.entry import ServerEntry
from sidestream.tools.server_side import RemoteMCP

FILES = ("mcp.json", ".mcp.json", ".vscode/mcp.json")
SECTIONS = ("mcpServers", "servers")
REMOTE_SECTION = "remote_servers"
_COMMENT = re.compile(r'"(?:\\.|[^"\\])*"|//[^\n]*|/\*.*?\*/', re.DOTALL)
_TRAILING_COMMA = re.compile(r'"(?:\\.|[^"\\])*"|,(?=\s*[}\]])', re.DOTALL)


class MCPConfig(Struct, frozen=True):
    """The servers of a file: `Agent(…, tools=config.toolsets, server_side_tools=config.remote_servers)`."""

    toolsets: tuple[MCPServer, ...] = ()
    """Servers that this machine starts."""
    remote_servers: tuple[RemoteMCP, ...] = ()
    """Servers with a URL; `execution` says who calls them."""
    labels_with_approval: frozenset[str] = frozenset()
    """Labels of the servers that have an approval of their own."""

    @property
    def labels(self) -> list[str]:
        """The labels of all servers."""
        return [server.label for server in (*self.toolsets, *self.remote_servers)]


def load_mcp_config(path: str | PathLike[str] | None = None) -> MCPConfig:
    """The servers in the file, by default the first of `FILES` in the working folder. Raises ConfigurationError.

    `Agent(mcp="mcp.json")` does the same in one step.
    """
    file = _find() if path is None else Path(path)
    try:
        return _loaded(file)
    except ConfigurationError as error:
        failure = error.with_traceback(None)  # the locals of the frames below hold the content of the file
    raise failure


def _loaded(file: Path) -> MCPConfig:
    try:
        text = file.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigurationError(f"cannot read {file}: {reason}") from None
    toolsets: list[MCPServer] = []
    remote: list[RemoteMCP] = []
    labels: dict[str, bool] = {}
    for entry in config_entries(decode_config(text, file), file):
        if entry.is_disabled:
            continue
        server = entry.server()
        if server.label in labels:
            raise ConfigurationError(f"{file}: two servers are called {server.label!r}: give one another label")
        labels[server.label] = entry.has_approval
        if isinstance(server, RemoteMCP):
            remote.append(server)
        else:
            toolsets.append(server)
    guarded = frozenset(label for label, has_approval in labels.items() if has_approval)
    return MCPConfig(tuple(toolsets), tuple(remote), guarded)


def _find() -> Path:
    for name in FILES:
        if (file := Path(name)).is_file():
            return file
    raise ConfigurationError(f"none of {', '.join(FILES)} found in {Path.cwd()}: give the path of the file")


def config_entries(content: dict[str, Any], file: Path) -> list[ServerEntry]:
    """The entries of all servers, unchecked. Raises ConfigurationError if the file is not made of them."""
    sections = [name for name in SECTIONS if name in content]
    if len(sections) > 1 or (not sections and REMOTE_SECTION not in content):
        raise ConfigurationError(
            f"{file} must have one of {' and '.join(map(repr, SECTIONS))} at the top level, or {REMOTE_SECTION!r}"
        )
    home = file.absolute().parent
    root = home.parent if home.name == ".vscode" else home
    named: Any = content[sections[0]] if sections else {}
    if not isinstance(named, dict):
        raise ConfigurationError(f"{file}: {sections[0]} must be an object that maps names to servers")
    remote: Any = content.get(REMOTE_SECTION, [])
    if not isinstance(remote, list):
        raise ConfigurationError(f"{file}: {REMOTE_SECTION} must be a list of servers")
    return [
        *(ServerEntry(file, root, label, entry) for label, entry in cast(dict[str, Any], named).items()),
        *(
            ServerEntry.of_remote(file, root, f"{REMOTE_SECTION}[{index}]", entry)
            for index, entry in enumerate(cast(list[Any], remote))
        ),
    ]


def decode_config(text: str, file: Path) -> dict[str, Any]:
    """The content of a file, without its comments. Raises ConfigurationError."""
    try:
        content: Any = json.loads(text)
    except (ValueError, RecursionError):
        try:
            content = json.loads(_strip_comments(text))
        except (ValueError, RecursionError) as error:
            where = (
                f": error at line {error.lineno}, column {error.colno}"
                if isinstance(error, json.JSONDecodeError)
                else ""
            )
            raise ConfigurationError(f"{file} is not valid JSON{where}") from None
    if not isinstance(content, dict):
        raise ConfigurationError(f"{file} must contain a JSON object")
    return cast(dict[str, Any], content)


def _strip_comments(text: str) -> str:
    """Removes the comments and trailing commas that some editors allow, keeping line numbers."""

    def blank(match: re.Match[str]) -> str:
        found = match[0]
        return found if found.startswith('"') else re.sub(r"[^\n]", " ", found)

    return _TRAILING_COMMA.sub(blank, _COMMENT.sub(blank, text))
