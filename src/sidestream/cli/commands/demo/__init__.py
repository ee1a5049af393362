"""The `sidestream demo` command: packaged recordings, played at the pace of a live run, and live local runs."""

import asyncio
import sys
import tempfile
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any, TextIO
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import click
from msgspec import Struct

from sidestream.cli import exit_codes
from sidestream.cli.display.formatting import print_evidence, source
from sidestream.cli.display.output_folder import OutputFolder
from sidestream.cli.display.progress import Detail, ProgressView, live_clock
from sidestream.cli.display.screen import Screen, has_colour
from sidestream.cli.interrupts import run_async
from sidestream.cli.stdio import text_stream
from sidestream.errors import ConfigurationError
from sidestream.messages.message import ChatMessage
from sidestream.parts import Error, File, ReasoningDelta, StreamPart, TextDelta, ToolEvent, ToolInputDelta, ToolResult
from sidestream.replay.provider import replay
from sidestream.replay.recording import Recording
from sidestream.replay.transport import ReplayTransport


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
    "Four recorded runs, decoded by the same code as live runs, and three live ones on this machine. "
    "Nothing is sent over the network."
)

CLOSING = """\
Files are in {folder}

Without a key:
  sidestream -m local "Why is the sky blue?"
  sidestream serve                      # a chat page on this machine; needs sidestream[server]
With your own key:
  export OPENAI_API_KEY=…
  sidestream -m openai-responses -T web_search "What is new in Python?"
  sidestream -m openai-responses -T code_interpreter --out . "Plot y = x^2"

More: sidestream --help, the README, and the folder docs."""


TALK_TITLE = "Live: a small model on this machine calls a function, with no key and no network"
TALK_PROMPTS = ("What time is it in Tokyo?", "Good, then I will sleep now. Good night!")
MAX_TOKENS = 60

ZONES = {
    "berlin": "Europe/Berlin",
    "lima": "America/Lima",
    "london": "Europe/London",
    "new york": "America/New_York",
    "paris": "Europe/Paris",
    "sydney": "Australia/Sydney",
    "tokyo": "Asia/Tokyo",
}

CODE_TITLE = (
    "Live: code runs in a sandbox on this machine; a script plays the model, since the embedded one is too small"
)
CODE_PROMPT = "Draw a damped wave."
CODE_RECORDING = Path(__file__).parent / "here" / "code.json"

CLAIMS_TITLE = "Live: three claims about a document are checked; a script plays the model, and gets one wrong"
CLAIMS_PROMPT = "How much does the pump deliver, and how do I look after it?"
CLAIMS_RECORDING = Path(__file__).parent / "here" / "claims.json"
CLAIMS_DOCUMENT = Path(__file__).parent / "here" / "pump.md"


@click.command()
@click.option("--fast", is_flag=True, help="Play without pauses.")
@click.option(
    "--out", metavar="DIR", type=click.Path(file_okay=False, path_type=Path), help="Save files to this folder."
)
@click.option("--plain", is_flag=True, help="Print plain text, as if the output were not a terminal.")
def demo(fast: bool, out: Path | None, plain: bool) -> int:
    """Play recorded runs, and a live one on this machine. Needs no key and no network."""
    run_async(play_demo(text_stream(sys.stdout), out, fast=fast, is_plain=plain))
    return exit_codes.OK


def pause_s(part: StreamPart) -> float:
    """Return the pause after a part, in seconds. It is as in a live run, but never tediously long."""
    match part:
        case TextDelta() | ReasoningDelta():
            return 0.02
        case ToolInputDelta():
            return 0.008
        case ToolResult(preliminary=True):
            return 0.7
        case ToolEvent(stage="running") | ToolEvent(tool="mcp", provider_stage="in_progress"):
            return 0.6
        case File():
            return 0.3
        case _:
            return 0.0


async def play_demo(out: TextIO, folder: Path | None, *, fast: bool, is_plain: bool = False) -> None:
    """Play all scenes. Text and progress go to the same stream, because the demo is about both."""
    output = OutputFolder(folder or tempfile.mkdtemp(prefix="sidestream-demo-"))
    is_live = has_colour(out) and not is_plain
    screen = _live_screen(out) if is_live else Screen(out, out)
    clock = live_clock if is_live else None
    screen.line(OPENING)
    for number, scene in enumerate(SCENES, 1):
        screen.gap()
        screen.line(f"{number}. {scene.title}", "bold")
        screen.line(f"   “{scene.prompt}”")
        await _play(scene, ProgressView(screen, output, Detail(thinking=True), clock), fast=fast)
    await play_conversation(screen, len(SCENES) + 1, clock)
    await play_code(screen, output, len(SCENES) + 2, clock)
    await play_claims(screen, len(SCENES) + 3, clock)
    screen.gap()
    for line in CLOSING.format(folder=output.path).split("\n"):
        screen.line(line)


