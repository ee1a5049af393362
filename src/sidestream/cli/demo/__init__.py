"""`sidestream demo`: recordings shipped with the package, played at the pace of a live run, and a live local run."""

import asyncio
import tempfile
from pathlib import Path
from typing import TextIO

from msgspec import Struct

from sidestream.cli.demo.code_here import play_code
from sidestream.cli.demo.conversation import play_conversation
from sidestream.cli.output_folder import OutputFolder
from sidestream.cli.render import ProgressView
from sidestream.cli.terminal import Screen
from sidestream.replay.recording import Recording
from sidestream.replay.runs import replay
from sidestream.replay.transport import ReplayTransport
from sidestream.stream.parts import File, ReasoningDelta, StreamPart, TextDelta, ToolEvent, ToolInputDelta, ToolResult


class Scene(Struct, frozen=True):
    """A recording with its title and prompt."""

    recording: str
    title: str
    prompt: str


SCENES = (
    Scene(
        "web_search.json",
        "The provider searches the web",
        "How long is the total solar eclipse of 2 August 2027, and where is it longest?",
    ),
    Scene(
        "code_run.json",
        "The provider writes and runs code, and returns a file",
        "Plot how long the day is over a year in Quito, Berlin and Tromsø.",
    ),
    Scene("image.json", "The provider generates an image", "Paint a quiet fjord at dusk, in flat colours."),
    Scene(
        "mcp.json",
        "The provider calls a remote MCP server",
        "Which train from Uppsala to Stockholm can I take after half past five?",
    ),
)

OPENING = (
    "Four recorded runs, decoded by the same code as live runs, and two live ones on this machine. "
    "Nothing is sent over the network."
)

CLOSING = """\
Files are in {folder}

Without a key:
  sidestream -m local "Why is the sky blue?"
  sidestream serve                      # a chat page on this machine
With your own key:
  export OPENAI_API_KEY=…
  sidestream -m openai-responses -T web_search "What is new in Python?"
  sidestream -m openai-responses -T code_interpreter --out . "Plot y = x^2"

More: sidestream --help, the README, and the folder docs."""


def pause_s(part: StreamPart) -> float:
    """The pause after a part: about as long as in a live run, but shorter where that would be tedious."""
    match part:
        case TextDelta() | ReasoningDelta():
            return 0.02
        case ToolInputDelta():
            return 0.008
        case ToolResult(preliminary=True):
            return 0.7
        case ToolEvent(stage="searching" | "interpreting" | "generating") | ToolEvent(tool="mcp", stage="in_progress"):
            return 0.6
        case File():
            return 0.3
        case _:
            return 0.0


async def play_demo(out: TextIO, folder: Path | None, *, fast: bool) -> None:
    """Plays all scenes. Progress goes to the same stream as text, since it is the point here."""
    output = OutputFolder(folder or tempfile.mkdtemp(prefix="sidestream-demo-"))
    screen = Screen(out, out)
    screen.line(OPENING)
    for number, scene in enumerate(SCENES, 1):
        screen.gap()
        screen.line(f"{number}. {scene.title}", "bold")
        screen.line(f"   “{scene.prompt}”")
        await _play(scene, ProgressView(screen, output, thinking=True), fast=fast)
    await play_conversation(screen, len(SCENES) + 1)
    await play_code(screen, output, len(SCENES) + 2)
    screen.gap()
    for line in CLOSING.format(folder=output.path).split("\n"):
        screen.line(line)


async def _play(scene: Scene, view: ProgressView, *, fast: bool) -> None:
    recording = Recording.load(Path(__file__).parent / scene.recording)
    for run in replay(recording, ReplayTransport(recording)):
        async with run:
            async for part in run:
                view.feed(part)
                if not fast:
                    await asyncio.sleep(pause_s(part))
