"""Live runs of the demo: a conversation with the embedded model, and code in a local sandbox."""

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from sidestream.cli.display.output_folder import OutputFolder
from sidestream.cli.display.progress import Detail, ProgressView
from sidestream.cli.display.screen import Screen
from sidestream.errors import ConfigurationError
from sidestream.messages.message import ChatMessage
from sidestream.parts import Error

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