def _live_screen(out: TextIO) -> Screen:
    from sidestream.cli.display.live_screen import LiveScreen

    return LiveScreen(out, out)


async def _play(scene: Scene, view: ProgressView, *, fast: bool) -> None:
    recording = Recording.load(Path(__file__).parent / scene.recording)
    for run in replay(recording, ReplayTransport(recording)):
        async with run:
            async for part in run:
                view.feed(part)
                if not fast:
                    await asyncio.sleep(pause_s(part))


def current_time(city: str) -> str:
    """The current time in a city."""  # noqa: D401 - sent to the model
    try:
        now = datetime.now(ZoneInfo(ZONES[city.strip().lower()]))
    except (KeyError, ZoneInfoNotFoundError):
        return f"The time in {city} is unknown."
    return f"It is {now:%H:%M} in {city}."


async def play_conversation(screen: Screen, number: int, clock: Callable[[], float] | None = None) -> None:
    """Run the conversation, or print how to install the model if it is missing."""
    from sidestream.agent.agent import Agent
    from sidestream.providers.openai.chat import OpenAIChatOptions

    screen.gap()
    screen.line(f"{number}. {TALK_TITLE}", "bold")
    options = OpenAIChatOptions(temperature=0, max_completion_tokens=MAX_TOKENS)
    agent = Agent("local", tools=[current_time], options=options)
    view = ProgressView(screen, detail=Detail(), clock=clock)
    history: list[ChatMessage] = []
    for prompt in TALK_PROMPTS:
        screen.line(f"   “{prompt}”")
        try:
            async with agent.stream(prompt, history=history, errors="parts") as run:
                async for part in run:
                    view.feed(part)
        except ConfigurationError as error:
            screen.line(f"   Skipped. {error}", "yellow")
            return
        history = list(run.turn.state.messages)


async def play_code(
    screen: Screen, output: OutputFolder, number: int, clock: Callable[[], float] | None = None
) -> None:
    """Run the code, or print how to get a sandbox if there is none."""
    from sidestream.agent.agent import Agent
    from sidestream.tools.server_side import CodeInterpreter

    screen.gap()
    screen.line(f"{number}. {CODE_TITLE}", "bold")
    screen.line(f"   “{CODE_PROMPT}”")
    view = ProgressView(screen, output, Detail(), clock)
    try:
        tools = [CodeInterpreter(execution="here")]
        async with (
            Agent(f"replay:{CODE_RECORDING}", server_side_tools=tools) as agent,
            agent.stream(CODE_PROMPT, errors="parts") as run,
        ):
            async for part in run:
                view.feed(part)
                if isinstance(part, Error):
                    screen.line(f"   Skipped. {part.message}", "yellow")
    except ConfigurationError as error:
        screen.line(f"   Skipped. {error}", "yellow")


async def file_search(queries: list[str]) -> dict[str, Any]:
    """Searches the document of the demo."""  # noqa: D401 - sent to the model
    found = {"file_id": "demo", "filename": CLAIMS_DOCUMENT.name, "text": CLAIMS_DOCUMENT.read_text("utf-8")}
    return {"status": "completed", "queries": queries, "results": [found]}


async def play_claims(screen: Screen, number: int, clock: Callable[[], float] | None = None) -> None:
    """Run the search, and print each claim in the answer with what the document establishes about it."""
    from sidestream.agent.agent import Agent
    from sidestream.portable.here import Staged
    from sidestream.portable.tools.functions import Functions
    from sidestream.results.chunks import ChunkFold
    from sidestream.results.results import fold
    from sidestream.tools.tool import Tool

    screen.gap()
    screen.line(f"{number}. {CLAIMS_TITLE}", "bold")
    screen.line(f"   “{CLAIMS_PROMPT}”")
    view, folding = ProgressView(screen, detail=Detail(), clock=clock), ChunkFold()
    search = Tool.from_function(file_search, name="file_search", key="file_search")
    agent = Agent(f"replay:{CLAIMS_RECORDING}", tools=[Staged(Functions("file_search", [search]))])
    parts: list[StreamPart] = []
    async for part in agent.stream(CLAIMS_PROMPT, errors="parts"):
        view.feed(part)
        parts.append(part)
    screen.line("evidence:", "bold")
    for claim in fold([chunk for part in parts for chunk in folding.feed(part)]).claims():
        print_evidence(screen, claim.text, source(claim.source), claim.source.evidence)
