"""Request errors, which each API renders in its own format."""

from sidestream import errors
from sidestream.jsontext import JsonObject
from sidestream.parts import Error
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


_STATUSES = {"context-overflow": 400, "rate-limit": 429, "timeout": 504}
"""Status by error kind, regardless of the provider's own status."""
_REFUSED = frozenset({"ConfigurationError", "UnsupportedError", "NotHostedError"})
"""Codes of runs that never started because the agent or its provider does not support the request."""


def run_error(error: Error) -> RequestError:
    """Convert the error of a failed run to the error that the client gets."""
    if error.code in _REFUSED:
        return RequestError(400, error.message, param=error.param, code="unsupported")
    passed_on = error.status if error.status in (400, 401, 403, 404, 413, 429) else 502
    status = _STATUSES.get(error.kind, passed_on)
    kind = "server_error" if status >= 500 else "model_error"
    code = "context_length_exceeded" if error.kind == "context-overflow" else error.code
    return RequestError(status, error.message, type=kind, param=error.param, code=code)
