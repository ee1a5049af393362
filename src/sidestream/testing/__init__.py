"""Tools for testing agents without a network, and with the faults that networks have.

Replace the agent's model, without a socket:

    with agent.override(model=ScriptedModel([tool_call("get_weather", city="Oslo"), "It is sunny."])):
        ...

Play a recording as a provider:

    transport = ReplayTransport(Recording.load("answer.json"))
    agent = Agent("openai-responses", transport=transport)

Or script a server on loopback, faults included:

    async with FakeProvider([error_reply(503), sse(responses_text("Hello"))]) as fake:
        agent = Agent("openai-responses", base_url=fake.base_url)

The fake also plays its scripts over a WebSocket, for `Agent(transport="websocket")`.

`replay_run` runs an agent again on a logged run, and compares its requests. `cache_steps` says what broke its
prompt cache.

`crash_loop` kills a program at every point where it writes, `hostile_server` is an MCP server that misbehaves,
`RecordingTransport` records live traffic, `check_stream` checks that a stream of parts is legal, and `no_leaks`
checks that no task, file descriptor or thread is left behind.

May import every package but `cli`. No package imports it.
"""

from sidestream.lazy import lazy_names

__all__, __getattr__, __dir__ = lazy_names(  # pyright: ignore[reportUnsupportedDunderAll]
    __name__,
    {
        "agent.replayed": "ReplayMismatch ReplayedRun replay_run",
        "replay.capture": "RecordingTransport",
        "replay.cassette": "Cassette",
        "replay.prompt_cache": "CacheStep cache_steps",
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
            "AwaitedSteer Keepalives Reply aws_frame aws_frames dropped encode_event encode_events error_reply "
            "html_page json_reply pixel_png recorded sse"
        ),
        "testing.responses_script": "ResponsesScript responses_function_call responses_text steer_report",
        "testing.scripted": "ModelReply ScriptedModel ScriptedReply tool_call",
        "testing.responder": "socket_close socket_frame",
    },
)
