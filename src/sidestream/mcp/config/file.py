"""Servers in `mcp.json`, `.mcp.json` and `.vscode/mcp.json`. Errors name the file, the server and the field."""

import json
import os
import re
from collections.abc import Callable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any, Literal, NoReturn, Self, cast, get_args
from urllib.parse import urlsplit

from msgspec import Struct

from sidestream.errors import ConfigurationError
from sidestream.mcp.client.server import MCPServer
from sidestream.tools.approvals import REQUIRED_APPROVAL, Verdict
from sidestream.tools.interruption import InterruptionPolicy
from sidestream.tools.server_side import MCPApproval, RemoteMCP, ToolFilter

_TYPES = {"stdio": "command", "http": "url", "streamable-http": "url", "streamableHttp": "url", "sse": "url"}
_IGNORED = frozenset(
    # Settings of other programs. Ignoring their automatic approvals only means more prompts.
    {"alwaysAllow", "autoApprove", "description", "dev", "disabled", "gallery", "icon", "name", "timeout", "version"}
)
_ADVICE = {
    "approval": "for a server with a URL write require_approval: always or never",
    "require_approval": "for a server with a command write approval: ask, run or deny",
}
_VARIABLE = re.compile(r"\$\{([^}]*)\}")
_NAME = re.compile(r"[A-Za-z_]\w*")

Kind = Literal["command", "url", "remote"]
"""Kind of entry: started locally, reached by URL from here or the provider, or with the fields of OpenAI's API."""


