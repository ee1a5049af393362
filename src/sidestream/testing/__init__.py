"""Test your agent without a network, and with the faults that networks have.

Play a recording as a provider:

    transport = ReplayTransport(Recording.load("answer.json"))
    agent = Agent("openai-responses", transport=transport)

Or let a server on loopback say, and break, what you like:

    async with FakeProvider([error_reply(503), sse(responses_text("Hello"))]) as fake:
        agent = Agent("openai-responses", base_url=fake.base_url)

`RecordingTransport` makes recordings of live traffic; `no_leaks` checks that nothing is left behind.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sidestream.testing.chat_script import ChatScript
    from sidestream.testing.fake import Answer, FakeProvider, Received
    from sidestream.testing.gemini_script import GeminiScript, InteractionScript
    from sidestream.testing.leaks import LeakError, no_leaks
    from sidestream.testing.messages_script import MessagesScript
    from sidestream.testing.recording import (
        Exchange,
        RecordedRequest,
        RecordedResponse,
        Recording,
        RecordingTransport,
        ReplayTransport,
    )
    from sidestream.testing.script import (
        Keepalives,
        Reply,
        ResponsesScript,
        dropped,
        encode_event,
        encode_events,
        error_reply,
        html_page,
        json_reply,
        pixel_png,
        recorded,
        responses_function_call,
        responses_text,
        sse,
    )

_ROOMS = {
    "chat_script": ("ChatScript",),
    "fake": ("Answer", "FakeProvider", "Received"),
    "gemini_script": ("GeminiScript", "InteractionScript"),
    "leaks": ("LeakError", "no_leaks"),
    "messages_script": ("MessagesScript",),
    "recording": (
        "Exchange",
        "RecordedRequest",
        "RecordedResponse",
        "Recording",
        "RecordingTransport",
        "ReplayTransport",
    ),
    "script": (
        "Keepalives",
        "Reply",
        "ResponsesScript",
        "dropped",
        "encode_event",
        "encode_events",
        "error_reply",
        "html_page",
        "json_reply",
        "pixel_png",
        "recorded",
        "responses_function_call",
        "responses_text",
        "sse",
    ),
}
_ROOM_OF = {name: room for room, names in _ROOMS.items() for name in names}

__all__ = [
    "Answer",
    "ChatScript",
    "Exchange",
    "FakeProvider",
    "GeminiScript",
    "InteractionScript",
    "Keepalives",
    "LeakError",
    "MessagesScript",
    "Received",
    "RecordedRequest",
    "RecordedResponse",
    "Recording",
    "RecordingTransport",
    "ReplayTransport",
    "Reply",
    "ResponsesScript",
    "dropped",
    "encode_event",
    "encode_events",
    "error_reply",
    "html_page",
    "json_reply",
    "no_leaks",
    "pixel_png",
    "recorded",
    "responses_function_call",
    "responses_text",
    "sse",
]


def __getattr__(name: str) -> Any:
    try:
        room = import_module(f"{__name__}.{_ROOM_OF[name]}")
    except KeyError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
    return getattr(room, name)
