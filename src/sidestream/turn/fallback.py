"""When a run may continue with another model. Pure."""

from sidestream.stream.parts import (
    Custom,
    Error,
    Finish,
    Raw,
    ReasoningEnd,
    ReasoningStart,
    ResponseMetadata,
    StreamPart,
    TextEnd,
    TextStart,
)

_SILENT = frozenset({ResponseMetadata, Raw, TextStart, ReasoningStart, ReasoningEnd, Error, Finish})


def is_output(part: StreamPart) -> bool:
    """True if a reader has seen something of an answer after this part."""
    match part:
        case Custom():
            return not part.kind.startswith("sidestream.")
        case TextEnd():
            return part.text is not None
        case _:
            return type(part) not in _SILENT


_OUTAGES = frozenset({"rate-limit", "timeout", "truncated"})


def is_outage(error: Error) -> bool:
    """True if the same request may succeed elsewhere: the provider is overloaded, failing, or cannot be reached.

    False for a request that it refuses, a key that it rejects, and limits of our own.
    """
    failed = error.retryable or (error.status is not None and error.status >= 500)
    return error.kind in _OUTAGES or (error.kind == "provider" and failed)
