"""From what a server lists to tools: names that fit, text that shows, caps, and a digest of each tool."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Any, cast

import msgspec
from msgspec import Struct

from sidestream.mcp.display import one_line, visible

if TYPE_CHECKING:
    from mcp_types import Tool as ListedTool

MAX_TOOLS = 512
"""Tools of one server; the rest are left out. A model copes with far fewer."""
MAX_PAGES = 64
"""Pages of one listing. Guards against a list without end."""
MAX_SCHEMA_BYTES = 256 * 1024
"""One tool's schemas as JSON. A tool above it is left out."""
MAX_DESCRIPTION_CHARACTERS = 16 * 1024
"""One tool's description. A longer one is cut."""
MAX_WARNINGS = 20
_MAX_CHECKED_BYTES = 16 * 1024

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_FOREIGN = re.compile(r"[^a-zA-Z0-9_-]+")
_PROSE = ("description", "title", "$comment")
_COSTLY = ("$ref", "$dynamicRef", "$recursiveRef", "pattern", "patternProperties")


class ToolDefinition(Struct, frozen=True, kw_only=True):
    """A tool as the server defines it, made fit for a model."""

    raw_name: str
    """The name that the server knows it by."""
    name: str
    description: str
    parameters: dict[str, Any]
    is_read_only: bool
    is_sensitive: bool
    """The server says that it destroys or reaches out, and not that it only reads."""
    is_open_world: bool
    """The server says that it reaches out: what it brings may be written by strangers."""
    digests: dict[str, str]
    """What it is made of → a digest of each."""
    is_checked: bool
    """Whether results may be checked against its output schema: a schema from a stranger can be made to cost hours."""

    @property
    def pin(self) -> str:
        """One digest of all that the server says the tool is."""
        return _digest(self.digests)

    def changes(self, before: Mapping[str, str]) -> list[str]:
        """What is not as it was."""
        return [what for what, digest in self.digests.items() if before.get(what) != digest]


def read_listing(listed: Iterable["ListedTool"], label: str) -> tuple[list[ToolDefinition], list[str]]:
    """The usable tools, and what is to be said about the others."""
    warnings: list[str] = []
    unique: dict[str, ListedTool] = {}
    for tool in listed:
        if tool.name in unique:
            warnings.append(f"{label} lists two tools called {one_line(tool.name)!r}; the first is used")
        elif (problem := _problem(tool)) is not None:
            warnings.append(f"the tool {one_line(tool.name)!r} of {label} is left out: {problem}")
        elif len(unique) == MAX_TOOLS:
            warnings.append(f"{label} lists more than {MAX_TOOLS} tools; the rest are left out")
            break
        else:
            unique[tool.name] = tool
    names = _fitting(list(unique))
    warnings += [
        f"the tool {one_line(raw)!r} of {label} is called {name}, since models take only simple names"
        for raw, name in names.items()
        if raw != name
    ]
    definitions = [_definition(tool, names[raw]) for raw, tool in unique.items()]
    if len(warnings) > MAX_WARNINGS:
        warnings[MAX_WARNINGS:] = [f"{label}: and {len(warnings) - MAX_WARNINGS} more warnings of this kind"]
    return definitions, warnings


def _problem(tool: "ListedTool") -> str | None:
    if tool.input_schema.get("type", "object") != "object":
        return "its input schema does not describe an object"
    if len(_canonical([tool.input_schema, tool.output_schema])) > MAX_SCHEMA_BYTES:
        return f"its schemas are longer than {MAX_SCHEMA_BYTES // 1024} KiB"
    return None


def _definition(tool: "ListedTool", name: str) -> ToolDefinition:
    hints = tool.annotations
    is_read_only = bool(hints and hints.read_only_hint)
    described = tool.description or tool.title or (hints.title if hints else None) or tool.name
    return ToolDefinition(
        raw_name=tool.name,
        name=name,
        description=visible(described, MAX_DESCRIPTION_CHARACTERS),
        parameters={"type": "object", "properties": {}} | _shown_schema(tool.input_schema),
        is_read_only=is_read_only,
        is_sensitive=bool(hints and not is_read_only and (hints.destructive_hint or hints.open_world_hint)),
        is_open_world=bool(hints and hints.open_world_hint),
        digests={
            "name": _digest(tool.name),
            "description": _digest([tool.title, tool.description]),
            "annotations": _digest(hints.model_dump(mode="json", exclude_none=True) if hints else None),
            "input schema": _digest(tool.input_schema),
            "output schema": _digest(tool.output_schema),
        },
        is_checked=tool.output_schema is not None and _is_cheap(tool.output_schema),
    )


def _digest(value: object) -> str:
    return sha256(_canonical(value)).hexdigest()


def _canonical(value: object) -> bytes:
    return msgspec.json.encode(value, order="deterministic")


def _is_cheap(schema: dict[str, Any]) -> bool:
    text = _canonical(schema)
    return len(text) <= _MAX_CHECKED_BYTES and not any(f'"{word}"'.encode() in text for word in _COSTLY)


def _shown_schema(node: Any) -> Any:
    """The schema with nothing hidden in its prose. References stay as they are: none is followed."""
    if isinstance(node, list):
        return [_shown_schema(entry) for entry in cast(list[Any], node)]
    if not isinstance(node, dict):
        return node
    return {
        key: visible(value, MAX_DESCRIPTION_CHARACTERS)
        if key in _PROSE and isinstance(value, str)
        else _shown_schema(value)
        for key, value in cast(dict[str, Any], node).items()
    }


def _fitting(raw_names: Sequence[str]) -> dict[str, str]:
    """Raw name → a name that models take. The same for the same names in any order; no two are equal."""
    fitted = {raw: _FOREIGN.sub("_", visible(raw))[:64] or "_" for raw in raw_names if not _NAME.fullmatch(raw)}
    uses = Counter(fitted.values())
    names = {raw: raw for raw in raw_names}
    taken = set(raw_names)
    for raw, name in fitted.items():
        # A digest tells apart what only foreign characters told apart.
        while name in taken or uses[name] > 1:
            name = f"{name[:55]}_{_digest([raw, name])[:8]}"
        names[raw] = name
        taken.add(name)
    return names
