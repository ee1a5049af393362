"""Servers from the files that other programs use: `mcp.json`, `.mcp.json` and `.vscode/mcp.json`."""

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
    # What other programs keep there for themselves. Leaving out their automatic approvals only means asking more.
    {"alwaysAllow", "autoApprove", "description", "dev", "disabled", "gallery", "icon", "name", "timeout", "version"}
)
_VARIABLE = re.compile(r"\$\{([^}]*)\}")
_NAME = re.compile(r"[A-Za-z_]\w*")
_COMMENT = re.compile(r'"(?:\\.|[^"\\])*"|//[^\n]*|/\*.*?\*/', re.DOTALL)
_TRAILING_COMMA = re.compile(r'"(?:\\.|[^"\\])*"|,(?=\s*[}\]])', re.DOTALL)


def mcp_servers(path: str | PathLike[str] | None = None) -> list[MCPServer]:
    """The servers of the file, or of the first of the usual files in the working folder. Raises ConfigurationError."""
    file = _find() if path is None else Path(path)
    try:
        text = file.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigurationError(f"{file} cannot be read: {reason}") from None
    content = _decode(text, file)
    sections = [name for name in _SECTIONS if name in content]
    if len(sections) != 1:
        raise ConfigurationError(f"{file} must have one of {' and '.join(map(repr, _SECTIONS))} at its top")
    entries = content[sections[0]]
    if not isinstance(entries, dict):
        raise ConfigurationError(f"{file}: {sections[0]} must be an object of servers by name")
    home = file.absolute().parent
    root = home.parent if home.name == ".vscode" else home
    servers = [_Reader(file, root, label, entry) for label, entry in cast(dict[str, Any], entries).items()]
    return [reader.server() for reader in servers if not reader.is_disabled]


def _find() -> Path:
    for name in FILES:
        if (file := Path(name)).is_file():
            return file
    raise ConfigurationError(f"there is none of {', '.join(FILES)} in {Path.cwd()}: give the path of the file")


def _decode(text: str, file: Path) -> dict[str, Any]:
    try:
        content: Any = json.loads(text)
    except (ValueError, RecursionError):
        try:
            content = json.loads(_plain(text))
        except (ValueError, RecursionError) as error:
            where = f" at line {error.lineno}, column {error.colno}" if isinstance(error, json.JSONDecodeError) else ""
            raise ConfigurationError(f"{file} is no JSON: it goes wrong{where}") from None
    if not isinstance(content, dict):
        raise ConfigurationError(f"{file} must hold a JSON object")
    return cast(dict[str, Any], content)


def _plain(text: str) -> str:
    """JSON without the comments and trailing commas that some editors allow; line numbers stay."""

    def blank(match: re.Match[str]) -> str:
        found = match[0]
        return found if found.startswith('"') else re.sub(r"[^\n]", " ", found)

    return _TRAILING_COMMA.sub(blank, _COMMENT.sub(blank, text))


class _Reader(Struct, frozen=True):
    """One server's entry, read with errors that say where they are."""

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
            self._fail(unknown[0], f"is not known; there are: {', '.join(('type', *_FIELDS))}")
        if kind is not None and _TYPES[kind] not in fields:
            self._fail(_TYPES[kind], f"is missing, which the type {kind} needs")
        given = {name: _FIELDS[name](self, name, value) for name, value in fields.items()}
        if kind == "sse":
            given["transport"] = "sse"
        try:
            return MCPServer(self.label, **given)
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
            # Numbers and null are common slips in an environment; they are named, not guessed at.
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
            self._fail(field, f"has ${{{expression}}}, which is not known here: use ${{NAME}} or ${{NAME:-default}}")
        value = os.environ.get(name, "")
        if has_default:
            return value or default
        if name not in os.environ:
            self._fail(field, f"needs the environment variable {name}, which is not set; or write ${{{name}:-default}}")
        return value

    def _fail(self, field: str, what: str) -> NoReturn:
        where = f"{self.file}: server {self.label!r}" + (f": {field}" if field else "")
        raise ConfigurationError(f"{where} {what}" if field else f"{where}: {what}") from None


_FIELDS: Mapping[str, Callable[[_Reader, str, Any], Any]] = {
    "command": _Reader.text,
    "args": _Reader.texts,
    "env": _Reader.mapping,
    "cwd": _Reader.folder,
    "url": _Reader.text,
    "headers": _Reader.mapping,
}
