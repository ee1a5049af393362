"""Accepted tool definitions, stored in a file, so that a server's tools change only with the user's consent.

The definitions of a first list are accepted as they are. One that differs later is pending until the user accepts it.
"""

import os
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path
from typing import Any, Self

from msgspec import Struct, convert, field, to_builtins

from sidestream import jsontext
from sidestream.files.folders import config_folder, write_private
from sidestream.logs import get_logger
from sidestream.mcp.client.tool_definitions import ToolDefinition, digests_of, pin_of

FOLDER = "mcp-definitions"

_log = get_logger(__name__)

Aspects = dict[str, Any]
"""Aspect of a definition, e.g. `description` → the server's value."""


class AspectChange(Struct, frozen=True):
    """An aspect of a definition that differs from the accepted one."""

    name: str
    old: Any
    new: Any


class ToolChange(Struct, frozen=True):
    """A tool whose definition differs from the accepted one."""

    tool: str
    pin: str
    """Digest of the new definition. Accepting needs exactly this digest."""
    aspects: tuple[AspectChange, ...]


class _Server(Struct, omit_defaults=True):
    accepted: dict[str, Aspects] = field(default_factory=dict[str, Aspects])
    pending: dict[str, Aspects] = field(default_factory=dict[str, Aspects])


class AcceptedDefinitions:
    """The accepted and pending definitions of one configuration file's servers. Each call reads the file."""

    def __init__(self, file: Path) -> None:
        self._file = file

    @classmethod
    def of_config(cls, config: str | os.PathLike[str]) -> Self:
        """Open the definitions for an `mcp.json`, stored in the user's configuration folder."""
        name = sha256(str(Path(config).resolve()).encode()).hexdigest()[:32]
        return cls(config_folder() / FOLDER / f"{name}.json")

    def review(self, label: str, listed: Iterable[ToolDefinition]) -> list[ToolChange]:
        """Compare a list with the accepted definitions and return the differences.

        Tools that were not listed before are accepted.
        """
        servers = self._read()
        before = to_builtins(servers.get(label))
        server = servers.setdefault(label, _Server())
        server.pending = {}
        for definition in listed:
            known = server.accepted.setdefault(definition.raw_name, definition.aspects)
            if digests_of(known) != definition.digests:
                server.pending[definition.raw_name] = definition.aspects
        if to_builtins(server) != before:
            self._write(servers)
        return _changes(server)

    def changes(self, label: str) -> list[ToolChange]:
        """Return the differences found when the tools were listed last."""
        server = self._read().get(label)
        return [] if server is None else _changes(server)

    def accept(self, label: str, tool: str, pin: str) -> bool:
        """Accept a pending definition. Return False if none has this digest."""
        servers = self._read()
        server = servers.get(label, _Server())
        aspects = server.pending.get(tool)
        if aspects is None or pin_of(aspects) != pin:
            return False
        server.accepted[tool] = server.pending.pop(tool)
        self._write(servers)
        return True

    def forget(self, label: str) -> None:
        """Forget a removed server, so that its next list is accepted as a first one."""
        servers = self._read()
        if servers.pop(label, None) is not None:
            self._write(servers)

    def _read(self) -> dict[str, _Server]:
        try:
            return convert(jsontext.loads(self._file.read_bytes()), dict[str, _Server])
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:  # msgspec's errors are ValueErrors
            _log.warning("%s: could not be read, so all tools are accepted again: %s", self._file, error)
            return {}

    def _write(self, servers: dict[str, _Server]) -> None:
        try:
            write_private(self._file, jsontext.dumps(servers).decode())
        except OSError as error:
            _log.warning("could not store accepted MCP tool definitions: %s", error)


def _changes(server: _Server) -> list[ToolChange]:
    return [
        ToolChange(
            tool,
            pin_of(new),
            tuple(
                AspectChange(name, server.accepted.get(tool, {}).get(name), value)
                for name, value in new.items()
                if digests_of({name: server.accepted.get(tool, {}).get(name)}) != digests_of({name: value})
            ),
        )
        for tool, new in server.pending.items()
    ]
