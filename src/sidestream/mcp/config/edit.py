"""Editor for the servers in a configuration file. It preserves everything else in the file."""

import json
import os
import re
from pathlib import Path
from typing import Any, cast

from msgspec import Struct

from sidestream.errors import ConfigurationError
from sidestream.files.folders import write_private
from sidestream.jsontext import without_none
from sidestream.mcp.config.file import REMOTE_SECTION, SECTIONS, ServerEntry, config_entries, decode_config
from sidestream.text.redaction import REDACTED, redact, redact_url

_SECRET_MAPS = ("headers", "env")
_SECRETS = ("authorization",)
_URLS = ("url", "server_url")
_REFERENCE = re.compile(r"(Bearer )?\$\{[A-Za-z_:]\w*\}")
"""Value that names a variable, so it is not a secret."""


class ConfiguredServer(Struct, frozen=True, kw_only=True):
    """A server in the file, with its secrets hidden."""

    label: str
    is_enabled: bool
    entry: dict[str, Any]
    """Fields. Null means a value that is set but hidden."""
    problem: str | None = None
    """Reason for which it cannot be used."""


class ConfigEditor:
    """An editor for the file at a path, which need not exist. Each call reads it."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def servers(self) -> list[ConfiguredServer]:
        """Return all servers, including disabled and broken ones.

        Raises ConfigurationError if the file cannot be read.
        """
        content = self._content()
        return [_shown(entry) for entry in config_entries(content, self.path)] if content else []

    def entry(self, label: str) -> ServerEntry | None:
        """Return the entry of a server, or None."""
        content = self._content()
        entries = config_entries(content, self.path) if content else []
        return next((entry for entry in entries if entry.label == label), None)

    def patch(self, label: str, changes: dict[str, Any]) -> None:
        """Merge changes into a server's entry. Null removes a field, and a new label adds a server.

        Raises ConfigurationError, without changing anything, if the server could not be used afterwards.
        """
        if REDACTED in json.dumps(changes):
            raise ConfigurationError(f"{REDACTED} is a placeholder for a hidden value: omit the field to keep it")
        content = self._content(for_writing=True)
        place, entries = _place(content, label)
        old = self.entry(label)
        entries[place] = merged = _merged(dict(cast(dict[str, Any], old.entry)) if old is not None else {}, changes)
        is_wire_form = old is not None and old.is_wire_form
        changed = ServerEntry(self.path, self.path.absolute().parent, label, merged, is_wire_form)
        if not changed.is_disabled:
            changed.server()
        self._write(content)

    def remove(self, label: str) -> bool:
        """Remove a server. Return False if there is none.

        Raises ConfigurationError if the file cannot be read or written.
        """
        if self.entry(label) is None:
            return False
        content = self._content(for_writing=True)
        place, entries = _place(content, label)
        del entries[place]
        self._write(content)
        return True

    def _content(self, *, for_writing: bool = False) -> dict[str, Any]:
        try:
            text = self.path.read_text("utf-8-sig")
        except FileNotFoundError:
            return {}
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise ConfigurationError(f"cannot read {self.path}: {reason}") from None
        content = decode_config(text, self.path)
        if for_writing:
            try:
                json.loads(text)
            except ValueError:
                raise ConfigurationError(f"{self.path} has comments, which would be lost: edit it by hand") from None
        return content

    def _write(self, content: dict[str, Any]) -> None:
        file = self.path.resolve()
        try:
            text = json.dumps(content, indent=2, ensure_ascii=False)
            text.encode()
        except UnicodeEncodeError:
            raise ConfigurationError(f"cannot write {self.path}: the new content has a lone surrogate") from None
        try:
            mode = file.stat().st_mode & 0o777 if file.exists() else 0o600
            write_private(file, f"{text}\n")
            file.chmod(mode)
        except OSError as error:
            raise ConfigurationError(f"cannot write {self.path}: {error.strerror}") from None


def _place(content: dict[str, Any], label: str) -> tuple[Any, Any]:
    """Return the key or index of a server's entry, and its container.

    A new server gets a place in the first section.
    """
    remote: list[Any] = content.get(REMOTE_SECTION, [])
    for index, entry in enumerate(remote):
        if isinstance(entry, dict) and cast(dict[str, Any], entry).get("server_label") == label:
            return index, remote
    section = next((name for name in SECTIONS if name in content), SECTIONS[0])
    return label, content.setdefault(section, {})


def _merged(entry: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Merge changes into an entry (RFC 7396, for the fields and the maps of secrets)."""
    for name, value in changes.items():
        old = entry.get(name)
        if name in _SECRET_MAPS and isinstance(value, dict) and isinstance(old, dict):
            value = {**cast(dict[str, Any], old), **cast(dict[str, Any], value)}
        if isinstance(value, dict):
            value = without_none(cast(dict[str, Any], value))
        entry[name] = value
    return without_none(entry)


def _shown(entry: ServerEntry) -> ConfiguredServer:
    problem = None
    if not isinstance(cast(object, entry.entry), dict):
        return ConfiguredServer(label=entry.label, is_enabled=True, entry={}, problem="it must be an object")
    if not entry.is_disabled:
        try:
            entry.server()
        except ConfigurationError as error:
            problem = redact(str(error))
    shown = {name: _shown_value(name, value) for name, value in cast(dict[str, Any], entry.entry).items()}
    return ConfiguredServer(label=entry.label, is_enabled=not entry.is_disabled, entry=shown, problem=problem)


def _shown_value(name: str, value: Any) -> Any:
    if name in _SECRET_MAPS and isinstance(value, dict):
        return {key: _unless_secret(inner) for key, inner in cast(dict[str, Any], value).items()}
    if name in _SECRETS:
        return _unless_secret(value)
    if name in _URLS:
        return redact_url(str(value)) if "?" in str(value) or "@" in str(value) else redact(str(value))
    if isinstance(value, list):
        return [redact(inner) if isinstance(inner, str) else inner for inner in cast(list[Any], value)]
    return redact(value) if isinstance(value, str) else value


def _unless_secret(value: Any) -> str | None:
    return value if isinstance(value, str) and _REFERENCE.fullmatch(value) else None
