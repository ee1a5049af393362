"""Descriptions of server failures, with advice."""

from typing import Any, cast

from sidestream.mcp.client.server_config import ServerConfig
from sidestream.mcp.display import one_line, visible
from sidestream.mcp.http import SIGN_IN
from sidestream.text.redaction import redact

_MAX_DETAIL = 300
_BY_STATUS = {
    401: "it rejected the credentials (HTTP 401): check authorization and headers, or sign in with auth=OAuth()",
    403: "it rejected the credentials (HTTP 403): check authorization and headers",
    404: "there is no MCP endpoint at this URL (HTTP 404): check the url",
    405: "this URL does not accept MCP requests (HTTP 405): check the url",
    429: "it is rate limited (HTTP 429): try again later",
}


def describe_failure(
    config: ServerConfig,
    error: BaseException | None,
    status: int | None = None,
    *,
    sign_in: str | None = None,
    reason: str = "",
    has_expired: bool = False,
    stderr: str = "",
    noise: str = "",
) -> str:
    """Return the error message: what happened, what to do, and the end of the server's stderr, if any."""
    cause = failure_cause(config, error, status, sign_in=sign_in, reason=reason, has_expired=has_expired)
    if noise:
        cause += f"; its output began with {one_line(redact(noise))!r}, which is not an MCP message"
    lines = [f"the MCP server {config.label!r} cannot be used: {cause}"]
    if stderr:
        lines += ["its last output on stderr:", visible(stderr)]
    return "\n".join(lines)


def failure_cause(
    config: ServerConfig,
    error: BaseException | None,
    status: int | None = None,
    *,
    sign_in: str | None = None,
    reason: str = "",
    has_expired: bool = False,
) -> str:
    """Return what happened and what to do, worded as the end of a sentence."""
    error = _leaf(error)
    if config.command is not None:
        if isinstance(error, OSError) and not isinstance(error, TimeoutError):
            return f"{_detail(error)}: install {config.command!r}, or check command and cwd"
        if reason:
            return f"{reason} before it was ready: run its command manually to see why"
        if has_expired:
            return (
                f"it did not answer within {config.start_timeout_s:g} seconds: check that its command speaks MCP "
                "over stdio, or raise start_timeout_s"
            )
    url = one_line(redact(config.url or ""))
    if sign_in is not None:
        return f"{sign_in} ({url})"
    if (host := _authorization_server(error)) is not None:
        kind = type(error).__name__
        return f"the sign-in failed: its authorization server at {host} did not answer ({kind}); try again later"
    if status is not None:
        return f"{_BY_STATUS.get(status, f'it responded with HTTP {status}')} ({url})"
    if has_expired:
        return f"{url} did not answer within {config.start_timeout_s:g} seconds"
    kind = type(error).__name__
    if kind in ("ConnectError", "ConnectTimeout"):
        return f"cannot connect to {url}: check that the server is running ({_detail(error)})"
    return f"it does not speak MCP correctly ({kind}: {_detail(error)})" if error else "it was closed while starting"


def describe_error(error: BaseException) -> str:
    """Describe an error on one line. A validation error is reduced to its first problem."""
    from pydantic import ValidationError

    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        return one_line(f"{'.'.join(map(str, first['loc']))}: {first['msg']}", _MAX_DETAIL)
    return f"{type(error).__name__}: {_detail(error)}"


def _authorization_server(error: BaseException | None) -> str | None:
    """Return the host of a failed request, if it was part of a sign-in."""
    request: Any = getattr(error, "_request", None)
    return None if request is None or SIGN_IN not in request.extensions else one_line(request.url.host)


def _leaf(error: BaseException | None) -> BaseException | None:
    """Return the first error inside nested exception groups."""
    while isinstance(error, BaseExceptionGroup):
        error = cast(BaseExceptionGroup[BaseException], error).exceptions[0]
    return error


def _detail(error: BaseException | None) -> str:
    return one_line(redact(str(error)), _MAX_DETAIL)
