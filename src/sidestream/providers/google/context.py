"""Shared parts of encoder and decoder: session keys, request context, and readers of Google's JSON."""

from collections.abc import Mapping
from typing import Any

from sidestream.jsontext import JsonObject
from sidestream.providers.shared import decoding

PROVIDER_NAME = "google"
TELEMETRY_NAME = "gcp.gemini"

SESSION_KEY = "_google_session"
"""Metadata key for the layout of a message's parts, so that each signature is sent back in its original position."""
REPLAYED = {SESSION_KEY: "parts"}
"""Session key → the field that only resending needs."""
GROUNDING_KEY = "grounding_metadata"
"""Metadata key for grounding, in messages and results."""


class GoogleContext(decoding.DecodeContext, frozen=True, kw_only=True):
    """Request context for the decoders of both APIs."""

    drafts: bool = False
    """Whether a later request asks for the typed answer, so that the text of this response is only a draft."""
    screen: tuple[int, int] | None = None
    """Width and height of the screen that the model acts on. None means no computer use."""
    functions: frozenset[str] = frozenset()
    """Functions that the request declared. All others are predefined."""


FINISH_REASONS = dict(
    enumerate(
        (
            *("FINISH_REASON_UNSPECIFIED", "STOP", "MAX_TOKENS", "SAFETY", "RECITATION", "OTHER", "LANGUAGE"),
            *("BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "MALFORMED_FUNCTION_CALL", "IMAGE_SAFETY"),
            *("UNEXPECTED_TOOL_CALL", "TOO_MANY_TOOL_CALLS"),
        )
    )
)
BLOCK_REASONS = dict(
    enumerate(("BLOCK_REASON_UNSPECIFIED", "SAFETY", "OTHER", "BLOCKLIST", "PROHIBITED_CONTENT", "IMAGE_SAFETY"))
)
OUTCOMES = dict(enumerate(("OUTCOME_UNSPECIFIED", "OUTCOME_OK", "OUTCOME_FAILED", "OUTCOME_DEADLINE_EXCEEDED")))
LANGUAGES = dict(enumerate(("LANGUAGE_UNSPECIFIED", "PYTHON")))
URL_STATES = {
    number: f"URL_RETRIEVAL_STATUS_{state}"
    for number, state in enumerate(("UNSPECIFIED", "SUCCESS", "ERROR", "PAYWALL", "UNSAFE"))
}


def named(value: Any, names: Mapping[int, str]) -> str | None:
    """Return the name of an enum value, which some servers and proxies send as a number. None if it is neither."""
    if isinstance(value, int) and not isinstance(value, bool):
        return names.get(value, str(value))
    return value if isinstance(value, str) and value else None


def some_text(value: JsonObject, key: str) -> str | None:
    """Return the string under a key, or None if it is empty or not a string."""
    found = value.get(key)
    return found if isinstance(found, str) and found else None
