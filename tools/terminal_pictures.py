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
from sidestream.replay.recording import Exchange, RecordedRequest, RecordedResponse, Recording
from sidestream.replay.transport import ReplayTransport
from sidestream.testing import ResponsesScript, encode_events

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "pictures"
DEMO = Path(demo.__file__).parent
WIDTH = 96
SECONDS_PER_PART = 0.05


def _is_code_half_written(parts: list[StreamPart]) -> bool:
    return sum(isinstance(part, ToolInputDelta) for part in parts) > 60


def _recorded(name: str) -> Callable[[], Recording]:
    return lambda: Recording.load(DEMO / name)


def _xai() -> Recording:
    """Return what xAI sends for a search of X and of the web."""
    text = "Grok 5 was announced on X [[1]](https://x.example/grok-5) and is described on the web [[2]](https://x.ai/grok)."
    marks = [(text.index("[[1]]"), "https://x.example/grok-5"), (text.index("[[2]]"), "https://x.ai/grok")]
    cited = [
        {"type": "url_citation", "url": url, "title": str(number), "start_index": at, "end_index": at + len(url) + 7}
        for number, (at, url) in enumerate(marks, 1)
    ]
    script = ResponsesScript(model="grok-4.3", dialect="xai").x_search({"query": "from:xai grok 5", "mode": "Latest"})
    script = script.web_search("Grok 5", sources=["https://x.ai/grok"])
    body = encode_events(script.text(re.findall(r"\S+\s*", text), annotations=cited).events()).decode()
    request = RecordedRequest("POST", "/v1/responses", {"model": "grok-4.3"})
    return Recording((Exchange(RecordedResponse(200, "text/event-stream", body), request),))


PICTURES: dict[str, tuple[Callable[[], Recording], str, Callable[[list[StreamPart]], bool] | None]] = {
    "search": (_recorded("web_search.json"), 'sidestream -T web_search "How long is the eclipse of 2027?"', None),
    "code": (_recorded("code_run.json"), 'sidestream -T code_interpreter --out . "Plot the length of the day"', None),
    "writing": (
        _recorded("code_run.json"),
        'sidestream -T code_interpreter --out . "Plot the length of the day"',
        _is_code_half_written,
    ),
    "xai": (_xai, 'sidestream -m xai -T web_search -T x_search "What is new about Grok?"', None),
    "mcp": (_recorded("mcp.json"), 'sidestream --mcp mcp.json "Which train can I take?"', None),
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
    loaded = recording()
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
