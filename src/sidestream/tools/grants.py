"""Grants: approvals that a person has given for further calls of a tool in the same conversation.

A grant has the effect of the policy `run` where the policy says `ask`. It covers one tool of one server, as it was
defined when the person decided.
"""

from collections.abc import Iterable, Mapping
from typing import Final, Literal, Protocol, cast, get_args

from msgspec import Struct

from sidestream import jsontext
from sidestream.errors import ConfigurationError
from sidestream.limits import MAX_TOOL_ATTEMPTS

CALL_GRANTED: Final = "sidestream.call-granted"
"""The kind of the custom part that reports a call that runs because of a grant: `call_id`, `name`, `grant`."""


class Grant(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A tool that may run without a further question in this conversation."""

    id: str
    """The id of the approval with which it was given."""
    tool: str
    server_label: str | None = None
    """The MCP server that has the tool; None for functions."""
    is_remote: bool = False
    """True where the provider runs it."""
    pin: str | None = None
    """A digest of the tool's definition, if it was known."""


class _Call(Protocol):
    @property
    def tool(self) -> str: ...
    @property
    def server_label(self) -> str | None: ...
    @property
    def is_remote(self) -> bool: ...
    @property
    def pin(self) -> str | None: ...


def pin_of(*aspects: object) -> str:
    """Return the digest of a tool's definition, which has these aspects."""
    import hashlib

    return hashlib.sha256(jsontext.canonical(aspects)).hexdigest()


def grant_of(id: str, call: _Call) -> Grant:
    """The grant for further calls of the same tool."""
    return Grant(id=id, tool=call.tool, server_label=call.server_label, is_remote=call.is_remote, pin=call.pin)


def covering(call: _Call, grants: Iterable[Grant]) -> str | None:
    """The id of the grant that was given for this tool as it is defined now."""
    # A provider's listing that changes a tool has ended its grant: see `after_listing`.
    found = (grant for grant in grants if _key(grant) == _key(call) and (call.is_remote or grant.pin == call.pin))
    return next((grant.id for grant in found), None)


def with_grant(grants: tuple[Grant, ...], new: Grant) -> tuple[Grant, ...]:
    """The grants with another one, which replaces that of the same tool."""
    return (*(grant for grant in grants if _key(grant) != _key(new)), new)


def without_grant(grants: tuple[Grant, ...], id: str) -> tuple[Grant, ...]:
    """The grants without this one."""
    return tuple(grant for grant in grants if grant.id != id)


def after_listing(grants: tuple[Grant, ...], listed: Mapping[str, Mapping[str, str]]) -> tuple[Grant, ...]:
    """The grants that stand after a provider has listed tools of remote servers: label → tool → digest.

    One whose tool is gone or defined otherwise has ended, and so has one that was given for an unknown definition.
    """
    return tuple(grant for grant in grants if _stands(grant, listed.get(grant.server_label or "")))


def _stands(grant: Grant, tools: Mapping[str, str] | None) -> bool:
    is_same = tools is not None and grant.pin is not None and tools.get(grant.tool) == grant.pin
    return not grant.is_remote or tools is None or is_same


def _key(call: _Call | Grant) -> tuple[str | None, str, bool]:
    return call.server_label, call.tool, call.is_remote


InterruptionPolicy = Literal["ask", "retry", "fail"]
"""What becomes of an interrupted call when the turn is resumed.

`ask`: a person decides whether it runs again. `retry`: it runs again, with the same `ToolContext.idempotency_key`.
`fail`: it does not run again; the model gets an error that says that it may or may not have had its effect.
"""

ServerInterruption = InterruptionPolicy | Literal["hints"] | dict[str, InterruptionPolicy]
"""The policy of an MCP server's tools: one for all, or one per name (`ask` for the others). `hints` trusts the server:
`retry` for tools that it marks as read-only or idempotent, `ask` for the others."""

INTERRUPTED: Final = "sidestream.tool-interrupted"
"""The kind of the custom part that reports an interrupted call: `call_id`, `name`, `policy`, `attempt`, `message`."""

_MEANING: dict[InterruptionPolicy, str] = {
    "ask": "a person decides whether it runs again",
    "retry": "it runs again, with the same idempotency key",
    "fail": "it is not run again",
}


class Attempt(Struct, frozen=True):
    """How far a call of the current round has come."""

    key: str
    """Its idempotency key: the same for each attempt. Empty if the call was never started."""
    policy: InterruptionPolicy = "ask"
    """As its tool declared it when it was started."""
    number: int = 1
    """1 for the first attempt."""
    is_interrupted: bool = False
    """True until the stream has reported that it was interrupted, or its end."""


def policy_after(attempt: Attempt) -> InterruptionPolicy:
    """What becomes of an interrupted attempt. One that was retried often enough needs a person."""
    is_worn = attempt.policy == "retry" and attempt.number >= MAX_TOOL_ATTEMPTS
    return "ask" if is_worn else attempt.policy


def check_interruption(policy: object, where: str) -> None:
    """Raises ConfigurationError for what is no such policy."""
    if policy not in get_args(InterruptionPolicy):
        raise ConfigurationError(f"{where}: on_interruption must be 'ask', 'retry' or 'fail', not {policy!r}")


def check_server_interruption(policy: object, where: str) -> None:
    """Raises ConfigurationError for what is no policy of a server."""
    if isinstance(policy, dict):
        for name, entry in cast("dict[str, object]", policy).items():
            check_interruption(entry, f"{where}: tool {name!r}")
    elif policy != "hints":
        check_interruption(policy, where)


def server_policy(policy: ServerInterruption, name: str, *, is_repeatable: bool) -> InterruptionPolicy:
    """The policy of one tool; `is_repeatable` is what its server says of it."""
    if isinstance(policy, dict):
        return policy.get(name, "ask")
    if policy == "hints":
        return "retry" if is_repeatable else "ask"
    return policy


def notice(call_id: str, name: str, policy: InterruptionPolicy, attempt: int) -> dict[str, str | int]:
    """The data of the part that reports an interrupted call; `attempt` is the one that was interrupted."""
    message = f"The call of {name} was interrupted before its result was recorded: {_MEANING[policy]}."
    return {"call_id": call_id, "name": name, "policy": policy, "attempt": attempt, "message": message}


def failure(name: str) -> dict[str, str]:
    """The result of an interrupted call that is not run again."""
    message = (
        f"The call of {name} was interrupted before its result was recorded. It may or may not have had its effect. "
        "It was not run again: find out what it did before you repeat it."
    )
    return {"error": "Interrupted", "message": message}
