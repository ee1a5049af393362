"""Replays a recording as runs, without an agent."""

from collections.abc import Iterator

from sidestream.limits import DEFAULT_LIMITS, Limits
from sidestream.messages.message import ChatMessage
from sidestream.replay.provider import ReplayModel, model_exchanges
from sidestream.replay.recording import Recording
from sidestream.run.run import Run
from sidestream.run.settings import RunSettings
from sidestream.transport.calls import Transport
from sidestream.turn.machine import Turn


def replay(recording: Recording, transport: Transport, limits: Limits = DEFAULT_LIMITS) -> Iterator[Run[str]]:
    """One run per model exchange, in order; client tools are not executed."""
    for exchange in model_exchanges(recording):
        settings = RunSettings(
            model=ReplayModel("recording", recording, [exchange]),
            transport=transport,
            limits=limits,
            errors="parts",
        )
        yield Run(Turn([ChatMessage.user("")], answers_calls=False, limits=limits), settings)
