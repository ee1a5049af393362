"""Shared parts of encoder and decoder: the session key and the request context."""

from collections.abc import Mapping
from typing import Any

from sidestream.providers.shared import decoding

PROVIDER_NAME = "anthropic"

SESSION_KEY = "_anthropic_session"
"""Metadata key for the blocks that a message arrived as, and the container in which its code ran."""

REPLAYED = {SESSION_KEY: "blocks"}
"""Session key → the field that only resending needs."""

INLINE_TOOLS = "inline_tools"
"""Key in `ModelRequest.without` after the server refused tools added in mid-conversation."""

THREAD = "thread"
"""Session field for the thread, and key in `ModelRequest.without` if the server cannot hold the conversation."""

THREAD_SESSION = "thread_session"
"""Key in `ModelRequest.without` after the server refused to continue a thread. A new one is created."""

RESULT_TOOL = "return_result"
"""Reserved tool through which a model without native typed output returns its answer."""


class MessagesContext(decoding.DecodeContext, frozen=True, kw_only=True):
    """Request context for the decoder of a message."""

    provider: str = PROVIDER_NAME
    """Name of the provider whose host answers."""
    has_result_tool: bool = False
    """Whether calls of the reserved tool are the answer, as text."""
    waiting: Mapping[str, dict[str, Any]] = {}
    """Pending server-side calls of earlier responses, by id."""
    delivered: frozenset[str] = frozenset()
    """Links and files that earlier responses of this turn delivered."""
    client_names: Mapping[str, str] = {}
    """The provider's name of a tool that the client runs → the name of its calls in our stream."""
    container_id: str | None = None
    """Container that the request named."""
    tools_note: dict[str, Any] | None = None
    """Tools that the request offered or added, for the session of the answer."""
    thread_note: str | None = None
    """Thread of the request, for the session of the answer."""
    files_note: Mapping[str, Any] = {}
    """Files of the container, for the session of the answer."""
    is_compaction: bool = False
    """Whether the request asked for a summary and nothing else."""
