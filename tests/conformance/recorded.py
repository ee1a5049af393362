"""Recorded answers of real providers, as the cases of conformance tests."""

import json
import re
from functools import cached_property
from typing import Any, TypeVar

import pytest

from sidestream.limits import DEFAULT_LIMITS
from sidestream.parts import StreamPart
from sidestream.replay.provider import replay
from sidestream.replay.recording import Exchange, Recording
from sidestream.replay.transport import ChunkSizes, ReplayTransport, pieces
from sidestream.wire.sse import Splitter
from support.places import RECORDINGS


class RecordedAnswer:
    """One recorded answer."""

    def __init__(self, name: str, exchange: Exchange) -> None:
        self.name = name
        self.exchange = exchange

    @cached_property
    def events(self) -> list[bytes]:
        """The data of the stream's events."""
        return self.events_of(None)

    @cached_property
    def sent(self) -> list[dict[str, Any]]:
        """The stream's events."""
        return [json.loads(event) for event in self.events]

    def events_of(self, sizes: ChunkSizes) -> list[bytes]:
        """Return the data of the stream's events, read in chunks of these sizes."""
        splitter = Splitter(DEFAULT_LIMITS.max_event_bytes)
        events = [event for chunk in pieces(self.exchange.body_bytes(), sizes) for event in splitter.feed(chunk)]
        return events + splitter.flush()

    async def replayed(self, chunk_size: ChunkSizes = None) -> list[StreamPart]:
        """Return the parts of a run that replays this answer alone."""
        alone = Recording((self.exchange,))
        (run,) = replay(alone, ReplayTransport(alone, chunk_size=chunk_size))
        async with run:
            return [part async for part in run]


Case = TypeVar("Case", bound=RecordedAnswer)


def recorded(case: type[Case], folders: list[str], path: str) -> list[Case]:
    """Load the answers to requests whose path, without its query, matches the pattern `path`.

    Skips the module if there are none.
    """
    found = [
        case(f"{file.stem}-{number}", exchange)
        for file in sorted(file for folder in folders for file in RECORDINGS.glob(f"{folder}/*.json"))
        for number, exchange in enumerate(Recording.load(file).exchanges)
        if re.search(path, exchange.request.path.partition("?")[0])
    ]
    if not found:
        pytest.skip(f"no recordings of {' and '.join(folders)} in {RECORDINGS}", allow_module_level=True)
    return found


def each(chosen: list[Case]) -> pytest.MarkDecorator:
    """Run a test once for each of these cases."""
    return pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in chosen])
