"""What can go wrong, as one tree.

SidestreamError
├── ConfigurationError       the program must change: raised before anything is sent
│   ├── MissingKeyError        no API key; names the variable
│   ├── UnknownProviderError   no such provider; suggests near names
│   ├── UnsupportedError       a tool or option that this provider does not have; says what it has
│   └── MissingExtraError      an optional dependency; names the extra
├── RunError                 a run failed: `part` is the stream's error, `result` what had come until then
│   ├── ProviderError          the provider said no (`status`, `code`)
│   │   ├── AuthenticationError  401 or 403
│   │   └── RateLimitedError     429 (`retry_after`)
│   ├── StreamTruncatedError   the stream ended before its end
│   ├── StreamTimeoutError     first byte or next event did not come in time
│   ├── ConnectError           no connection
│   ├── ToolServerError        a server of local tools did not start or broke; names it
│   ├── ProtocolError          what came was not the protocol
│   │   └── OutputInvalidError   the answer does not fit the output type, asked again or not
│   └── LimitError             a limit of `Limits` was reached
├── StoreError               the log could not be read or written; says what to do
│   ├── ConflictError          someone else has written to the conversation
│   ├── NewerSchemaError       the store was written by a newer version: it is only read
│   └── BlobError              a stored file is missing or not what it was
└── GrammarError             a part stream broke the grammar: a fault of a decoder, not of a provider
"""

from typing import Any, Literal

ErrorKind = Literal["provider", "truncated", "protocol", "timeout", "rate-limit", "limit", "tool"]
"""The kinds of an `error` part; the last is an error that did not end the run."""


class SidestreamError(Exception):
    """Root of all errors that Sidestream raises."""


class ConfigurationError(SidestreamError):
    """The program asks for something that cannot be done as asked."""


class MissingKeyError(ConfigurationError):
    """No API key was given."""


class UnknownProviderError(ConfigurationError):
    """No provider has this name."""


class UnsupportedError(ConfigurationError):
    """The provider has no such tool or option."""


class MissingExtraError(ConfigurationError):
    """An optional dependency is not installed."""

    def __init__(self, extra: str, purpose: str) -> None:
        super().__init__(f'{purpose} needs the extra "{extra}": pip install "sidestream[{extra}]"')
        self.extra = extra


class StoreError(SidestreamError):
    """A store could not be opened, read or written."""


class ConflictError(StoreError):
    """Someone else has written to the conversation since it was read; `conversation` names it."""

    def __init__(self, conversation: str) -> None:
        super().__init__(
            f"the conversation {conversation!r} was changed by another writer; "
            "open it again to go on from where it stands now"
        )
        self.conversation = conversation


class NewerSchemaError(StoreError):
    """The store was written by a newer version of Sidestream: it is read as far as possible, never written."""


class BlobError(StoreError):
    """A stored file is missing or damaged; `digest` is its address."""

    def __init__(self, message: str, *, digest: str) -> None:
        super().__init__(message)
        self.digest = digest


class GrammarError(SidestreamError):
    """A part came where the grammar does not allow it."""


class RunError(SidestreamError):
    """A run failed. `result` holds what had arrived until then, if anything had."""

    kind: ErrorKind = "provider"

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        status: int | None = None,
        retryable: bool = False,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.status = status
        self.retryable = retryable
        self.retry_after = retry_after
        self.result: Any = None
        """The `ChatResult` of what had arrived; None where the run had no result to fold."""


class ProviderError(RunError):
    """The provider refused the request or failed while answering it."""


class AuthenticationError(ProviderError):
    """The key was refused."""


class RateLimitedError(ProviderError):
    """Too many requests; `retry_after` is the wait in seconds that the provider asked for, if it did."""

    kind = "rate-limit"


class StreamTruncatedError(RunError):
    """The stream ended without its terminal event."""

    kind = "truncated"


class StreamTimeoutError(RunError):
    """Nothing came in time."""

    kind = "timeout"


class ConnectError(RunError):
    """The connection could not be made, or broke before anything came."""


class ToolServerError(RunError):
    """A server of local tools, e.g. an MCP server, could not be started or used; `server` is its label."""

    def __init__(self, message: str, *, server: str) -> None:
        super().__init__(message, code="tool-server")
        self.server = server


class ProtocolError(RunError):
    """What came over the wire was not what the protocol promises."""

    kind = "protocol"


class OutputInvalidError(ProtocolError):
    """The answer does not fit the output type, and asking again did not help."""


class LimitError(RunError):
    """A limit of `Limits` was reached where going on makes no sense."""

    kind = "limit"
