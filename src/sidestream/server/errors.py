"""Request errors, which each API renders in its own format."""

from math import ceil

from sidestream import errors
from sidestream.jsontext import JsonObject
from sidestream.parts import Error
from sidestream.stream.errors import public
from sidestream.text.redaction import redact
from sidestream.tools.approvals import ApprovalError

_MAX_REASON_BYTES = 123
"""Maximum size of a close frame's reason, in bytes (RFC 6455)."""


class RequestError(Exception):
    """A refused request, with its status, the reason and the parameter at fault."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        message = errors.encodable(message)
        super().__init__(message)
        self.status = status
        self.message = message
        self.type = type
        self.param = param
        self.code = code
        self.headers = headers or {}

    def body(self) -> JsonObject:
        """Return the response body in the format that OpenAI's API and ours share."""
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}

    @property
    def close_reason(self) -> str:
        """The start of the message, cut to fit a WebSocket close frame."""
        return self.message.encode(errors="replace")[:_MAX_REASON_BYTES].decode(errors="ignore")


def not_found(what: str, name: str, *, param: str | None = None, code: str = "not_found") -> RequestError:
    """Return the 404 error for something that does not exist or belongs to another tenant."""
    return RequestError(404, f"{what} {name!r} not found", type="not_found", param=param, code=code)


def as_request_error(error: errors.SidestreamError) -> RequestError:
    """Convert a Sidestream error to the error that the client gets."""
    message = redact(str(error))
    match error:
        case errors.ConflictError():
            reason = "a run is in progress in this conversation, or another client has just written to it"
            return RequestError(409, reason, type="conflict", code="conflict")
        case ApprovalError():
            return RequestError(403, message, code="approval_refused")
        case errors.SteerError():
            return RequestError(409, message, type="conflict", code="not_running")
        case errors.UnknownProviderError():
            return RequestError(404, message, type="not_found", param="model", code="model_not_found")
        case errors.ConfigurationError():
            return RequestError(400, message, code="unsupported")
        case _:
            return RequestError(500, message, type="server_error")


_PASSED_ON = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found",
    413: "invalid_request_error",
    422: "invalid_request_error",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}
"""Error types by the provider's status, for those that a client can act on. Others become 502."""
_REFUSED = frozenset({"ConfigurationError", "UnsupportedError", "NotHostedError"})
"""Codes of runs that never started because the agent or its provider does not support the request."""


def run_error(error: Error) -> RequestError:
    """Convert the error of a failed run to the error that the client gets."""
    if error.code in _REFUSED:
        return RequestError(400, error.message, param=error.param, code="unsupported")
    error = public(error)
    status = error.status if error.status in _PASSED_ON else 502
    return RequestError(
        status,
        error.message,
        type=_PASSED_ON.get(status, "server_error"),
        param=error.param,
        code=error.code,
        headers=None if error.retry_after is None else {"Retry-After": str(ceil(error.retry_after))},
    )
