"""Sanitizers for server text: they remove escape sequences and hidden characters."""

import re
import unicodedata

_ESCAPES = re.compile(
    # Terminal strings (titles, links, clipboard) end at BEL or ST; the rest is cursor and colour.
    r"(?:\x1b[\]PX^_]|[\x90\x98\x9d\x9e\x9f]).*?(?:\x07|\x1b\\|\x9c|$)"
    r"|(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?"
    r"|\x1b[ -/]*[0-~]?",
    re.DOTALL,
)
_INVISIBLE = re.compile(
    # Fillers and selectors that Unicode classes as letters or marks, but that are invisible.
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\uffa0\ufe00-\ufe0f\U000e0100-\U000e01ef]"
)
_KEPT = "\n\t"
_HIDDEN = ("Cc", "Cf", "Co", "Cs", "Cn")
"""Categories of invisible characters: control, format (bidi, joiners, tags), private, surrogate, unassigned."""


def visible(text: str, max_characters: int | None = None) -> str:
    """Remove escape sequences and hidden characters, and truncate to `max_characters`."""
    if not (text.isascii() and text.isprintable()):
        text = _INVISIBLE.sub("", _ESCAPES.sub("", text))
        text = "".join(c for c in text if c in _KEPT or unicodedata.category(c) not in _HIDDEN)
    if max_characters is not None and len(text) > max_characters:
        return f"{text[: max_characters - 1]}…"
    return text


def one_line(text: str, max_characters: int = 200) -> str:
    """Return the visible text on one line, truncated, for use in a message."""
    return visible(" ".join(visible(text).split()), max_characters)
