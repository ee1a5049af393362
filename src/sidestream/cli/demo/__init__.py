"""The demo: recordings that come with the package, at the pace of a live run, and a live one on this machine."""

import asyncio
import tempfile
from pathlib import Path
from typing import TextIO

from msgspec import Struct

from sidestream.cli.demo.conversation import converse
from sidestream.cli.output_folder import OutputFolder
from sidestream.cli.render import ProgressView
from sidestream.cli.terminal import Screen
from sidestream.replay.recording import Recording
from sidestream.replay.runs import replay
from sidestream.replay.transport import ReplayTransport
from sidestream.stream.parts import File, ReasoningDelta, StreamPart, TextDelta, ToolEvent, ToolInputDelta, ToolResult


class Scene(Struct, frozen=True):
    """One recording and what was asked in it."""

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
        "The provider writes code, runs it, and hands over a file",
        "Plot how long the day is over a year in Quito, Berlin and Tromsø.",
    ),
    Scene("image.json", "The provider makes an image", "Paint a quiet fjord at dusk, in flat colours."),
    Scene(
        "mcp.json",
        "The provider calls a remote MCP server",
        "Which train from Uppsala to Stockholm can I take after half past five?",
    ),
)

OPENING = (
    "Four recorded runs, decoded by the code that live runs go through, and a live one on this machine. "
    "Nothing is sent anywhere."
)

CLOSING = """\
Files are in {folder}

Without a key:
  sidestream -m local "Why is the sky blue?"
With a key of your own:
  export OPENAI_API_KEY=…
  sidestream -m openai-responses -T web_search "What is new in Python?"
  sidestream -m openai-responses -T code_interpreter --out . "Plot y = x^2"

Read on: sidestream --help, the README, and the folder docs."""


def pause_s(part: StreamPart) -> float:
    """How long a live run would take about here, cut short where it would be dull."""
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


async def show(out: TextIO, folder: Path | None, *, fast: bool) -> None:
    """Plays all scenes; everything goes to one stream, since here the progress is the point."""
    saved = OutputFolder(folder or tempfile.mkdtemp(prefix="sidestream-demo-"))
    screen = Screen(out, out)
    screen.line(OPENING)
    for number, scene in enumerate(SCENES, 1):
        screen.gap()
        screen.line(f"{number}. {scene.title}", "bold")
        screen.line(f"   “{scene.prompt}”")
        await _play(scene, ProgressView(screen, saved, thinking=True), fast=fast)
    await converse(screen, len(SCENES) + 1)
    screen.gap()
    for line in CLOSING.format(folder=saved.path).split("\n"):
        screen.line(line)


async def _play(scene: Scene, view: ProgressView, *, fast: bool) -> None:
    recording = Recording.load(Path(__file__).parent / scene.recording)
    for run in replay(recording, ReplayTransport(recording)):
        async with run:
            async for part in run:
                view.feed(part)
                if not fast:
                    await asyncio.sleep(pause_s(part))
