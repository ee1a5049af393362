"""Draw the command line for the docs: `python -m tools.terminal_pictures` writes docs/pictures/*.svg.

It plays the demo's recordings on the command line's own screen with a fixed clock, so that the same code always gives
the same pictures.
"""

import asyncio
import io
import itertools
import re
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

from sidestream.cli.commands import demo
from sidestream.cli.display.live_screen import LiveScreen
from sidestream.cli.display.progress import Detail, ProgressView
from sidestream.parts import StreamPart, ToolInputDelta
from sidestream.replay.provider import replay
from sidestream.replay.recording import Recording
from sidestream.replay.transport import ReplayTransport

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "pictures"
DEMO = Path(demo.__file__).parent
WIDTH = 96
SECONDS_PER_PART = 0.05


def _is_code_half_written(parts: list[StreamPart]) -> bool:
    return sum(isinstance(part, ToolInputDelta) for part in parts) > 60


PICTURES: dict[str, tuple[str, str, Callable[[list[StreamPart]], bool] | None]] = {
    "search": ("web_search.json", 'sidestream -T web_search "How long is the eclipse of 2027?"', None),
    "code": ("code_run.json", 'sidestream -T code_interpreter --out . "Plot the length of the day"', None),
    "writing": (
        "code_run.json",
        'sidestream -T code_interpreter --out . "Plot the length of the day"',
        _is_code_half_written,
    ),
    "mcp": ("mcp.json", 'sidestream --mcp mcp.json "Which train can I take?"', None),
}
"""Recording, command shown above it and stop condition of each picture. None means to stop at the end."""


async def picture(name: str) -> str:
    """Draw the SVG of a run, at its end or at its stop condition."""
    recording, command, is_enough = PICTURES[name]
    place = io.StringIO()
    console = Console(file=place, record=True, force_terminal=True, width=WIDTH, height=40, color_system="truecolor")
    ticks = itertools.count()
    clock: Callable[[], float] = lambda: next(ticks) * SECONDS_PER_PART / 2  # noqa: E731
    screen = LiveScreen(place, place, clock=clock, console=console, refreshes=False)
    console.print(Text(f"$ {command}", "bold"))
    view = ProgressView(screen, detail=Detail(hints=False), clock=clock)
    seen: list[StreamPart] = []
    loaded = Recording.load(DEMO / recording)
    for run in replay(loaded, ReplayTransport(loaded)):
        async with run:
            async for part in run:
                view.feed(part)
                seen.append(part)
                if is_enough is not None and is_enough(seen):
                    console.print(screen.region())
                    break
    drawing = console.export_svg(title="sidestream", theme=MONOKAI, unique_id=f"sidestream-{name}")
    # Pages that show the picture must not load fonts from other sites.
    drawing = re.sub(r"@font-face \{.*?\}\s*|<!--.*?-->\s*", "", drawing, flags=re.DOTALL)
    return drawing.replace("Fira Code", "ui-monospace")


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name in PICTURES:
        file = FOLDER / f"{name}.svg"
        file.write_text(asyncio.run(picture(name)), "utf-8")
        print(file)


if __name__ == "__main__":
    main()
