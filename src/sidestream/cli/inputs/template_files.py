"""Stored prompts: TOML files in the configuration folder, with `$variables` in their texts."""

import json
import re
import string
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import msgspec
from msgspec import Struct

from sidestream.cli.inputs.named_files import NamedFiles
from sidestream.errors import ConfigurationError

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
