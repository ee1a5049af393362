"""All exceptions, as one tree.

SidestreamError
├── ConfigurationError       invalid use or settings; raised before anything is sent
│   ├── MissingKeyError        no API key; names the variable
│   ├── UnknownProviderError   unknown provider; suggests similar names
│   ├── UnsupportedError       a tool or option that the provider does not support; names the supported ones
│   │   └── NotHostedError       a server-side tool that the provider, or this model of it, does not host
│   └── MissingExtraError      an optional dependency is not installed; names the extra
├── RunError                 a run failed; `result` is the partial result
│   ├── ProviderError          the provider returned an error (`status`, `code`, `param`, `retry_after`)
│   │   ├── AuthenticationError  401 or 403
│   │   ├── RateLimitedError     429
│   │   └── ContextOverflowError the request is longer than the model's context window
│   ├── StreamTruncatedError   the stream ended without its terminal event
│   ├── StreamTimeoutError     the first byte or the next event did not arrive in time
│   ├── ConnectError           the connection failed
│   ├── FetchError             a page cannot be fetched (`code`)
│   ├── SearchError            a search engine failed, or is not configured
│   ├── ToolServerError        a local tool server failed (`server`)
│   │   └── SignInError          it requires a sign-in, or the sign-in failed
│   ├── ToolRaisedError        a tool raised an unexpected exception, and `tool_errors` is "raise" (`exception`)
│   ├── ProtocolError          the response does not follow the protocol
│   │   └── OutputInvalidError   the answer does not fit the output type
│   └── LimitError             a limit of `Limits` was reached
├── DocumentError            a document cannot be read as text (`reason`)
├── SteerError               a run cannot be steered: it has finished, or waits for approvals (`reason`)
├── Blocked                  a hook ends the run (`reason`, `by`); only hooks raise it
├── NoOutputError            a typed run has no output; says why (`reason`)
├── StoreError               the log could not be read or written
│   ├── ConflictError          another writer changed the conversation (`conversation`)
│   ├── NewerSchemaError       the store was written by a newer version, and is read-only
│   └── BlobError              a stored file is missing or damaged (`digest`)
└── GrammarError             a part stream violates the grammar: a bug in a decoder, not in a provider
"""

from typing import Any, Literal

__all__ = [
    "AuthenticationError",
    "BlobError",
    "Blocked",
    "ConfigurationError",
    "ConflictError",
    "ConnectError",
    "ContextOverflowError",
    "DocumentError",
    "ErrorKind",
    "FetchError",
    "GrammarError",
    "LimitError",
    "MissingExtraError",
    "MissingKeyError",
    "NewerSchemaError",
    "NoOutputError",
    "NotHostedError",
    "OutputInvalidError",
    "ProtocolError",
    "ProviderError",
    "RateLimitedError",
    "RunError",
    "SearchError",
    "SidestreamError",
    "SignInError",
    "SteerError",
    "StoreError",
    "StreamTimeoutError",
    "StreamTruncatedError",
    "ToolRaisedError",
    "ToolServerError",
    "UnknownProviderError",
    "UnsupportedError",
]

ErrorKind = Literal[
    "provider", "truncated", "protocol", "timeout", "rate-limit", "context-overflow", "limit", "tool", "tool-raised"
]
"""Kind of an `error` part. Only `tool` errors do not end the run."""


