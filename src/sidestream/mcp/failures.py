"""Why a server could not be used, in words that say what to do."""

from typing import cast

from sidestream.mcp.display import one_line, visible
from sidestream.mcp.server_config import ServerConfig
from sidestream.redaction import redact

_MAX_DETAIL = 300
_BY_STATUS = {
    401: "it refused the credentials (HTTP 401): check authorization and headers",
    403: "it refused the credentials (HTTP 403): check authorization and headers",
    404: "there is no MCP endpoint at this address (HTTP 404): check the url",
    405: "this address does not take MCP requests (HTTP 405): check the url",
    429: "it asks for fewer requests (HTTP 429): try again later",
}


def explain(
    address: ServerConfig,
    error: BaseException | None,
    status: int | None = None,
    *,
    reason: str = "",
    has_expired: bool = False,
    stderr: str = "",
    noise: str = "",
) -> str:
    """A sentence on what happened and what to do; below it the end of the server's stderr, if there is any."""
    what = cause(address, error, status, reason=reason, has_expired=has_expired)
    if noise:
        what += f"; its output began with {one_line(redact(noise))!r}, which is no MCP message"
    lines = [f"the MCP server {address.label!r} cannot be used: {what}"]
    if stderr:
        lines += ["its last output on stderr:", visible(stderr)]
    return "\n".join(lines)


def cause(
    address: ServerConfig,
    error: BaseException | None,
    status: int | None = None,
    *,
    reason: str = "",
    has_expired: bool = False,
) -> str:
    """What happened, as the end of a sentence."""
    error = _leaf(error)
    if address.command is not None:
        if isinstance(error, OSError) and not isinstance(error, TimeoutError):
            return f"{_detail(error)}: install {address.command!r}, or check command and cwd"
        if reason:
            return f"{reason} before it was ready: run its command by hand to see why"
        if has_expired:
            return (
                f"it gave no answer within {address.start_timeout_s:g} seconds: check that its command speaks MCP "
                "over stdio, or raise start_timeout_s"
            )
    url = one_line(redact(address.url or ""))
    if status is not None:
        return f"{_BY_STATUS.get(status, f'it answered with HTTP {status}')} ({url})"
    if has_expired:
        return f"{url} gave no answer within {address.start_timeout_s:g} seconds"
    kind = type(error).__name__
    if kind in ("ConnectError", "ConnectTimeout"):
        return f"no connection to {url}: check that it runs there ({_detail(error)})"
    return f"it does not speak MCP as it should ({kind}: {_detail(error)})" if error else "it was closed while starting"


def what_is_wrong(error: BaseException) -> str:
    """The error in one line; of the checks of the protocol's types, the first that failed."""
    from pydantic import ValidationError

    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        return one_line(f"{'.'.join(map(str, first['loc']))}: {first['msg']}", _MAX_DETAIL)
    return f"{type(error).__name__}: {_detail(error)}"


def _leaf(error: BaseException | None) -> BaseException | None:
    """The first real error: task groups wrap what they pass on."""
    while isinstance(error, BaseExceptionGroup):
        error = cast(BaseExceptionGroup[BaseException], error).exceptions[0]
    return error


def _detail(error: BaseException | None) -> str:
    return one_line(redact(str(error)), _MAX_DETAIL)
