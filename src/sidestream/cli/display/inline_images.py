"""Pictures in terminals that can show them: the protocols of kitty and iTerm2."""

import base64
import os
from collections.abc import Iterator, Mapping
from typing import Literal

Protocol = Literal["kitty", "iterm"]

_KITTY_CHUNK = 4096
"""Characters of base64 in one escape sequence; the protocol allows no more."""
_PREVIEW_ROWS = 8
_FILE_ROWS = 16
_KITTY_PROGRAMS = ("kitty", "ghostty")
_ITERM_PROGRAMS = ("iterm.app", "wezterm", "vscode", "mintty", "rio")


def picture_protocol(variables: Mapping[str, str] | None = None) -> Protocol | None:
    """How this terminal shows pictures; None if it does not, or if something stands between."""
    given = os.environ if variables is None else variables
    if given.get("TMUX") or given.get("STY"):  # They pass such sequences on only where they are configured to.
        return None
    program = given.get("TERM_PROGRAM", "").lower()
    if given.get("KITTY_WINDOW_ID") or "kitty" in given.get("TERM", "") or program in _KITTY_PROGRAMS:
        return "kitty"
    if program in _ITERM_PROGRAMS or given.get("LC_TERMINAL", "").lower() == "iterm2":
        return "iterm"
    return None


def drawn(data: bytes, mime_type: str, protocol: Protocol, *, is_preview: bool) -> str | None:
    """The sequences that draw a picture at the cursor, and a line break; None for a type that it cannot draw."""
    rows = _PREVIEW_ROWS if is_preview else _FILE_ROWS
    if protocol == "kitty":
        return "".join(_kitty(data, rows)) + "\n" if mime_type == "image/png" else None
    if not mime_type.startswith("image/") or mime_type == "image/svg+xml":
        return None
    content = base64.b64encode(data).decode()
    return f"\x1b]1337;File=inline=1;size={len(data)};height={rows};preserveAspectRatio=1:{content}\x07\n"


def _kitty(data: bytes, rows: int) -> Iterator[str]:
    content = base64.b64encode(data).decode()
    for at in range(0, len(content), _KITTY_CHUNK):
        first = f"f=100,a=T,r={rows},q=2," if at == 0 else ""
        is_last = at + _KITTY_CHUNK >= len(content)
        yield f"\x1b_G{first}m={0 if is_last else 1};{content[at : at + _KITTY_CHUNK]}\x1b\\"
