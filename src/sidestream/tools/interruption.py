"""Interrupted calls: their tools were started, and the run was left, or its process ended, before they had a result."""

from typing import Final, Literal, cast, get_args

from msgspec import Struct

from sidestream.errors import ConfigurationError
from sidestream.limits import MAX_TOOL_ATTEMPTS

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
