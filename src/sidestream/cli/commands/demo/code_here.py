"""A live run of code in a local sandbox. A script plays the model, because the embedded one is too small."""

from collections.abc import Callable
from pathlib import Path

from sidestream.cli.display.output_folder import OutputFolder
from sidestream.cli.display.progress import Detail, ProgressView
from sidestream.cli.display.screen import Screen
from sidestream.errors import ConfigurationError
from sidestream.parts import Error

TITLE = "Live: code runs in a sandbox on this machine; a script plays the model, since the embedded one is too small"
PROMPT = "Draw a damped wave."
RECORDING = Path(__file__).parent / "here" / "code.json"


async def play_code(
    screen: Screen, output: OutputFolder, number: int, clock: Callable[[], float] | None = None
) -> None:
    """Run the code, or print how to get a sandbox if there is none."""
    from sidestream.agent.agent import Agent
    from sidestream.tools.server_side import CodeInterpreter

    screen.gap()
    screen.line(f"{number}. {TITLE}", "bold")
    screen.line(f"   “{PROMPT}”")
    view = ProgressView(screen, output, Detail(), clock)
    try:
        tools = [CodeInterpreter(execution="here")]
        async with (
            Agent(f"replay:{RECORDING}", server_side_tools=tools) as agent,
            agent.stream(PROMPT, errors="parts") as run,
        ):
            async for part in run:
                view.feed(part)
                if isinstance(part, Error):
                    screen.line(f"   Skipped. {part.message}", "yellow")
    except ConfigurationError as error:
        screen.line(f"   Skipped. {error}", "yellow")
