"""Reads servers from the config files of other programs: `mcp.json`, `.mcp.json` and `.vscode/mcp.json`."""

import json
import os
import re
from collections.abc import Callable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any, NoReturn, cast

from msgspec import Struct

from sidestream.errors import ConfigurationError
from sidestream.mcp.server import MCPServer

FILES = ("mcp.json", ".mcp.json", ".vscode/mcp.json")
_SECTIONS = ("mcpServers", "servers")
_TYPES = {"stdio": "command", "http": "url", "streamable-http": "url", "streamableHttp": "url", "sse": "url"}
_IGNORED = frozenset(
    # Settings of other programs. Ignoring their automatic approvals only means more prompts.
    {"alwaysAllow", "autoApprove", "description", "dev", "disabled", "gallery", "icon", "name", "timeout", "version"}
)
_VARIABLE = re.compile(r"\$\{([^}]*)\}")
_NAME = re.compile(r"[A-Za-z_]\w*")
_COMMENT = re.compile(r'"(?:\\.|[^"\\])*"|//[^\n]*|/\*.*?\*/', re.DOTALL)
_TRAILING_COMMA = re.compile(r'"(?:\\.|[^"\\])*"|,(?=\s*[}\]])', re.DOTALL)


def mcp_servers(path: str | PathLike[str] | None = None) -> list[MCPServer]:
    """The servers in the file, by default the first of `FILES` in the working folder. Raises ConfigurationError."""
    file = _find() if path is None else Path(path)
    try:
        text = file.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigurationError(f"cannot read {file}: {reason}") from None
    content = _decode(text, file)
    sections = [name for name in _SECTIONS if name in content]
    if len(sections) != 1:
        raise ConfigurationError(
            f"{file} must have exactly one of {' and '.join(map(repr, _SECTIONS))} at the top level"
        )
    entries = content[sections[0]]
    if not isinstance(entries, dict):
        raise ConfigurationError(f"{file}: {sections[0]} must be an object that maps names to servers")
    home = file.absolute().parent
    root = home.parent if home.name == ".vscode" else home
    parsed = [_ServerEntry(file, root, label, entry) for label, entry in cast(dict[str, Any], entries).items()]
    return [entry.server() for entry in parsed if not entry.is_disabled]


def _find() -> Path:
    for name in FILES:
        if (file := Path(name)).is_file():
            return file
    raise ConfigurationError(f"none of {', '.join(FILES)} found in {Path.cwd()}: give the path of the file")


def _decode(text: str, file: Path) -> dict[str, Any]:
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


class _ServerEntry(Struct, frozen=True):
    """The entry of one server. Errors name the file, the server and the field."""

    file: Path
    root: Path
    label: str
    entry: Any

    @property
    def is_disabled(self) -> bool:
        return isinstance(cast(object, self.entry), dict) and self._fields().get("disabled") is True

    def server(self) -> MCPServer:
        if not isinstance(cast(object, self.entry), dict):
            self._fail("", "must be an object")
        fields = {key: value for key, value in self._fields().items() if key not in _IGNORED}
        kind = fields.pop("type", None)
        if kind is not None and kind not in _TYPES:
            self._fail("type", f"must be one of {', '.join(_TYPES)}")
        if unknown := sorted(fields.keys() - _FIELDS.keys()):
            self._fail(unknown[0], f"is an unknown field; known fields: {', '.join(('type', *_FIELDS))}")
        if kind is not None and _TYPES[kind] not in fields:
            self._fail(_TYPES[kind], f"is missing: servers of type {kind} need it")
        arguments = {name: _FIELDS[name](self, name, value) for name, value in fields.items()}
        if kind == "sse":
            arguments["transport"] = "sse"
        try:
            return MCPServer(self.label, **arguments)
        except ConfigurationError as error:
            self._fail("", str(error))

    def _fields(self) -> dict[str, Any]:
        return cast(dict[str, Any], self.entry)

    def text(self, field: str, value: Any) -> str:
        if not isinstance(value, str):
            self._fail(field, "must be a string")
        return _VARIABLE.sub(lambda match: self._variable(field, match[1]), value)

    def texts(self, field: str, value: Any) -> list[str]:
        if not isinstance(value, list):
            self._fail(field, "must be a list of strings")
        return [self.text(f"{field}[{index}]", entry) for index, entry in enumerate(cast(list[Any], value))]

    def mapping(self, field: str, value: Any) -> dict[str, str]:
        if not isinstance(value, dict):
            self._fail(field, "must be an object of strings")
        return {
            # Numbers and null are common mistakes in an environment; they are errors, not converted.
            key: self.text(f"{field}.{key}", entry)
            for key, entry in cast(dict[str, Any], value).items()
        }

    def folder(self, field: str, value: Any) -> str:
        return str(self.root / Path(self.text(field, value)).expanduser())

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


_FIELDS: Mapping[str, Callable[[_ServerEntry, str, Any], Any]] = {
    "command": _ServerEntry.text,
    "args": _ServerEntry.texts,
    "env": _ServerEntry.mapping,
    "cwd": _ServerEntry.folder,
    "url": _ServerEntry.text,
    "headers": _ServerEntry.mapping,
}
