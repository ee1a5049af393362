"""Short reprs of values that may hold megabytes, such as images, responses and long strings."""

from collections.abc import Mapping, Sequence, Set
from types import ModuleType
from typing import Any, cast

from msgspec import NODEFAULT, Struct

MAX_CHARS = 500
"""Maximum length of a value's repr."""
MAX_VALUE_CHARS = 80
"""Maximum length of a field's repr."""
MAX_ENTRIES = 8


class ShortRepr:
    """A mixin for structs whose repr omits default fields, shortens long values and counts bytes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return short_repr(self)

    def __rich_repr__(self) -> Any:
        # Rich would print each field in full.
        yield from ((name, Shown(text)) for name, text in _shown_fields(cast(Struct, self)))


class Shown(str):
    """A string whose repr is the string itself."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def short_repr(value: Any) -> str:
    """Return the repr of a struct, at most `MAX_CHARS` characters long."""
    fields = ", ".join(f"{name}={text}" for name, text in _shown_fields(value))
    return _cut(f"{type(value).__name__}({fields}", MAX_CHARS - 1) + ")"


def _shown_fields(value: Struct) -> list[tuple[str, str]]:
    # Avoid the field types, which may not be imported yet.
    names, defaults = value.__struct_fields__, value.__struct_defaults__
    default_of = dict(zip(names[len(names) - len(defaults) :], defaults, strict=True))
    given = [(name, getattr(value, name)) for name in names]
    return [
        (name, shortened(content))
        for name, content in given
        if not _is_default(default_of.get(name, NODEFAULT), content)
    ]


def _is_default(default: Any, content: Any) -> bool:
    is_made = type(default).__name__ == "Factory"
    return not content if is_made else content is default or (type(content) is type(default) and content == default)


def shortened(value: Any, limit: int = MAX_VALUE_CHARS) -> str:
    """Return the repr of a field's value, cutting long values and counting large ones."""
    if isinstance(value, bytes | bytearray):
        return f"<{len(value):,} bytes>" if len(value) > limit // 4 else repr(value)
    if isinstance(value, str):
        return repr(value) if len(value) <= limit else f"{value[: limit - 20]!r}… ({len(value):,} characters)"
    if isinstance(value, Struct):
        return _cut(repr(value), limit)
    if isinstance(value, Mapping):
        pairs = cast(Mapping[Any, Any], value)
        entries = [f"{key!r}: {shortened(pairs[key], limit // 2)}" for key in list(pairs)[:MAX_ENTRIES]]
        return _bracketed("{", entries, len(pairs), "}", limit)
    if isinstance(value, Sequence | Set):
        members = list(cast("Sequence[Any]", value))
        open_, close = ("[", "]") if isinstance(value, list) else ("(", ")")
        return _bracketed(
            open_, [shortened(entry, limit // 2) for entry in members[:MAX_ENTRIES]], len(members), close, limit
        )
    return _cut(repr(value), limit)


def shown(value: Any) -> str:
    """Format a value for an error message, small ones literally and others by their types."""
    if value is None or isinstance(value, bool | int | float | str):
        return f"{value!r:.60}"
    if isinstance(value, type | ModuleType) or callable(value):
        return f"{getattr(value, '__name__', type(value).__name__)}"
    return "an empty list" if value in ([], ()) else type(value).__name__


def _bracketed(open_: str, entries: list[str], count: int, close: str, limit: int) -> str:
    while len(entries) > 1 and sum(map(len, entries)) + 2 * len(entries) > limit:
        entries.pop()
    more = count - len(entries)
    inner = _cut(", ".join(entries), limit) + (f", … {more:,} more" if more else "")
    return f"{open_}{inner}{close}"


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"
