"""Functions for the stateless APIs, whose requests carry the whole history and whose runs end with the response."""

import os
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Protocol

from starlette.requests import Request

from sidestream.agent.agent import Agent
from sidestream.durable.log.jobs import Job
from sidestream.jsontext import JsonObject, without_none
from sidestream.messages.message import ChatMessage, MessagePart, TextPart
from sidestream.parts import Error, StepStart, StreamPart, TextDelta, TextEnd
from sidestream.server.errors import RequestError
from sidestream.server.http.event_stream import parts_of, wait_comment
from sidestream.server.http.requests import server_of, stored_id
from sidestream.server.runs.service import RunInfo


class Encoder(Protocol):
    """Encodes parts as the events of an API."""

    error: Error | None

    def feed(self, part: StreamPart) -> list[JsonObject]:
        """Return the events of a part."""
        ...


def settings_of(settings: Mapping[str, Any]) -> JsonObject:
    """Return the settings that are set. Unsupported ones only warn, as the client may be written for another model."""
    return {**without_none(settings), "unsupported": "warn"}


def text_in(parts: Iterable[MessagePart]) -> str:
    """Join the text among these parts."""
    return "".join(part.text for part in parts if isinstance(part, TextPart))


def name_of(call_id: str, names: Mapping[str, str], at: str, *, what: str = "call") -> str:
    """Return the tool name of an earlier call. Raises RequestError if no call has this id."""
    if call_id not in names:
        raise RequestError(400, f"no earlier {what} has the id {call_id!r}", param=at)
    return names[call_id]


async def started(request: Request, agent: Agent[Any], messages: Sequence[ChatMessage], job: Job) -> RunInfo:
    """Start a run in a new conversation, on a history whose last message the model answers.

    Raises RequestError if the last message is neither the user's nor a tool result.
    """
    if not messages or messages[-1].role not in ("user", "tool"):
        raise RequestError(400, "the last message must be a user message or a tool result", param="messages")
    conversation = stored_id(request, f"{job.api}_{os.urandom(12).hex()}")
    *beginning, last = messages
    return await server_of(request).runs.start(agent, conversation, last, job, beginning=beginning)


async def frames_of(
    request: Request, info: RunInfo, encoder: Encoder, encode: Callable[[JsonObject], bytes]
) -> AsyncGenerator[bytes]:
    """Yield the events of a run as frames, in the batches in which they arrive. Waits are comments."""
    async with aclosing(parts_of(server_of(request).runs, info)) as batches:
        async for parts in batches:
            frames = [wait_comment(part) + b"".join(map(encode, encoder.feed(part))) for part in parts]
            if data := b"".join(frames):
                yield data


async def all_events(
    request: Request, info: RunInfo, encoder: Encoder, failed: Callable[[Error], RequestError]
) -> list[JsonObject]:
    """Return all events of a run. Raises RequestError if the run failed."""
    async with aclosing(parts_of(server_of(request).runs, info)) as batches:
        parts = [part async for batch in batches for part in batch]
    events = [event for part in _settled(parts) for event in encoder.feed(part)]
    if encoder.error is not None:
        raise failed(encoder.error)
    return events


def _settled(parts: list[StreamPart]) -> list[StreamPart]:
    """Return the parts without text that a final part has replaced."""
    settled: list[StreamPart] = []
    replaced: set[str] = set()
    for part in reversed(parts):
        if isinstance(part, StepStart):
            replaced.clear()  # Ids are unique within a step.
        elif isinstance(part, TextEnd) and part.text is not None:
            replaced.add(part.id)
        if not isinstance(part, TextDelta) or part.id not in replaced:
            settled.append(part)
    return settled[::-1]
