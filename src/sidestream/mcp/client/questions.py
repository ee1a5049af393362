"""Questions that a server asks before it can finish a call.

`on_elicitation` answers the questions for a user. Without it the call pauses, the questions become approvals with a
form, and the call continues with the user's decisions, maybe in another process.
"""

import os
from collections.abc import Mapping
from typing import Any

import msgspec
from mcp_types import ElicitResult, InputRequest
from msgspec import Struct
from pydantic import TypeAdapter

from sidestream import jsontext
from sidestream.errors import ConfigurationError, ToolServerError
from sidestream.jsontext import JsonObject
from sidestream.mcp.client.tool_definitions import sanitized_schema
from sidestream.mcp.display import visible
from sidestream.tools.approvals import Decision, PendingApproval, Suspended, defaults, digest_of
from sidestream.tools.context import ToolContext
from sidestream.tools.outcome import ToolOutcome

MAX_QUESTIONS = 32
MAX_STATE_BYTES = 256 * 1024
"""Maximum size of one round's questions and the server's state, as JSON. The log keeps them."""
_MAX_MESSAGE_CHARACTERS = 4000
_REQUESTS: TypeAdapter[dict[str, InputRequest]] = TypeAdapter(dict[str, InputRequest])


class PausedCall(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """State of a paused call."""

    requests: dict[str, JsonObject] = {}
    """The server's requests by its own keys, verbatim."""
    request_state: str | None = None
    """The server's opaque state, to send back verbatim."""
    approvals: dict[str, str] = {}
    """Approval id → key of the request."""
    task: str | None = None
    """Id of the task that the server works on."""
    rounds: int = 0

    def to_json(self) -> str:
        """Encode the state as JSON text."""
        return jsontext.dumps(self).decode()

    @staticmethod
    def of(suspended: Suspended) -> "PausedCall":
        """Decode the state of a paused call.

        Raises ConfigurationError if it is invalid.
        """
        try:
            return msgspec.convert(jsontext.loads(suspended.state), PausedCall)
        except (ValueError, msgspec.ValidationError):
            pass
        # Raised outside of `except`, since the exception may show the state.
        raise ConfigurationError("the state of a paused MCP call is damaged")


def refusal(label: str, problem: str) -> ToolServerError:
    """Return the error for a server that asks more than it may."""
    return ToolServerError(f"the MCP server {label!r} is refused: {problem}", server=label)


def stop(state: PausedCall, label: str, arguments: JsonObject, context: ToolContext) -> ToolOutcome:
    """Pause the call until the user has answered.

    Raises ToolServerError if the server asks too much.
    """
    forms = {key: form for key, request in state.requests.items() if (form := _form(request)) is not None}
    if len(forms) > MAX_QUESTIONS:
        raise refusal(label, f"it asks {len(forms)} questions at once")
    approvals = {f"approval_{os.urandom(16).hex()}": key for key in forms}
    text = msgspec.structs.replace(state, approvals=approvals).to_json()
    if len(text) > MAX_STATE_BYTES:
        raise refusal(label, f"its questions are longer than {MAX_STATE_BYTES // 1024} KiB")
    return ToolOutcome(
        None,
        suspended=Suspended(
            text,
            tuple(
                PendingApproval(
                    approval_id=approval_id,
                    run_id=context.run_id,
                    call_id=context.call_id,
                    tool=context.name,
                    input=arguments,
                    digest=digest_of(context.name, arguments, forms[key]),
                    provenance=f"requested by the server {label} before it answers the call",
                    server_label=label,
                    form=forms[key],
                )
                for approval_id, key in approvals.items()
            ),
        ),
    )


def decided(state: PausedCall, decisions: tuple[Decision, ...]) -> dict[str, ElicitResult]:
    """Map each request's key to the user's answer."""
    made = {state.approvals[decision.approval_id]: decision for decision in decisions}
    return {key: _answer(state.requests[key], decision) for key, decision in made.items()}


def parse(requests: Mapping[str, JsonObject]) -> dict[str, InputRequest]:
    """Parse requests with the official client's models."""
    return _REQUESTS.validate_python(requests)


def dump(requests: Mapping[str, InputRequest]) -> dict[str, JsonObject]:
    """Convert requests to JSON."""
    return {key: request.model_dump(mode="json", by_alias=True, exclude_none=True) for key, request in requests.items()}


def is_question(request: InputRequest) -> bool:
    """Return whether only the user can answer a request."""
    return request.method == "elicitation/create"


def _form(request: JsonObject) -> JsonObject | None:
    if request.get("method") != "elicitation/create":
        return None
    params = jsontext.as_object(request.get("params"))
    form: dict[str, Any] = {"message": visible(str(params.get("message", "")), _MAX_MESSAGE_CHARACTERS)}
    if params.get("mode") == "url":
        return form | {"url": visible(str(params.get("url", "")))}
    return form | {"schema": sanitized_schema(params.get("requestedSchema"))}


def _answer(request: JsonObject, decision: Decision) -> ElicitResult:
    if not decision.is_approved:
        return ElicitResult(action="decline")
    params = jsontext.as_object(request.get("params"))
    if params.get("mode") == "url":
        return ElicitResult(action="accept")
    schema = jsontext.as_object(params.get("requestedSchema"))
    return ElicitResult(action="accept", content=defaults(schema) | (decision.answers or {}))