class ServerEntry(Struct, frozen=True):
    """The entry of one server."""

    file: Path
    root: Path
    label: str
    entry: Any
    is_wire_form: bool = False
    """Whether the fields have the names of OpenAI's API, including the label."""

    @classmethod
    def of_remote(cls, file: Path, root: Path, place: str, entry: Any) -> Self:
        """Create an entry from a list of remote servers. Errors name its position until its label is known."""
        label = cast(dict[str, Any], entry).get("server_label") if isinstance(entry, dict) else None
        return cls(file, root, label if isinstance(label, str) else place, entry, True)

    @property
    def is_disabled(self) -> bool:
        """Whether the file disables the server."""
        return isinstance(cast(object, self.entry), dict) and self._fields().get("disabled") is True

    @property
    def has_approval(self) -> bool:
        """Whether the entry sets an approval policy."""
        return not self._fields().keys().isdisjoint(_ADVICE)

    def server(self) -> MCPServer | RemoteMCP:
        """Create the server.

        Raises ConfigurationError if the entry is invalid.
        """
        if not isinstance(cast(object, self.entry), dict):
            self._fail("", "must be an object")
        fields = {key: value for key, value in self._fields().items() if key not in _IGNORED}
        declared = fields.pop("type", None)
        kind = self._kind(fields, declared)
        known = _FIELDS[kind]
        if unknown := sorted(fields.keys() - known.keys()):
            advice = _ADVICE.get(unknown[0]) or f"known fields: {', '.join(('type', *known))}"
            self._fail(unknown[0], f"is an unknown field; {advice}")
        values: dict[str, Any] = {
            known[name].target or name: known[name].read(self, name, value) for name, value in fields.items()
        }
        if declared == "sse":
            values["transport"] = "sse"
        try:
            if kind == "command":
                return MCPServer(self.label, **values)
            # Other programs call such a server themselves, and a provider could not reach one in a private network.
            defaults: dict[str, Any] = {"label": self.label, "execution": "here"} if kind == "url" else {}
            return RemoteMCP(**defaults | values)
        except ConfigurationError as error:
            self._fail("", str(error))

    def _kind(self, fields: Mapping[str, Any], declared: Any) -> Kind:
        if self.is_wire_form:
            if declared not in (None, "mcp"):
                self._fail("type", "must be mcp")
            if "server_label" not in fields:
                self._fail("server_label", "is missing")
            return "remote"
        if declared is not None and (not isinstance(declared, str) or declared not in _TYPES):
            self._fail("type", f"must be one of {', '.join(_TYPES)}")
        if declared is not None and _TYPES[declared] not in fields:
            self._fail(_TYPES[declared], f"is missing: servers of type {declared} need it")
        if ("command" in fields) == ("url" in fields):
            self._fail("", "it needs either command or url")
        return "command" if "command" in fields else "url"

    def _fields(self) -> dict[str, Any]:
        return cast(dict[str, Any], self.entry)

    def text(self, field: str, value: Any) -> str:
        """Read a string and fill in its variables."""
        if not isinstance(value, str):
            self._fail(field, "must be a string")
        return _VARIABLE.sub(lambda match: self._variable(field, match[1]), value)

    def url(self, field: str, value: Any) -> str:
        """Read the URL of a server."""
        text = self.text(field, value)
        try:
            urlsplit(text)
        except ValueError:
            self._fail(field, "is not a URL")
        return text

    def texts(self, field: str, value: Any) -> list[str]:
        """Read a list of strings and fill in their variables."""
        if not isinstance(value, list):
            self._fail(field, "must be a list of strings")
        return [self.text(f"{field}[{index}]", entry) for index, entry in enumerate(cast(list[Any], value))]

    def mapping(self, field: str, value: Any) -> dict[str, str]:
        """Read an object of strings and fill in their variables."""
        if not isinstance(value, dict):
            self._fail(field, "must be an object of strings")
        return {
            # Numbers and null are common mistakes in an environment, so they are rejected rather than converted.
            key: self.text(f"{field}.{key}", entry)
            for key, entry in cast(dict[str, Any], value).items()
        }

    def folder(self, field: str, value: Any) -> str:
        """Read a folder, relative to the file's."""
        return str(self.root / Path(self.text(field, value)).expanduser())

    def flag(self, field: str, value: Any) -> bool:
        """Read a boolean."""
        if not isinstance(value, bool):
            self._fail(field, "must be true or false")
        return value

    def execution(self, field: str, value: Any) -> str:
        """Read the setting for who calls a server."""
        return self._word(field, value, ("auto", "provider", "here"))

    def tools(self, field: str, value: Any) -> list[str] | ToolFilter:
        """Read a selection of tools: their names, or the API's filter."""
        if not isinstance(value, dict):
            return self.texts(field, value)
        given = self._object(field, value, "tool_names", "read_only")
        names = self.texts(f"{field}.tool_names", given.get("tool_names", []))
        read_only = self.flag(f"{field}.read_only", given["read_only"]) if "read_only" in given else None
        return ToolFilter(names=names, read_only=read_only)

    def approval(self, field: str, value: Any) -> str | dict[str, str]:
        """Read the policy of a server with a command, or one for each of its tools."""
        words = get_args(Verdict)
        if not isinstance(value, dict):
            return self._word(field, value, words, " or an object that maps tools to these")
        tools = cast(dict[str, Any], value)
        return {tool: self._word(f"{field}.{tool}", policy, words) for tool, policy in tools.items()}

    def interruption(self, field: str, value: Any) -> str | dict[str, str]:
        """Read the policy for interrupted calls, for all tools or by name."""
        words = get_args(InterruptionPolicy)
        if not isinstance(value, dict):
            return self._word(field, value, (*words, "hints"), " or an object that maps tools to the first three")
        tools = cast(dict[str, Any], value)
        return {tool: self._word(f"{field}.{tool}", policy, words) for tool, policy in tools.items()}

    def required_approval(self, field: str, value: Any) -> str | MCPApproval:
        """Read the policy of a remote server, which uses the API's own values."""
        words = tuple(REQUIRED_APPROVAL)
        if not isinstance(value, dict):
            return self._word(field, value, words, " or an object with lists of tools under these")
        given = self._object(field, value, *words)
        return MCPApproval(**{side: self.tools(f"{field}.{side}", tools) for side, tools in given.items()})

    def _word(self, field: str, value: Any, words: tuple[str, ...], more: str = "") -> str:
        if value not in words:
            self._fail(field, f"must be one of {', '.join(words)}{more}")
        return value

    def _object(self, field: str, value: Any, *known: str) -> dict[str, Any]:
        given = cast(dict[str, Any], value)
        if unknown := sorted(given.keys() - set(known)):
            self._fail(f"{field}.{unknown[0]}", f"is an unknown field; known fields: {', '.join(known)}")
        return given

    def _variable(self, field: str, expression: str) -> str:
        name, has_default, default = expression.partition(":-")
        if expression == "workspaceFolder":
            return str(self.root)
        name = name.removeprefix("env:")
        if not _NAME.fullmatch(name):
            self._fail(
                field, f"contains ${{{expression}}}, which is not supported: use ${{NAME}} or ${{NAME:-default}}"
            )
        value = os.environ.get(name, "")
        if has_default:
            return value or default
        if name not in os.environ:
            self._fail(field, f"needs the environment variable {name}: set it, or write ${{{name}:-default}}")
        return value

    def _fail(self, field: str, problem: str) -> NoReturn:
        where = f"{self.file}: server {self.label!r}" + (f": {field}" if field else "")
        raise ConfigurationError(f"{where} {problem}" if field else f"{where}: {problem}") from None


