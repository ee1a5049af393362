"""The end of a response: finish reason, error, and the session that continues from it."""

from hashlib import blake2b
from typing import Any

from sidestream.jsontext import JsonObject, is_object
from sidestream.parts import Error, FinishReason, StepOutcome
from sidestream.providers.google.context import GROUNDING_KEY, REPLAYED, SESSION_KEY, some_text
from sidestream.providers.google.decode.grounding import grounding_of
from sidestream.providers.google.decode.state import DRAFT_PIECES, GenerateContentState
from sidestream.stream.errors import classified, violated_field

REASONS: dict[str, FinishReason] = {
    "STOP": "stop",
    "MAX_TOKENS": "length",
    "SAFETY": "content-filter",
    "RECITATION": "content-filter",
    "BLOCKLIST": "content-filter",
    "PROHIBITED_CONTENT": "content-filter",
    "SPII": "content-filter",
    "MODEL_ARMOR": "content-filter",
    "JAILBREAK": "content-filter",
    "IMAGE_SAFETY": "content-filter",
    "IMAGE_PROHIBITED_CONTENT": "content-filter",
    "IMAGE_RECITATION": "content-filter",
    "LANGUAGE": "other",
    "OTHER": "other",
    "MALFORMED_FUNCTION_CALL": "other",
    "MALFORMED_RESPONSE": "other",
    "UNEXPECTED_TOOL_CALL": "other",
    "TOO_MANY_TOOL_CALLS": "other",
    "MISSING_THOUGHT_SIGNATURE": "other",
    "NO_IMAGE": "other",
    "IMAGE_OTHER": "other",
    "CONTINUATION": "other",
    "FINISH_REASON_UNSPECIFIED": "other",
}
"""The provider's reason → ours. A blocked prompt always finishes with `content-filter`."""

PAUSED = "CONTINUATION"

_RATE_LIMITS = frozenset({"RESOURCE_EXHAUSTED", "429"})
_RETRYABLE = frozenset({"UNAVAILABLE", "INTERNAL", "DEADLINE_EXCEEDED", "ABORTED"}) | _RATE_LIMITS
_RETRYABLE_STATUSES = frozenset({408, 429, 500, 502, 503, 504})


def finish_reason(s: GenerateContentState) -> tuple[FinishReason, str | None]:
    """Return our finish reason and the provider's."""
    if s.finish_reason is None:
        return ("content-filter" if s.block_reason is not None else "other"), s.block_reason
    reason = REASONS.get(s.finish_reason, "other")
    return ("tool-calls" if reason == "stop" and s.has_client_call else reason), s.finish_reason


def error_of(error: Any, fallback: str) -> Error:
    """Convert the provider's error object to a part."""
    fields = error if is_object(error) else {}
    number = fields.get("code")
    status = number if isinstance(number, int) and not isinstance(number, bool) else None
    code = some_text(fields, "status") or (str(number) if number is not None else None)
    retryable = code in _RETRYABLE or status in _RETRYABLE_STATUSES
    kind = "rate-limit" if code in _RATE_LIMITS or status == 429 else "provider"
    message = some_text(fields, "message") or fallback
    param = violated_field(fields)
    return classified(Error(kind, message, code=code, status=status, retryable=retryable, param=param))


def step_outcome(s: GenerateContentState) -> StepOutcome:
    """Return the outcome of the step."""
    is_paused = s.finish_reason == PAUSED
    return StepOutcome(message_metadata=_message_metadata(s), replay=REPLAYED, is_paused=is_paused)


def _message_metadata(s: GenerateContentState) -> JsonObject:
    """Return the layout of the parts and the grounding, as metadata of the message."""
    session: JsonObject = {
        "model": s.context.model or s.model,
        "base_url": s.context.base_url,
        "response_id": s.response_id,
        "parts": [_whole(entry) for entry in s.layout],
        "texts": {block.id: text_digest(block.text) for block in s.blocks},
    }
    if s.finish_reason == PAUSED and s.continuation_token is not None:
        session["continuation_token"] = s.continuation_token
    return {SESSION_KEY: session} | ({GROUNDING_KEY: grounding_of(s)} if s.grounding else {})


def _whole(entry: JsonObject) -> JsonObject:
    """Return a layout entry, with the pieces of a draft joined to its text."""
    pieces = entry.get("part", {}).get(DRAFT_PIECES)
    return entry if pieces is None else {**entry, "part": {"text": "".join(pieces)}}


def text_digest(text: str) -> str:
    """Return a digest of text, to detect edits."""
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def result_metadata(s: GenerateContentState) -> JsonObject:
    """Return the metadata of the result."""
    facts: JsonObject = {"response_id": s.response_id, "model": s.model, "status": s.finish_reason or s.block_reason}
    facts |= s.metadata
    if s.grounding:
        facts[GROUNDING_KEY] = grounding_of(s)
    return facts
