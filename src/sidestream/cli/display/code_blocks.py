"""Extraction of fenced code blocks from Markdown."""

import re
from typing import Literal

Place = Literal["first", "last"]

_BLOCK = re.compile(
    r"^[ ]{0,3}(?P<fence>`{3,}|~{3,})[^\n]*\n(?P<code>.*?)(?:^[ ]{0,3}(?P=fence)[`~]*[ \t]*$|\Z)",
    re.MULTILINE | re.DOTALL,
)


def code_block(text: str, place: Place) -> str | None:
    """Return the code of the first or last block, with a final newline, or None if there is none.

    A block without an end extends to the end of the text.
    """
    found = [match["code"] for match in _BLOCK.finditer(text)]
    if not found:
        return None
    code = found[0 if place == "first" else -1]
    return code if code.endswith("\n") else f"{code}\n"
