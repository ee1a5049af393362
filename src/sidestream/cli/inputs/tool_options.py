"""The tools of `-T`: a server-side tool with parameters, or a Python function.

web_search                              by its name
web_search:context_size=high            with fields of its config; commas separate them
file_search:stores=vs_1,vs_2            a list continues until the next name
web_search:location.city=Rome           a dot reaches into a nested config
'code_interpreter:{"memory_limit":"4g"}'  JSON
module:function                         a Python function
"""

import re
from collections.abc import Callable
from typing import Any

from sidestream import jsontext
from sidestream.cli.inputs.field_values import read_fields
from sidestream.cli.inputs.imports import NAME, import_object
from sidestream.errors import ConfigurationError
from sidestream.tools.server_side import ALIASES, TOOLS, ServerSideTool, tool_named
from sidestream.tools.tool import Tool

ClientTool = Tool | Callable[..., Any]

SHORT_FORMS: dict[str, dict[str, tuple[str, dict[str, str]]]] = {
    "mcp": {"approval": ("require_approval", {"ask": "always", "run": "never"})},
}
"""Tool → its parameters in the words of the command line: the field, and the values that have other words."""

EXAMPLES = {
    "custom": "custom:name=sql,description=…",
    "file_search": "file_search:stores=vs_1",
    "mcp": "mcp:label=docs,url=https://…,approval=ask",
}
"""Tool that its name alone does not make → what to write."""

_PARAMETER = re.compile(r"\s*([A-Za-z_][\w.-]*)=(.*)", re.DOTALL)


def read_tool(text: str) -> ServerSideTool | ClientTool:
    """The tool that an option names. Raises ConfigurationError, which suggests the nearest name."""
    name, colon, rest = text.partition(":")
    key = _key(name)
    if key in TOOLS and (colon or TOOLS[key].needs):
        return _configured(key, rest)
    if not colon:
        return tool_named(name)
    if NAME.fullmatch(text):
        found = import_object(text)
        if not callable(found):
            raise ConfigurationError(f"-T {text} is {type(found).__name__}, not a function")
        return found
    return tool_named(name)


def tool_names() -> list[str]:
    """The names of all server-side tools, for completion."""
    return sorted({*TOOLS, *ALIASES})


def _key(name: str) -> str:
    key = name.strip().lower().replace("-", "_")
    return ALIASES.get(key, key)


def _configured(key: str, text: str) -> ServerSideTool:
    kind = TOOLS[key]
    if not text and key in EXAMPLES:
        raise ConfigurationError(f"the tool {key} needs parameters: -T '{EXAMPLES[key]}'")
    fields = read_fields(kind, (_long_form(key, *pair) for pair in _parameters(text, key)), f"the tool {key}")
    try:
        return kind(**fields)
    except TypeError as error:  # A required field is missing.
        example = f": -T '{EXAMPLES[key]}'" if key in EXAMPLES else ""
        raise ConfigurationError(f"the tool {key}: {error}{example}") from None


def _parameters(text: str, key: str) -> list[tuple[str, str]]:
    if text.lstrip().startswith("{"):
        try:
            fields = jsontext.as_object(jsontext.loads(text))
        except (ValueError, RecursionError):
            raise ConfigurationError(f"the tool {key}: its parameters look like JSON, but are none") from None
        return [
            (name, value if isinstance(value, str) else jsontext.dumps(value).decode())
            for name, value in fields.items()
        ]
    pairs: list[tuple[str, str]] = []
    for piece in text.split(",") if text.strip() else ():
        found = _PARAMETER.fullmatch(piece)
        if found is not None:
            pairs.append((found[1], found[2].strip()))
        elif pairs:
            pairs[-1] = (pairs[-1][0], f"{pairs[-1][1]},{piece}")  # The next entry of a list, or a comma in a text.
        else:
            raise ConfigurationError(f"the tool {key}: write parameters as NAME=VALUE,NAME=VALUE, not {piece!r}")
    return pairs


def _long_form(key: str, name: str, value: str) -> tuple[str, str]:
    field, words = SHORT_FORMS.get(key, {}).get(name, (name, {}))
    return field, words.get(value, value)
