"""Test your agent without a network, and with the faults that networks have.

Put a model of your own in the agent's place, without a socket:

    with agent.override(model=ScriptedModel([tool_call("get_weather", city="Oslo"), "It is sunny."])):
        ...

Play a recording as a provider:

    transport = ReplayTransport(Recording.load("answer.json"))
    agent = Agent("openai-responses", transport=transport)

Or script a server on loopback, faults included:

    async with FakeProvider([error_reply(503), sse(responses_text("Hello"))]) as fake:
        agent = Agent("openai-responses", base_url=fake.base_url)

The fake also plays its scripts over a WebSocket, for `Agent(transport="websocket")`.

`crash_loop` kills a program at every point where it writes, `hostile_server` is an MCP server that misbehaves,
`RecordingTransport` records live traffic, `check_stream` checks that a stream of parts is legal, and `no_leaks`
checks that no task, file descriptor or thread is left behind.

May import every package but `cli`; none imports it.
"""

from typing import TYPE_CHECKING

from sidestream.lazy import lazy_names

if TYPE_CHECKING:
    from sidestream.replay.capture import RecordingTransport as RecordingTransport
    from sidestream.replay.recording import (
        Exchange as Exchange,
        RecordedRequest as RecordedRequest,
        RecordedResponse as RecordedResponse,
        Recording as Recording,
    )
    from sidestream.replay.transport import ReplayTransport as ReplayTransport
    from sidestream.testing.chat_script import ChatScript as ChatScript
    from sidestream.testing.crashes import (
        CrashedRun as CrashedRun,
        CrashLoopError as CrashLoopError,
        crash_loop as crash_loop,
        failpoint as failpoint,
    )
    from sidestream.testing.fake import Answer as Answer, FakeProvider as FakeProvider, Received as Received
    from sidestream.testing.gemini_script import GeminiScript as GeminiScript, InteractionScript as InteractionScript
    from sidestream.testing.hostile_mcp import McpFault as McpFault, hostile_server as hostile_server
    from sidestream.testing.leaks import LeakError as LeakError, check_stream as check_stream, no_leaks as no_leaks
    from sidestream.testing.messages_script import MessagesScript as MessagesScript
    from sidestream.testing.replies import (
        AwaitedSteer as AwaitedSteer,
        Keepalives as Keepalives,
        Reply as Reply,
        dropped as dropped,
        encode_event as encode_event,
        encode_events as encode_events,
        error_reply as error_reply,
        html_page as html_page,
        json_reply as json_reply,
        pixel_png as pixel_png,
        recorded as recorded,
        sse as sse,
    )
    from sidestream.testing.responses_script import (
        ResponsesScript as ResponsesScript,
        responses_function_call as responses_function_call,
        responses_text as responses_text,
        steer_report as steer_report,
    )
    from sidestream.testing.scripted import ModelReply as ModelReply, ScriptedModel as ScriptedModel
    from sidestream.testing.scripted_parts import ScriptedReply as ScriptedReply, tool_call as tool_call
    from sidestream.testing.socket_responder import socket_close as socket_close, socket_frame as socket_frame

__all__, __getattr__, __dir__ = lazy_names(  # pyright: ignore[reportUnsupportedDunderAll]
    __name__,
    {
        "replay.capture": "RecordingTransport",
        "replay.recording": "Exchange RecordedRequest RecordedResponse Recording",
        "replay.transport": "ReplayTransport",
        "testing.chat_script": "ChatScript",
        "testing.crashes": "CrashLoopError CrashedRun crash_loop failpoint",
        "testing.fake": "Answer FakeProvider Received",
        "testing.gemini_script": "GeminiScript InteractionScript",
        "testing.hostile_mcp": "McpFault hostile_server",
        "testing.leaks": "LeakError check_stream no_leaks",
        "testing.messages_script": "MessagesScript",
        "testing.replies": (
            "AwaitedSteer Keepalives Reply dropped encode_event encode_events error_reply html_page json_reply "
            "pixel_png recorded sse"
        ),
        "testing.responses_script": "ResponsesScript responses_function_call responses_text steer_report",
        "testing.scripted": "ModelReply ScriptedModel",
        "testing.scripted_parts": "ScriptedReply tool_call",
        "testing.socket_responder": "socket_close socket_frame",
    },
)