def encodable(text: str) -> str:
    """Replace lone surrogates, which files, terminals and JSON cannot encode."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


class SidestreamError(Exception):
    """Base class of all exceptions that Sidestream raises. Its message is always printable."""

    def __init__(self, *args: object) -> None:
        super().__init__(*(encodable(arg) if isinstance(arg, str) else arg for arg in args))


class ConfigurationError(SidestreamError):
    """The configuration is invalid."""


class MissingKeyError(ConfigurationError):
    """No API key was given."""


class UnknownProviderError(ConfigurationError):
    """The provider is unknown."""


class UnsupportedError(ConfigurationError):
    """The provider does not support the tool or option."""


class NotHostedError(UnsupportedError):
    """The provider, or this model of it, does not host the server-side tool."""


class MissingExtraError(ConfigurationError):
    """An optional dependency is not installed; `extra` provides it."""

    def __init__(self, extra: str, purpose: str) -> None:
        super().__init__(f'{purpose} needs the extra "{extra}": pip install "sidestream[{extra}]"')
        self.extra = extra


class StoreError(SidestreamError):
    """A store could not be opened, read or written; `retryable` means that its server may soon be back."""

    def __init__(self, message: str, *, retryable: bool = False) -> None:
        super().__init__(message)
        self.retryable = retryable


class ConflictError(StoreError):
    """Another writer changed the conversation since it was read; `conversation` is its id."""

    def __init__(self, conversation: str) -> None:
        super().__init__(
            f"the conversation {conversation!r} was changed by another writer; "
            "open it again to continue from its current state"
        )
        self.conversation = conversation


class FencedError(ConflictError):
    """A later claim took over the conversation, so this one may no longer write to it."""


class NewerSchemaError(StoreError):
    """The store was written by a newer version of Sidestream, and is read-only."""


class BlobError(StoreError):
    """A stored file is missing or damaged; `digest` is its address."""

    def __init__(self, message: str, *, digest: str) -> None:
        super().__init__(message)
        self.digest = digest


class GrammarError(SidestreamError):
    """A part is not allowed at its position in the stream."""


class RunError(SidestreamError):
    """A run failed. `result` is the partial result, if there is one.

    `code` and `param`, the field at fault, come from the provider; `status` is the HTTP status. `retryable` means that
    the same request may succeed later, and `retry_after` in how many seconds.
    """

    kind: ErrorKind = "provider"

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        status: int | None = None,
        param: str | None = None,
        retryable: bool = False,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = encodable(message)
        self.code = code
        self.status = status
        self.param = param
        """Request field that the provider rejected, if it names one."""
        self.retryable = retryable
        self.retry_after = retry_after
        self.attempts = 1
        """Number of times the request was tried."""
        self.result: Any = None
        """`ChatResult` up to the failure. None means that the run failed before it had one."""


class DocumentError(SidestreamError):
    """A document cannot be read as text; `reason` is `format`, `damaged`, `too-large`, `timeout` or the like."""

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


class SteerError(SidestreamError):
    """A run cannot take a message; `reason` is its finish reason, or None if it was closed or has too many pending."""

    def __init__(self, message: str, reason: str | None = None) -> None:
        super().__init__(message)
        self.reason = reason


class Blocked(SidestreamError):
    """Raised by a hook to end the run with `finish(content-filter)`."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.by = ""
        """Name of the hook's class."""


class NoOutputError(SidestreamError):
    """There is no output; `reason` is the finish reason of the run, or None if it has not finished."""

    def __init__(self, reason: str | None) -> None:
        super().__init__(f"there is no output: {_WITHOUT_OUTPUT.get(reason, f'the run ended with {reason!r}')}")
        self.reason = reason


_WITHOUT_OUTPUT: dict[str | None, str] = {
    None: "the run has not finished",
    "approval": "the run waits for approvals or results; resume it with `agent.resume(result.run_state, decisions)`",
    "limit": "the run reached one of its limits; `result.metadata` names it, and `limits=Limits(...)` raises it",
    "length": "the answer was cut at its maximum length; raise `max_tokens`",
    "content-filter": "the provider refused to answer, or filtered the answer",
    "tool-calls": "the run ended with calls that no local tool answers",
    "error": "the run failed",
}


class ProviderError(RunError):
    """The provider rejected the request or failed during the response."""


class AuthenticationError(ProviderError):
    """The API key was rejected."""


class RateLimitedError(ProviderError):
    """Too many requests; `retry_after` is the wait that the provider requests, in seconds, if any."""

    kind = "rate-limit"


class ContextOverflowError(ProviderError):
    """The request is longer than the model's context window. `Agent(context=Context())` shortens histories."""

    kind = "context-overflow"


class StreamTruncatedError(RunError):
    """The stream ended without its terminal event."""

    kind = "truncated"


class StreamTimeoutError(RunError):
    """The first byte or the next event did not arrive in time."""

    kind = "timeout"


class ConnectError(RunError):
    """The connection failed, or broke before the response."""


class FetchError(RunError):
    """A page cannot be fetched; `code` is an error code of Anthropic's web fetch, such as `url_not_allowed`."""

    kind = "tool"


class SearchError(RunError):
    """A search engine failed, refused the request, or none is configured."""

    kind = "tool"


class ToolServerError(RunError):
    """A local tool server, such as an MCP server, could not be started or used; `server` is its label."""

    def __init__(self, message: str, *, server: str) -> None:
        super().__init__(message, code="tool-server")
        self.server = server


class SignInError(ToolServerError):
    """An MCP server requires a sign-in, or a sign-in failed; the message says what to do."""


class ToolRaisedError(RunError):
    """A tool raised an unexpected exception in a run with `tool_errors="raise"`.

    `exception` is that exception, or None if the run was executed in another process. `send` and the like raise the
    exception itself; `run.error` is this error.
    """

    kind = "tool-raised"
    exception: BaseException | None = None


class ProtocolError(RunError):
    """The response does not follow the protocol."""

    kind = "protocol"


class OutputInvalidError(ProtocolError):
    """The answer does not fit the output type, and the retries are used up."""


class LimitError(RunError):
    """A limit of `Limits` was reached, and the run cannot continue."""

    kind = "limit"
