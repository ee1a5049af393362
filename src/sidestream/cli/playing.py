"""Plays runs to a view: live ones, and those of a recording."""

from typing import TYPE_CHECKING, Any

from sidestream.cli.render import View
from sidestream.errors import ConfigurationError
from sidestream.stream.parts import Finish, FinishReason

if TYPE_CHECKING:
    from sidestream.run.run import Run


async def play(run: "Run[Any]", view: View) -> FinishReason | None:
    """Shows a run to its end; gives the reason for which it ended."""
    reason: FinishReason | None = None
    try:
        async for part in run:
            view.feed(part)
            if isinstance(part, Finish):
                reason = part.reason
    finally:
        view.close()
    return reason


async def replay_file(path: str, view: View, *, pace_s: float, is_one_of_many: bool) -> None:
    """Shows each model exchange of a recording. Raises ConfigurationError where the file holds none."""
    from sidestream.replay.provider import model_exchanges
    from sidestream.replay.recording import Recording
    from sidestream.replay.runs import replay
    from sidestream.replay.transport import ReplayTransport

    recording = Recording.load(path)
    total = len(model_exchanges(recording))
    if total == 0:
        held = ", ".join(f"{e.request.method} {e.request.path}" for e in recording.exchanges[:3]) or "nothing"
        raise ConfigurationError(f"{path} holds no model exchange that an installed provider can decode, only {held}")
    for number, run in enumerate(replay(recording, ReplayTransport(recording, pace_s=pace_s)), 1):
        if is_one_of_many or total > 1:
            view.heading(f"{path}, exchange {number} of {total}")
        async with run:
            await play(run, view)
