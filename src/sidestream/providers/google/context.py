"""What encoder and decoder share: session keys, facts of the request, and readers of Google's JSON."""

from collections.abc import Mapping
from typing import Any

from sidestream.jsontext import JsonObject
from sidestream.providers.shared import decoding

PROVIDER_NAME = "google"
TELEMETRY_NAME = "gcp.gemini"

SESSION_KEY = "_google_session"
"""Where a message keeps the layout of its parts, so that signatures are sent back exactly where they came."""
REPLAYED = {SESSION_KEY: "parts"}
"""Key of a session → the field that only a replay needs."""
GROUNDING_KEY = "grounding_metadata"
"""Where message and result keep what the answer is grounded in."""


class GoogleContext(decoding.DecodeContext, frozen=True, kw_only=True):
    """Facts of the request for the decoders of both APIs."""

    drafts: bool = False
    """True: a later request is for the typed answer, so the text of this response is a draft and no output."""
    screen: tuple[int, int] | None = None
    """Width and height of the screen that the model acts on; None if it acts on none."""
    functions: frozenset[str] = frozenset()
    """The functions that the request declared; all others are predefined."""


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
    """Return the name of an enum's value, which some servers and proxies send as its number; None if it is neither."""
    if isinstance(value, int) and not isinstance(value, bool):
        return names.get(value, str(value))
    return value if isinstance(value, str) and value else None


def some_text(value: JsonObject, key: str) -> str | None:
    """The text under a key; None if it is empty or not text."""
    found = value.get(key)
    return found if isinstance(found, str) and found else None