class _Field(Struct, frozen=True):
    """Reader of a field, and its name in code if that differs."""

    read: Callable[[ServerEntry, str, Any], Any]
    target: str | None = None


_FIELDS: Mapping[Kind, Mapping[str, _Field]] = {
    "command": {
        "command": _Field(ServerEntry.text),
        "args": _Field(ServerEntry.texts),
        "env": _Field(ServerEntry.mapping),
        "cwd": _Field(ServerEntry.folder),
        "allowed_tools": _Field(ServerEntry.tools),
        "approval": _Field(ServerEntry.approval),
        "on_interruption": _Field(ServerEntry.interruption),
    },
    "url": {
        "url": _Field(ServerEntry.url),
        "headers": _Field(ServerEntry.mapping),
        "authorization": _Field(ServerEntry.text),
        "allowed_tools": _Field(ServerEntry.tools),
        "require_approval": _Field(ServerEntry.required_approval),
        "on_interruption": _Field(ServerEntry.interruption),
        "execution": _Field(ServerEntry.execution),
    },
    "remote": {
        "server_label": _Field(ServerEntry.text, "label"),
        "server_url": _Field(ServerEntry.url, "url"),
        "connector_id": _Field(ServerEntry.text, "connector"),
        "tunnel_id": _Field(ServerEntry.text, "tunnel"),
        "server_description": _Field(ServerEntry.text, "description"),
        "headers": _Field(ServerEntry.mapping),
        "authorization": _Field(ServerEntry.text),
        "allowed_tools": _Field(ServerEntry.tools),
        "require_approval": _Field(ServerEntry.required_approval),
        "defer_loading": _Field(ServerEntry.flag),
        "on_interruption": _Field(ServerEntry.interruption),
        "execution": _Field(ServerEntry.execution),
    },
}


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
    """Servers with a URL. `execution` says who calls them."""
    labels_with_approval: frozenset[str] = frozenset()
    """Labels of the servers that set an approval policy."""

    @property
    def labels(self) -> list[str]:
        """Labels of all servers."""
        return [server.label for server in (*self.toolsets, *self.remote_servers)]


def load_mcp_config(
    path: str | PathLike[str] | None = None, *, on_invalid: Callable[[ConfigurationError], None] | None = None
) -> MCPConfig:
    """Load the servers in the file, by default the first of `FILES` in the working folder.

    `Agent(mcp="mcp.json")` does the same in one step. Raises ConfigurationError if the file is missing or invalid. With
    `on_invalid`, a server whose entry is invalid is left out, and the function is called with the reason.
    """
    file = _find() if path is None else Path(path)
    try:
        return _loaded(file, on_invalid)
    except ConfigurationError as error:
        failure = error.with_traceback(None)  # the locals of its frames hold the file's content
    raise failure


def _loaded(file: Path, on_invalid: Callable[[ConfigurationError], None] | None) -> MCPConfig:
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
        try:
            server = entry.server()
        except ConfigurationError as error:
            if on_invalid is None:
                raise
            on_invalid(error)
            continue
        if server.label in labels:
            raise ConfigurationError(f"{file}: duplicate server label {server.label!r}: rename one")
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
    raise ConfigurationError(f"none of {', '.join(FILES)} found in {Path.cwd()}: pass the file's path")


def config_entries(content: dict[str, Any], file: Path) -> list[ServerEntry]:
    """Return the entries of all servers, unchecked.

    Raises ConfigurationError if the file has another structure.
    """
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
    """Parse the file's JSON, ignoring comments.

    Raises ConfigurationError if it is invalid.
    """
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
    """Remove the comments and trailing commas that some editors allow, keeping line numbers."""

    def blank(match: re.Match[str]) -> str:
        found = match[0]
        return found if found.startswith('"') else re.sub(r"[^\n]", " ", found)

    return _TRAILING_COMMA.sub(blank, _COMMENT.sub(blank, text))
