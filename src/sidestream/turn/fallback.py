"""Rules for when a run may continue with another model. Pure."""

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
    """Return whether the user may have seen some of the answer after this part."""
    match part:
        case Custom():
            return not part.kind.startswith("sidestream.")
        case TextEnd():
            return part.text is not None
        case _:
            return type(part) not in _SILENT


_OUTAGES = frozenset({"rate-limit", "timeout", "truncated"})


def is_outage(error: Error) -> bool:
    """Return whether another provider may answer the same request.

    True if the provider is overloaded, failing or unreachable. False for a refused request, a rejected key and our own
    limits.
    """
    failed = error.retryable or (error.status is not None and error.status >= 500)
    return error.kind in _OUTAGES or (error.kind == "provider" and failed)
