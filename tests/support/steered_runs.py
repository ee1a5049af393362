"""Runs over WebSocket that are sent messages while they stream, and the scripts for them."""

from typing import Any

from sidestream import Agent, Limits
from sidestream.parts import Custom, Steer, StepFinish, StepStart, TextDelta
from sidestream.stream import grammar
from sidestream.testing import (
    FakeProvider,
    Received,
    Reply,
    ResponsesScript,
)

LIMITS = Limits(first_byte_timeout_s=20, idle_timeout_s=20)
FALLBACK = "sidestream.steer-fallback"


def agent_at(fake: FakeProvider, **settings: Any) -> Agent[Any]:
    given = {"base_url": fake.base_url, "limits": LIMITS, "transport": "websocket", **settings}
    return Agent("openai-responses", api_key="key-4cf2", **given)


def parent(text: str = "One", *between: Any, id: str = "r1", ends: str = "steered") -> list[Any]:
    """A response whose first delta is followed by these entries; it ends steered, or with this status."""
    script = ResponsesScript(id=id).text([text, "."])
    events: list[Any] = (script.incomplete("steered") if ends == "steered" else script).events()
    place = 1 + next(n for n, event in enumerate(events) if event["type"] == "response.output_text.delta")
    return [*events[:place], *between, *events[place:]]


def successor(text: str = "Two.", id: str = "r2", before: str = "r1") -> list[Any]:
    return ResponsesScript(id=id, previous_response_id=before).text(text).events()


def says(text: str, id: str = "r9") -> Reply:
    return ResponsesScript(id=id).text(text).reply()


def input_of(request: Received) -> list[Any]:
    body: Any = request.json
    given = body["input"]
    assert isinstance(given, list)
    return [*given]


def sent_by(request: Received) -> Any:
    return request.json


def told(parts: list[Any]) -> list[str]:
    """Steers, notices and borders of steps, in order."""
    kinds = (Steer, StepStart, StepFinish, Custom)
    names = {Steer: lambda part: part.status, Custom: lambda part: part.kind}
    return [names.get(type(part), lambda part: part.type)(part) for part in parts if isinstance(part, kinds)]


NATIVE = ["step-start", "accepted", "step-finish", "applied", "step-start", "step-finish"]
REFUSED = ["step-start", "accepted", FALLBACK, "step-finish", "applied", "step-start", "step-finish"]


async def steered(run: Any, *messages: Any, at: str = "One") -> list[Any]:
    """The parts of a run that is sent these messages after a delta."""
    parts: list[Any] = []
    async with run:
        async for part in run:
            parts.append(part)
            if isinstance(part, TextDelta) and part.delta == at:
                for message in messages:
                    await run.steer(message)
    grammar.check(parts)
    return parts
