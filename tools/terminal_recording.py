"""Record a command as an animated picture: `python -m tools.terminal_recording FILE.svg COMMAND …`.

The output appears in the picture with the command's own timing. Browsers play it once.
"""

import html
import os
import subprocess
import sys
import time
from pathlib import Path

WIDTH = 96
LINE_PX, CHAR_PX, MARGIN_PX = 20, 8.4, 16
MAX_PAUSE_S = 1.5
"""Maximum pause in seconds; longer ones are shortened."""
STYLE = """
text { font: 14px ui-monospace, monospace; fill: #d9d9d9; white-space: pre; }
text { visibility: hidden; animation: show 0s forwards; }
@keyframes show { to { visibility: visible; } }
@media (prefers-reduced-motion: reduce) { text { visibility: visible; animation: none; } }
"""

Printed = tuple[float, int, int, str]
"""Time in seconds, line, column and text of a piece of output."""


def recorded(command: list[str]) -> list[Printed]:
    """Run the command, and return the pieces of its output, wrapped at the picture's width."""
    shown_s, last_s, line, column = 0.0, time.monotonic(), 1, 0
    pieces: list[Printed] = [(0.0, 0, 0, f"$ {' '.join(command)}")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, "PYTHONUNBUFFERED": "1"})
    assert process.stdout is not None
    while data := os.read(process.stdout.fileno(), 4096):
        now_s = time.monotonic()
        shown_s, last_s = shown_s + min(now_s - last_s, MAX_PAUSE_S), now_s
        for place, part in enumerate(data.decode("utf-8", "replace").split("\n")):
            if place:
                line, column = line + 1, 0
            for word in part.replace(" ", " \n").split("\n"):
                if column + len(word.rstrip()) > WIDTH:
                    line, column = line + 1, 0
                if word:
                    pieces.append((shown_s, line, column, word))
                    column += len(word)
    if code := process.wait():
        raise SystemExit(f"{' '.join(command)} ended with {code}")
    return pieces


def drawn(pieces: list[Printed]) -> str:
    """Draw the pieces as an animated SVG."""
    height = (max(line for _, line, _, _ in pieces) + 1) * LINE_PX + 2 * MARGIN_PX
    width = WIDTH * CHAR_PX + 2 * MARGIN_PX
    texts = "\n".join(
        f'<text x="{MARGIN_PX + column * CHAR_PX:.1f}" y="{MARGIN_PX + (line + 0.75) * LINE_PX:.0f}" '
        f'style="animation-delay:{when:.2f}s">{html.escape(text)}</text>'
        for when, line, column, text in pieces
        if text.strip()
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" role="img">\n'
        f'<style>{STYLE}</style>\n<rect width="100%" height="100%" rx="8" fill="#222"/>\n{texts}\n</svg>\n'
    )


def main() -> None:
    file, *command = sys.argv[1:]
    Path(file).write_text(drawn(recorded(command)), "utf-8")
    print(file)


if __name__ == "__main__":
    main()
