"""Keys that are typed while something else is drawn, as lines."""

import re
from collections import deque

from sidestream.cli.display.screen import strip_controls

_KEYS = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|O.|.)?")
"""Arrow keys and other combinations, which have no meaning here."""
_ERASE = "\x7f\b"
_ERASE_ALL = "\x15"


class TypedLines:
    """Collects keys into lines. `draft` is the line that has not been entered yet."""

    def __init__(self) -> None:
        self.draft = ""
        self._lines: deque[str] = deque()

    def feed(self, keys: str) -> None:
        """Takes the next keys: text, Enter, Backspace and Ctrl-U."""
        for key in _KEYS.sub("", keys):
            if key in "\r\n":
                self._lines.append(self.draft)
                self.draft = ""
            elif key in _ERASE:
                self.draft = self.draft[:-1]
            elif key == _ERASE_ALL:
                self.draft = ""
            else:
                self.draft += strip_controls(key)

    def next_line(self) -> str | None:
        """The next line that was entered; None if there is none yet."""
        return self._lines.popleft() if self._lines else None

    def take_draft(self) -> str:
        """What was typed last, for a prompt to continue."""
        draft, self.draft = self.draft, ""
        return draft
