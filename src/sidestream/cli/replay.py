"""Shows the model exchanges of a recording."""

from sidestream.cli.render import View
from sidestream.cli.views import show_run
from sidestream.errors import ConfigurationError
from sidestream.replay.provider import model_exchanges
from sidestream.replay.recording import Recording
from sidestream.replay.runs import replay
from sidestream.replay.transport import ReplayTransport


async def replay_file(path: str, view: View, *, pace_s: float, is_one_of_many: bool) -> None:
    """Shows each model exchange of a recording. Raises ConfigurationError if the file has none."""
    recording = Recording.load(path)
    total = len(model_exchanges(recording))
    if total == 0:
        found = ", ".join(f"{e.request.method} {e.request.path}" for e in recording.exchanges[:3]) or "nothing"
        raise ConfigurationError(f"{path} has no model exchange that an installed provider can decode, only {found}")
    for number, run in enumerate(replay(recording, ReplayTransport(recording, pace_s=pace_s)), 1):
        if is_one_of_many or total > 1:
            view.heading(f"{path}, exchange {number} of {total}")
        async with run:
            await show_run(run, view)
