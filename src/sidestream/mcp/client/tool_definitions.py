"""Conversion of a server's tool list to definitions: valid names, sanitized text, limits, and a digest per tool."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Any, cast

from msgspec import Struct

from sidestream import jsontext
from sidestream.mcp.display import one_line, visible

if TYPE_CHECKING:
    from mcp_types import Tool as MCPTool

MAX_TOOLS = 512
"""Maximum tools of one server. The rest are skipped; models handle far fewer well."""
MAX_PAGES = 64
"""Maximum pages of one list, against endless pagination."""
MAX_SCHEMA_BYTES = 256 * 1024
"""Maximum size of one tool's schemas as JSON. A tool with larger ones is skipped."""
MAX_DESCRIPTION_CHARACTERS = 16 * 1024
"""Maximum length of one tool's description. A longer one is truncated."""
MAX_WARNINGS = 20
_MAX_VALIDATED_SCHEMA_BYTES = 16 * 1024

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_INVALID_CHARACTERS = re.compile(r"[^a-zA-Z0-9_-]+")
_TEXT_KEYWORDS = ("description", "title", "$comment")
_COSTLY_KEYWORDS = ("$ref", "$dynamicRef", "$recursiveRef", "pattern", "patternProperties")


class ToolDefinition(Struct, frozen=True, kw_only=True):
    """A server's tool, sanitized for a model."""

    raw_name: str
    """Name on the server."""
    name: str
    description: str
    parameters: dict[str, Any]
    is_read_only: bool
    is_repeatable: bool
    """Whether the server marks it as read-only or idempotent, which is an unverified claim."""
    is_sensitive: bool
    """Whether the server marks it as destructive or open-world, and not as read-only."""
    is_open_world: bool
    """Whether its results are untrusted, which is the protocol's default unless the server denies being open-world."""
    aspects: dict[str, Any]
    """Aspect of the definition, e.g. `description` → the server's value, verbatim."""
    digests: dict[str, str]
    """Aspect of the definition → its digest."""
    has_validated_output: bool
    """Whether results are validated against its output schema. Only cheap schemas are, since a hostile one can take
    hours."""

    @property
    def pin(self) -> str:
        """Digest of the whole definition."""
        return _digest(self.digests)

    def changes(self, previous: Mapping[str, str]) -> list[str]:
        """Return the aspects that differ from these digests."""
        return [aspect for aspect, digest in self.digests.items() if previous.get(aspect) != digest]


def digests_of(aspects: Mapping[str, Any]) -> dict[str, str]:
    """Map each aspect of a definition to its digest."""
    return {name: _digest(value) for name, value in aspects.items()}


def pin_of(aspects: Mapping[str, Any]) -> str:
    """Return the digest of a definition with these aspects."""
    return _digest(digests_of(aspects))


def parse_tool_list(listed: Iterable["MCPTool"], label: str) -> tuple[list[ToolDefinition], list[str]]:
    """Return the usable tools, and warnings about the others."""
    warnings: list[str] = []
    unique: dict[str, MCPTool] = {}
    for tool in listed:
        if tool.name in unique:
            warnings.append(f"{label} lists two tools named {one_line(tool.name)!r}; the first is used")
        elif (problem := _problem(tool)) is not None:
            warnings.append(f"the tool {one_line(tool.name)!r} of {label} is skipped: {problem}")
        elif len(unique) == MAX_TOOLS:
            warnings.append(f"{label} lists more than {MAX_TOOLS} tools; the rest are skipped")
            break
        else:
            unique[tool.name] = tool
    names = _valid_names(list(unique))
    warnings += [
        f"the tool {one_line(raw)!r} of {label} is renamed to {name}, since models accept only simple names"
        for raw, name in names.items()
        if raw != name
    ]
    definitions = [_definition(tool, names[raw]) for raw, tool in unique.items()]
    if len(warnings) > MAX_WARNINGS:
        warnings[MAX_WARNINGS:] = [f"{label}: {len(warnings) - MAX_WARNINGS} more warnings"]
    return definitions, warnings


def _problem(tool: "MCPTool") -> str | None:
    if tool.input_schema.get("type", "object") != "object":
        return "its input schema does not describe an object"
    if len(jsontext.canonical([tool.input_schema, tool.output_schema])) > MAX_SCHEMA_BYTES:
        return f"its schemas are larger than {MAX_SCHEMA_BYTES // 1024} KiB"
    return None


def _definition(tool: "MCPTool", name: str) -> ToolDefinition:
    annotations = tool.annotations
    is_read_only = bool(annotations and annotations.read_only_hint)
    description = tool.description or tool.title or (annotations.title if annotations else None) or tool.name
    aspects: dict[str, Any] = {
        "name": tool.name,
        "description": [tool.title, tool.description],
        "annotations": annotations.model_dump(mode="json", exclude_none=True) if annotations else None,
        "input schema": tool.input_schema,
        "output schema": tool.output_schema,
    }
    return ToolDefinition(
        raw_name=tool.name,
        name=name,
        description=visible(description, MAX_DESCRIPTION_CHARACTERS),
        parameters={"type": "object", "properties": {}} | sanitized_schema(tool.input_schema),
        is_read_only=is_read_only,
        is_repeatable=is_read_only or bool(annotations and annotations.idempotent_hint),
        is_sensitive=bool(
            annotations and not is_read_only and (annotations.destructive_hint or annotations.open_world_hint)
        ),
        is_open_world=annotations is None or annotations.open_world_hint is not False,
        aspects=aspects,
        digests=digests_of(aspects),
        has_validated_output=tool.output_schema is not None and _is_cheap_to_validate(tool.output_schema),
    )


def _digest(value: object) -> str:
    return sha256(jsontext.canonical(value)).hexdigest()


def _is_cheap_to_validate(schema: dict[str, Any]) -> bool:
    text = jsontext.canonical(schema)
    return len(text) <= _MAX_VALIDATED_SCHEMA_BYTES and not any(
        f'"{word}"'.encode() in text for word in _COSTLY_KEYWORDS
    )


def sanitized_schema(node: Any) -> Any:
    """Sanitize the descriptions and titles in a schema. References are kept, not resolved."""
    if isinstance(node, list):
        return [sanitized_schema(entry) for entry in cast(list[Any], node)]
    if not isinstance(node, dict):
        return node
    return {
        key: visible(value, MAX_DESCRIPTION_CHARACTERS)
        if key in _TEXT_KEYWORDS and isinstance(value, str)
        else sanitized_schema(value)
        for key, value in cast(dict[str, Any], node).items()
    }


def _valid_names(raw_names: Sequence[str]) -> dict[str, str]:
    """Map each server name to a unique name that models accept, independent of the order of the names."""
    cleaned = {
        raw: _INVALID_CHARACTERS.sub("_", visible(raw))[:64] or "_" for raw in raw_names if not _NAME.fullmatch(raw)
    }
    uses = Counter(cleaned.values())
    names = {raw: raw for raw in raw_names}
    taken = set(raw_names)
    for raw, name in cleaned.items():
        # A digest distinguishes names that differed only in invalid characters.
        while name in taken or uses[name] > 1:
            name = f"{name[:55]}_{_digest([raw, name])[:8]}"
        names[raw] = name
        taken.add(name)
    return names
