"""Files that the user stores by name: templates with `$variables`, and schemas."""

import difflib
import json
import re
import string
import sys
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import click
import msgspec
from msgspec import Struct

from sidestream.cli.display.screen import one_line, write
from sidestream.errors import ConfigurationError
from sidestream.files.folders import config_folder, write_private

_NAME = re.compile(r"[A-Za-z0-9][\w.-]*")


class NamedFiles(Struct, frozen=True):
    """The stored files of one kind."""

    kind: str
    """Singular noun, such as `template`."""
    suffix: str

    @property
    def folder(self) -> Path:
        """The files' folder, which may not exist."""
        return config_folder() / f"{self.kind}s"

    def names(self) -> list[str]:
        """Return the existing names."""
        return sorted(path.stem for path in self.folder.glob(f"*{self.suffix}"))

    def is_name(self, text: str) -> bool:
        """Return whether a name is valid."""
        return _NAME.fullmatch(text) is not None

    def path_of(self, name: str) -> Path:
        """Return the path of a named file. Raises ConfigurationError if the name is invalid."""
        if not self.is_name(name):
            raise ConfigurationError(
                f"{name!r} cannot be the name of a {self.kind}: use letters, digits, '.', '_' and '-'"
            )
        return self.folder / f"{name}{self.suffix}"

    def read(self, name: str) -> str:
        """Read a file by name or path. Raises ConfigurationError with the nearest name if it cannot be read."""
        file = Path(name).expanduser() if name.endswith(self.suffix) else self.path_of(name)
        try:
            return file.read_text("utf-8")
        except FileNotFoundError:
            near = difflib.get_close_matches(name, self.names(), n=1)
            hint = f"did you mean {near[0]}?" if near else f"available: {', '.join(self.names()) or 'none'}"
            raise ConfigurationError(f"no {self.kind} {name!r}; {hint}") from None
        except OSError as error:
            raise ConfigurationError(f"cannot read {file}: {error.strerror}") from None
        except UnicodeDecodeError:
            raise ConfigurationError(f"{file} is not UTF-8 text") from None

    def write(self, name: str, text: str) -> Path:
        """Write or replace a named file. Raises ConfigurationError if that fails."""
        file = self.path_of(name)
        try:
            write_private(file, text)
        except OSError as error:
            raise ConfigurationError(f"cannot write {file}: {error.strerror}") from None
        return file

    def remove(self, name: str) -> None:
        """Remove a named file. Raises ConfigurationError if it does not exist."""
        self.read(name)
        self.path_of(name).unlink()


def list_names(stored: NamedFiles, text_of: Callable[[str], str], *, if_none: str) -> None:
    """Print each name with the start of its text, or a hint if there are none."""
    names = stored.names()
    width = max(map(len, names), default=0)
    for name in names:
        write(sys.stdout, f"{name:<{width}}  {one_line(text_of(name), 100)}\n")
    if not names:
        click.echo(if_none, err=True)


STORED = NamedFiles("template", ".toml")
INPUT = "input"
"""Variable for the command's prompt and piped input."""
_ESCAPED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]|'$")
"""Characters that a TOML literal string cannot hold."""


class Template(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A stored prompt with its options."""

    prompt: str | None = None
    system: str | None = None
    model: str | None = None
    tools: list[str] = []
    functions: list[str] = []
    fragments: list[str] = []
    system_fragments: list[str] = []
    thinking: str | int | None = None
    schema: str | None = None
    options: dict[str, str | int | float | bool] = {}
    defaults: dict[str, str] = {}
    """Default values, by variable."""

    @property
    def variables(self) -> list[str]:
        """The variables in the system prompt and the prompt, in order."""
        found: dict[str, None] = {}
        for text in (self.system, self.prompt):
            found |= dict.fromkeys(string.Template(text or "").get_identifiers())
        return list(found)

    def filled(self, values: Mapping[str, str], given: str) -> "Template":
        """Replace the variables. The prompt `given` replaces `$input`, or is appended if there is no `$input`.

        Raises ConfigurationError if a variable has no value or a value has no variable.
        """
        names = self.variables
        known = {**self.defaults, **values, **({INPUT: given} if given else {})}
        missing = [name for name in names if name not in known and name != INPUT]
        if missing:
            raise ConfigurationError(f"the template needs {', '.join(f'-p {name} VALUE' for name in missing)}")
        unused = sorted(values.keys() - set(names))
        if unused:
            raise ConfigurationError(f"the template has no ${unused[0]}; it has: {', '.join(names) or 'no variables'}")
        if INPUT in names and INPUT not in known:
            raise ConfigurationError("the template needs a prompt or piped input")

        def fill(text: str | None) -> str | None:
            return None if text is None else string.Template(text).safe_substitute(known)

        prompt = fill(self.prompt)
        if INPUT not in names:
            prompt = "\n\n".join(filter(None, (prompt, given)))
        return msgspec.structs.replace(self, prompt=prompt, system=fill(self.system))


def load(name: str) -> Template:
    """Load a template by name or path. Raises ConfigurationError if it is missing or invalid."""
    text = STORED.read(name)
    try:
        return msgspec.convert(tomllib.loads(text), Template)
    except msgspec.ValidationError as error:
        known = ", ".join(Template.__struct_fields__)
        raise ConfigurationError(f"template {name}: {error}; known fields: {known}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"template {name} is not TOML: {error}") from None


def save(name: str, template: Template) -> Path:
    """Store or replace a template. Raises ConfigurationError if that fails."""
    return STORED.write(name, to_toml(template))


def to_toml(template: Template) -> str:
    """Encode a template as TOML."""
    fields: dict[str, Any] = msgspec.to_builtins(template)
    tables = {name: fields.pop(name) for name in ("options", "defaults") if name in fields}
    lines = [f"{name} = {_written(value)}" for name, value in fields.items() if value is not None]
    for name, table in tables.items():
        lines += ["", f"[{name}]", *(f"{_key(key)} = {_written(value)}" for key, value in table.items())]
    return "\n".join(lines) + "\n"


def _key(name: str) -> str:
    return name if re.fullmatch(r"[\w-]+", name, re.ASCII) else _written(name)


def _written(value: Any) -> str:
    is_long = isinstance(value, str) and "\n" in value
    if is_long and "'''" not in value and not _ESCAPED.search(value):  # The form that people write.
        return f"'''\n{value}'''"
    if isinstance(value, list):
        entries = cast("list[Any]", value)
        return f"[{', '.join(map(_written, entries))}]"
    # JSON strings, numbers and booleans are valid TOML, except for this character.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
