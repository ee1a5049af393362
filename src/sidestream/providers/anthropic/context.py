"""What encoder and decoder share: the key of the session, and what the decoder must know of the request."""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

PROVIDER_NAME = "anthropic"

SESSION_KEY = "_anthropic_session"
"""Where a message keeps the blocks it came as, and the container its code ran in."""

RESULT_TOOL = "return_result"
"""The reserved tool by which a model without native typed output gives its answer."""


class DecodeContext(Struct, frozen=True, kw_only=True):
    """Facts of the request. A recording may not have them; then the defaults hold."""

    model: str | None = None
    base_url: str | None = None
    has_result_tool: bool = False
    """True: calls of the reserved tool are the answer, as text."""
    waiting: Mapping[str, dict[str, Any]] = {}
    """Server-side calls of earlier responses whose results are still to come, by id."""
    is_waiting_told: bool = False
    """True: those calls were told earlier in the same run."""
    delivered: frozenset[str] = frozenset()
    """Links and files that earlier responses of this turn brought."""
    client_names: Mapping[str, str] = {}
    """The provider's name of a tool that the client runs → the name its calls have here."""
    container_id: str | None = None
    """The container that the request named."""
    is_compaction: bool = False
    """True: the request asked for a summary and nothing else."""
