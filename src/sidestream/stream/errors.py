"""Errors as parts of the stream, and parts as errors."""

from sidestream.errors import (
    AuthenticationError,
    LimitError,
    ProtocolError,
    ProviderError,
    RateLimitedError,
    RunError,
    StreamTimeoutError,
    StreamTruncatedError,
)
from sidestream.stream.parts import Error

_BY_KIND: dict[str, type[RunError]] = {
    "truncated": StreamTruncatedError,
    "timeout": StreamTimeoutError,
    "rate-limit": RateLimitedError,
    "protocol": ProtocolError,
    "limit": LimitError,
}


def part_of_error(error: RunError) -> Error:
    """The error as a part of the stream."""
    return Error(error.kind, error.message, code=error.code, status=error.status, retryable=error.retryable)


def error_from_part(part: Error) -> RunError:
    """The exception for a stream's error part."""
    kind = _BY_KIND.get(part.kind, ProviderError)
    if kind is ProviderError and part.status in (401, 403):
        kind = AuthenticationError
    return kind(part.message, code=part.code, status=part.status, retryable=part.retryable)
