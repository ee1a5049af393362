"""One server in a configuration file, by tables of its fields. Errors name the file, the server and the field."""

import os
import re
from collections.abc import Callable, Mapping
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
"""Started here, reached by its URL from here or the provider, or an entry with the fields of OpenAI's wire."""


class ServerEntry(Struct, frozen=True):
    """The entry of one server."""

    file: Path
    root: Path
    label: str
    entry: Any
    is_wire_form: bool = False
    """True for an entry whose fields have the names of OpenAI's wire, with its label among them."""

    @classmethod
    def of_remote(cls, file: Path, root: Path, place: str, entry: Any) -> Self:
        """An entry in a list of remote servers; until its label is known, errors name its place."""
        label = cast(dict[str, Any], entry).get("server_label") if isinstance(entry, dict) else None
        return cls(file, root, label if isinstance(label, str) else place, entry, True)

    @property
    def is_disabled(self) -> bool:
        """True if the file says that the server is not to be used."""
        return isinstance(cast(object, self.entry), dict) and self._fields().get("disabled") is True

    @property
    def has_approval(self) -> bool:
        """True if the entry has an approval of its own."""
        return not self._fields().keys().isdisjoint(_ADVICE)

    def server(self) -> MCPServer | RemoteMCP:
        """The server. Raises ConfigurationError."""
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
            # Other programs call such a server themselves; a provider could not even reach one in a private network.
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
        """A string with its variables filled in."""
        if not isinstance(value, str):
            self._fail(field, "must be a string")
        return _VARIABLE.sub(lambda match: self._variable(field, match[1]), value)

    def url(self, field: str, value: Any) -> str:
        """The address of a server."""
        text = self.text(field, value)
        try:
            urlsplit(text)
        except ValueError:
            self._fail(field, "is not a URL")
        return text

    def texts(self, field: str, value: Any) -> list[str]:
        """A list of such strings."""
        if not isinstance(value, list):
            self._fail(field, "must be a list of strings")
        return [self.text(f"{field}[{index}]", entry) for index, entry in enumerate(cast(list[Any], value))]

    def mapping(self, field: str, value: Any) -> dict[str, str]:
        """An object of such strings."""
        if not isinstance(value, dict):
            self._fail(field, "must be an object of strings")
        return {
            # Numbers and null are common mistakes in an environment; they are errors, not converted.
            key: self.text(f"{field}.{key}", entry)
            for key, entry in cast(dict[str, Any], value).items()
        }

    def folder(self, field: str, value: Any) -> str:
        """A folder, relative to that of the file."""
        return str(self.root / Path(self.text(field, value)).expanduser())

    def flag(self, field: str, value: Any) -> bool:
        """True or false."""
        if not isinstance(value, bool):
            self._fail(field, "must be true or false")
        return value

    def execution(self, field: str, value: Any) -> str:
        """Who calls a server."""
        return self._word(field, value, ("auto", "provider", "here"))

    def tools(self, field: str, value: Any) -> list[str] | ToolFilter:
        """Tools by their names, or by the filter of the wire."""
        if not isinstance(value, dict):
            return self.texts(field, value)
        given = self._object(field, value, "tool_names", "read_only")
        names = self.texts(f"{field}.tool_names", given.get("tool_names", []))
        read_only = self.flag(f"{field}.read_only", given["read_only"]) if "read_only" in given else None
        return ToolFilter(names=names, read_only=read_only)

    def approval(self, field: str, value: Any) -> str | dict[str, str]:
        """The policy of a server with a command, or one for each of its tools."""
        words = get_args(Verdict)
        if not isinstance(value, dict):
            return self._word(field, value, words, " or an object that maps tools to these")
        tools = cast(dict[str, Any], value)
        return {tool: self._word(f"{field}.{tool}", policy, words) for tool, policy in tools.items()}

    def interruption(self, field: str, value: Any) -> str | dict[str, str]:
        """What becomes of interrupted calls, of all tools or by name."""
        words = get_args(InterruptionPolicy)
        if not isinstance(value, dict):
            return self._word(field, value, (*words, "hints"), " or an object that maps tools to the first three")
        tools = cast(dict[str, Any], value)
        return {tool: self._word(f"{field}.{tool}", policy, words) for tool, policy in tools.items()}

    def required_approval(self, field: str, value: Any) -> str | MCPApproval:
        """The policy of a remote server, in the words of the wire."""
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
    """How a field is read, and what it is called in code, where that is another name."""

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
