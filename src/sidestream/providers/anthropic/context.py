"""What encoder and decoder share: the key of the session, and what the decoder must know of the request."""

from collections.abc import Mapping
from typing import Any

from sidestream.providers.shared import decoding

PROVIDER_NAME = "anthropic"

SESSION_KEY = "_anthropic_session"
"""Where a message keeps the blocks it came as, and the container its code ran in."""

REPLAYED = {SESSION_KEY: "blocks"}
"""Key of a session → the field that only a replay needs."""

INLINE_TOOLS = "inline_tools"
"""What a request leaves out after the server refused to add tools in mid-conversation."""

THREAD = "thread"
"""The field of a session that notes its thread; and what a request leaves out that the server cannot hold."""

THREAD_SESSION = "thread_session"
"""What a request leaves out after the server refused to continue a thread: it creates another one."""

RESULT_TOOL = "return_result"
"""The reserved tool by which a model without native typed output returns its answer."""


class MessagesContext(decoding.DecodeContext, frozen=True, kw_only=True):
    """Facts of the request for the decoder of a message."""

    has_result_tool: bool = False
    """True: calls of the reserved tool are the answer, as text."""
    waiting: Mapping[str, dict[str, Any]] = {}
    """Pending server-side calls of earlier responses, by id."""
    delivered: frozenset[str] = frozenset()
    """Links and files that earlier responses of this turn delivered."""
    client_names: Mapping[str, str] = {}
    """The provider's name of a tool that the client runs → the name its calls have here."""
    container_id: str | None = None
    """The container that the request named."""
    tools_note: dict[str, Any] | None = None
    """The tools that the request offered or added, for the session of the answer."""
    thread_note: str | None = None
    """The thread of the request, for the session of the answer."""
    is_compaction: bool = False
    """True: the request was for a summary and nothing else."""
