"""Interrupted calls: started, but without a result when the run was abandoned or its process ended."""

from typing import Final, Literal, cast, get_args

from msgspec import Struct

from sidestream.errors import ConfigurationError
from sidestream.limits import MAX_TOOL_ATTEMPTS

InterruptionPolicy = Literal["ask", "retry", "fail"]
"""Policy for an interrupted call when its turn is resumed.

`ask` lets the user decide whether it runs again. `retry` runs it again with the same `ToolContext.idempotency_key`.
`fail` does not run it again; the model gets an error saying that it may or may not have had its effect.
"""

ServerInterruption = InterruptionPolicy | Literal["hints"] | dict[str, InterruptionPolicy]
"""Policy for an MCP server's tools: one for all, or one per name (`ask` for the others). `hints` trusts the server:
`retry` for tools that it marks as read-only or idempotent, `ask` for the others."""

INTERRUPTED: Final = "sidestream.tool-interrupted"
"""Kind of the custom part that reports an interrupted call: `call_id`, `name`, `policy`, `attempt`, `message`."""

_MEANING: dict[InterruptionPolicy, str] = {
    "ask": "a person decides whether it runs again",
    "retry": "it runs again, with the same idempotency key",
    "fail": "it is not run again",
}


class Attempt(Struct, frozen=True):
    """Progress of a call in the current round."""

    key: str
    """Idempotency key, the same for each attempt. Empty if the call was never started."""
    policy: InterruptionPolicy = "ask"
    """Policy that its tool declared when the call was started."""
    number: int = 1
    """Attempt number, starting at 1."""
    is_interrupted: bool = False
    """Whether it was interrupted and the stream has not yet reported that, or its end."""


def policy_after(attempt: Attempt) -> InterruptionPolicy:
    """Return the policy for an interrupted attempt.

    A call that has been retried `MAX_TOOL_ATTEMPTS` times needs the user's decision.
    """
    is_worn = attempt.policy == "retry" and attempt.number >= MAX_TOOL_ATTEMPTS
    return "ask" if is_worn else attempt.policy


def check_interruption(policy: object, where: str) -> None:
    """Raise ConfigurationError if the interruption policy is invalid."""
    if policy not in get_args(InterruptionPolicy):
        raise ConfigurationError(f"{where}: on_interruption must be 'ask', 'retry' or 'fail', not {policy!r}")


def check_server_interruption(policy: object, where: str) -> None:
    """Raise ConfigurationError if a server's interruption policy is invalid."""
    if isinstance(policy, dict):
        for name, entry in cast("dict[str, object]", policy).items():
            check_interruption(entry, f"{where}: tool {name!r}")
    elif policy != "hints":
        check_interruption(policy, where)


def server_policy(policy: ServerInterruption, name: str, *, is_repeatable: bool) -> InterruptionPolicy:
    """Return the policy for one tool. `is_repeatable` is the server's own claim."""
    if isinstance(policy, dict):
        return policy.get(name, "ask")
    if policy == "hints":
        return "retry" if is_repeatable else "ask"
    return policy


def notice(call_id: str, name: str, policy: InterruptionPolicy, attempt: int) -> dict[str, str | int]:
    """Return the data of the part that reports an interrupted call. `attempt` is the interrupted one."""
    message = f"The call of {name} was interrupted before its result was recorded: {_MEANING[policy]}."
    return {"call_id": call_id, "name": name, "policy": policy, "attempt": attempt, "message": message}


def failure(name: str) -> dict[str, str]:
    """Return the error result of an interrupted call that is not run again."""
    message = (
        f"The call of {name} was interrupted before its result was recorded. It may or may not have had its effect. "
        "It was not run again: find out what it did before you repeat it."
    )
    return {"error": "Interrupted", "message": message}
