"""Markdown as it streams: blocks that can no longer change are released, the rest is drawn again.

What a model wrote is hostile text: raw HTML is text, and links show where they lead.
"""

from functools import cache
from typing import Any

from markdown_it import MarkdownIt
from rich.console import RenderableType
from rich.markdown import Markdown
from rich.text import Text

KEPT_BLOCKS = 2
"""A block may still join the one before it; with two of them kept, the released ones are those of the whole text."""
MAX_PENDING = 8_000
"""Characters that are kept back; a paragraph or table that is longer is released as plain text."""
CODE_THEME = "ansi_dark"


@cache
def _parser() -> MarkdownIt:
    # Without this, tags would be dropped.
    return MarkdownIt("commonmark", {"html": False}).enable("strikethrough").enable("table")


class MarkdownStream:
    """Splits a text that streams into what is final and what may still change."""

    def __init__(self) -> None:
        self.pending = ""
        self._check_at = 0
        """Length from which blocks are looked for again: never at each line of a long one."""

    def feed(self, delta: str) -> list[str]:
        """Takes the next piece of text; returns the blocks that are final now."""
        self.pending += delta
        if "\n" not in delta or len(self.pending) < self._check_at:
            return []
        if len(self.pending) > MAX_PENDING:
            cut = self.pending.rfind("\n") + 1
            released, self.pending = self.pending[:cut], self.pending[cut:]
            return [released]
        begins = _top_level_lines(self.pending)
        if len(begins) <= KEPT_BLOCKS:
            self._check_at = len(self.pending) * 3 // 2
            return []
        self._check_at = 0
        lines = self.pending.splitlines(keepends=True)
        cut = begins[-KEPT_BLOCKS]
        released, self.pending = "".join(lines[:cut]), "".join(lines[cut:])
        return [released]

    def flush(self) -> str:
        """The rest of the text."""
        rest, self.pending, self._check_at = self.pending, "", 0
        return rest


def _top_level_lines(text: str) -> list[int]:
    """The lines on which top-level blocks begin."""
    return [token.map[0] for token in _parser().parse(text) if token.level == 0 and token.map and token.nesting >= 0]


def rendered(text: str) -> RenderableType:
    """The text as a terminal shows it."""
    if len(text) > MAX_PENDING:
        return Text(text)
    markdown = Markdown("", code_theme=CODE_THEME, hyperlinks=False)
    parsed: Any = _parser().parse(text)
    markdown.parsed = parsed
    return markdown
