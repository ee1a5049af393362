"""Files that the user stores under a name: templates with `$variables`, and schemas."""

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
    """One kind of stored files."""

    kind: str
    """What one of them is called: `template`."""
    suffix: str

    @property
    def folder(self) -> Path:
        """Where they are, whether it exists or not."""
        return config_folder() / f"{self.kind}s"

    def names(self) -> list[str]:
        """The names that are taken."""
        return sorted(path.stem for path in self.folder.glob(f"*{self.suffix}"))

    def is_name(self, text: str) -> bool:
        """True if one may be stored under this name."""
        return _NAME.fullmatch(text) is not None

    def path_of(self, name: str) -> Path:
        """The file of a name. Raises ConfigurationError for a name that cannot be one."""
        if not self.is_name(name):
            raise ConfigurationError(
                f"{name!r} cannot be the name of a {self.kind}: use letters, digits, '.', '_' and '-'"
            )
        return self.folder / f"{name}{self.suffix}"

    def read(self, name: str) -> str:
        """The text of a stored file, or of one given by its path. Raises ConfigurationError, with the nearest name."""
        file = Path(name).expanduser() if name.endswith(self.suffix) else self.path_of(name)
        try:
            return file.read_text("utf-8")
        except FileNotFoundError:
            near = difflib.get_close_matches(name, self.names(), n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are: {', '.join(self.names()) or 'none'}"
            raise ConfigurationError(f"no {self.kind} {name!r}; {hint}") from None
        except OSError as error:
            raise ConfigurationError(f"cannot read {file}: {error.strerror}") from None
        except UnicodeDecodeError:
            raise ConfigurationError(f"{file} is not UTF-8 text") from None

    def write(self, name: str, text: str) -> Path:
        """Stores a text, in place of one of the same name. Raises ConfigurationError."""
        file = self.path_of(name)
        try:
            write_private(file, text)
        except OSError as error:
            raise ConfigurationError(f"cannot write {file}: {error.strerror}") from None
        return file

    def remove(self, name: str) -> None:
        """Removes a stored file. Raises ConfigurationError if there is none."""
        self.read(name)
        self.path_of(name).unlink()


def list_names(stored: NamedFiles, text_of: Callable[[str], str], *, if_none: str) -> None:
    """Prints the names, each with the beginning of a text; a hint if there are none."""
    names = stored.names()
    width = max(map(len, names), default=0)
    for name in names:
        write(sys.stdout, f"{name:<{width}}  {one_line(text_of(name), 100)}\n")
    if not names:
        click.echo(if_none, err=True)


STORED = NamedFiles("template", ".toml")
INPUT = "input"
"""The variable that stands for the prompt of the command, and for what is piped in."""
_ESCAPED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]|'$")
"""What a literal string cannot hold."""


class Template(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A stored prompt, and the options that belong to it."""

    prompt: str | None = None
    system: str | None = None
    model: str | None = None
    tools: list[str] = []
    functions: list[str] = []
    fragments: list[str] = []
    thinking: str | int | None = None
    schema: str | None = None
    options: dict[str, str | int | float | bool] = {}
    defaults: dict[str, str] = {}
    """Variable → its value where the command gives none."""

    @property
    def variables(self) -> list[str]:
        """The variables in its texts, in their order."""
        found: dict[str, None] = {}
        for text in (self.system, self.prompt):
            found |= dict.fromkeys(string.Template(text or "").get_identifiers())
        return list(found)

    def filled(self, values: Mapping[str, str], given: str) -> "Template":
        """The template with its variables replaced; the prompt `given` is `$input`, or follows the text.

        Raises ConfigurationError for a variable without a value, and for a value without a variable.
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
            raise ConfigurationError("the template needs a prompt, or text that is piped in")

        def fill(text: str | None) -> str | None:
            return None if text is None else string.Template(text).safe_substitute(known)

        prompt = fill(self.prompt)
        if INPUT not in names:
            prompt = "\n\n".join(filter(None, (prompt, given)))
        return msgspec.structs.replace(self, prompt=prompt, system=fill(self.system))


def load(name: str) -> Template:
    """A stored template, or that of a file. Raises ConfigurationError, which suggests the nearest name."""
    text = STORED.read(name)
    try:
        return msgspec.convert(tomllib.loads(text), Template)
    except msgspec.ValidationError as error:
        known = ", ".join(Template.__struct_fields__)
        raise ConfigurationError(f"template {name}: {error}. A template has: {known}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"template {name} is not TOML: {error}") from None


def save(name: str, template: Template) -> Path:
    """Stores a template, in place of one of the same name. Raises ConfigurationError."""
    return STORED.write(name, to_toml(template))


def to_toml(template: Template) -> str:
    """The text of a template's file."""
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
    if is_long and "'''" not in value and not _ESCAPED.search(value):  # As people write it.
        return f"'''\n{value}'''"
    if isinstance(value, list):
        entries = cast("list[Any]", value)
        return f"[{', '.join(map(_written, entries))}]"
    # JSON's strings, numbers and booleans are TOML's, but for this character.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
