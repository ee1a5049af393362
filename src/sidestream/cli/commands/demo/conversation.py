"""A live conversation with the embedded model, which can call a clock."""

from collections.abc import Callable
from datetime import datetime
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from sidestream.cli.display.progress import Detail, ProgressView
from sidestream.cli.display.screen import Screen
from sidestream.errors import ConfigurationError
from sidestream.messages.message import ChatMessage

TITLE = "Live: a small model on this machine calls a function, with no key and no network"
PROMPTS = ("What time is it in Tokyo?", "Good, then I will sleep now. Good night!")
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
    screen.line(f"{number}. {TITLE}", "bold")
    options = OpenAIChatOptions(temperature=0, max_completion_tokens=MAX_TOKENS)
    agent = Agent("local", tools=[current_time], options=options)
    view = ProgressView(screen, detail=Detail(), clock=clock)
    history: list[ChatMessage] = []
    for prompt in PROMPTS:
        screen.line(f"   “{prompt}”")
        try:
            async with agent.stream(prompt, history=history, errors="parts") as run:
                async for part in run:
                    view.feed(part)
        except ConfigurationError as error:
            screen.line(f"   Skipped. {error}", "yellow")
            return
        history = list(run.turn.state.messages)
