"""The public names, for type checkers: `__init__.py` loads each when it is first used."""

from sidestream.agent.replayed import (
    ReplayedRun as ReplayedRun,
    ReplayMismatch as ReplayMismatch,
    replay_run as replay_run,
)
from sidestream.replay.capture import RecordingTransport as RecordingTransport
from sidestream.replay.cassette import Cassette as Cassette
from sidestream.replay.prompt_cache import (
    CacheStep as CacheStep,
    cache_steps as cache_steps,
)
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
    aws_frame as aws_frame,
    aws_frames as aws_frames,
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
from sidestream.testing.responder import socket_close as socket_close, socket_frame as socket_frame
from sidestream.testing.responses_script import (
    ResponsesScript as ResponsesScript,
    responses_function_call as responses_function_call,
    responses_text as responses_text,
    steer_report as steer_report,
)
from sidestream.testing.scripted import (
    ModelReply as ModelReply,
    ScriptedModel as ScriptedModel,
    ScriptedReply as ScriptedReply,
    tool_call as tool_call,
)
